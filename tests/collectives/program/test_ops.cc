/* The programs of all ranks, run together without any bytes: every contribution is added up once, and
 * everybody gets the result. */
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "collectives/communicator.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

using Contributions = std::multiset<int>;

struct Message {
    int owner;
    Contributions value;
};

/** A rank that runs its program. */
struct Rank {
    tw_topo_t topo = {};
    tw_kept_program_t kept = {};
    const tw_ops_t *ops = nullptr;
    std::map<std::pair<int, int>, Contributions> cells; /**< by owner and cell; TW_CELL_DST: the result */
    int next = 0;
};

/** One rank after the other, as far as it gets: sends are buffered. Fails where they wait for each other for
 *  ever. */
class Ranks
{
  public:
    explicit Ranks(const std::vector<int> &node_of, const tw_flows_t &of) : ranks(node_of.size()), flows(of)
    {
        std::vector<uint64_t> ids(node_of.begin(), node_of.end());
        for (size_t r = 0; r < ranks.size(); r++) {
            EXPECT_EQ(tw_topo_init_nodes(&ranks[r].topo, (int)r, (int)ids.size(), ids.data()), TW_OK);
            tw_ops_params_t params = {};
            params.topo = &ranks[r].topo;
            params.flows = &flows;
            EXPECT_EQ(tw_ops_get(&ranks[r].kept, &params, &ranks[r].ops), TW_OK);
        }
    }
    Ranks(const Ranks &) = delete;
    Ranks &operator=(const Ranks &) = delete;
    ~Ranks()
    {
        for (Rank &rank : ranks) {
            tw_ops_cleanup(&rank.kept);
            tw_topo_cleanup(&rank.topo);
        }
    }
    void run()
    {
        bool moved = true;
        while (moved) {
            moved = false;
            for (Rank &rank : ranks) {
                while (rank.next < rank.ops->n_ops && step(&rank, rank.ops->ops[rank.next])) {
                    rank.next++;
                    moved = true;
                }
            }
        }
        for (const Rank &rank : ranks) {
            EXPECT_EQ(rank.next, rank.ops->n_ops);
        }
        for (const auto &lane : lanes) {
            EXPECT_TRUE(lane.second.empty());
        }
    }

    std::vector<Rank> ranks;

  private:
    static Contributions read(const Rank &rank, int owner, int cell)
    {
        return cell == TW_CELL_SRC ? Contributions{rank.topo.rank} : rank.cells.at({owner, cell});
    }
    static Contributions add_up(const Rank &rank, const tw_op_t &op)
    {
        Contributions sum;
        const bool own_is_first = rank.ops->inputs[op.first_input] == TW_CELL_SRC && op.n_partial > 0;
        EXPECT_TRUE(!own_is_first || op.n_partial == op.n_inputs - 1);
        for (int i = 0; i < op.n_inputs; i++) {
            const Contributions more = read(rank, op.owner, rank.ops->inputs[op.first_input + i]);
            EXPECT_TRUE(i < op.n_partial || own_is_first || more.size() == 1) << "sums come first";
            sum.insert(more.begin(), more.end());
        }
        return sum;
    }
    /** False: it waits for a message. */
    bool step(Rank *rank, const tw_op_t &op)
    {
        Contributions value;
        if (op.kind == TW_OP_SEND) {
            lane_of(rank->topo.rank, op.peer, op.owner)
                .push_back({op.owner, read(*rank, op.from_owner, op.from)});
            return true;
        }
        if (op.kind == TW_OP_RECV) {
            std::deque<Message> &lane = lane_of(op.peer, rank->topo.rank, op.owner);
            if (lane.empty()) {
                return false;
            }
            EXPECT_TRUE(flows.by_pair || lane.front().owner == op.owner)
                << "both ends have messages in the same order";
            value = lane.front().value;
            lane.pop_front();
        } else {
            value = op.kind == TW_OP_SUM ? add_up(*rank, op) : read(*rank, op.from_owner, op.from);
        }
        EXPECT_EQ(rank->cells.count({op.owner, op.to}), 0u) << "written once";
        rank->cells[{op.owner, op.to}] = value;
        return true;
    }

    /** Of several roots, only one runs at a time. */
    std::deque<Message> &lane_of(int from, int to, int owner)
    {
        return lanes[{from, to, flows.of == tw_flows_t::TW_FLOWS_ROOT ? owner : 0}];
    }

    const tw_flows_t &flows;
    std::map<std::tuple<int, int, int>, std::deque<Message>> lanes;
};

using Ops = tw::Fixture;

/** What each rank has at the end. */
void check_results(const Ranks &all, const tw_flows_t &flows)
{
    const int world = (int)all.ranks.size();
    Contributions everybody;
    for (int r = 0; r < world; r++) {
        everybody.insert(r);
    }
    for (const Rank &rank : all.ranks) {
        for (int owner = 0; owner < world; owner++) {
            const auto found = rank.cells.find({owner + (flows.by_pair ? world : 0), TW_CELL_DST});
            const bool is_own = owner == rank.topo.rank;
            const bool is_there =
                tw_flows_owns(&flows, &rank.topo, owner) && (flows.spread != nullptr || is_own);
            if (flows.of == tw_flows_t::TW_FLOWS_ROOT && is_own) {
                continue; /* it is there already */
            }
            ASSERT_EQ(found != rank.cells.end(), is_there) << rank.topo.rank << " of " << owner;
            if (is_there) {
                EXPECT_EQ(found->second, flows.reduce != nullptr ? everybody : Contributions{owner});
            }
        }
    }
}

TEST_F(Ops, EveryContributionIsAddedOnceAndTheResultGetsEverywhere)
{
    const tw_algo_t *algo;
    for (size_t a = 0; (algo = tw_algo_get(a)) != nullptr; a++) {
        for (const std::vector<int> &node_of : tw::all_worlds()) {
            SCOPED_TRACE(std::string(tw_coll_op_name(algo->info.op)) + " " + algo->info.name + " of " +
                         std::to_string(node_of.size()));
            Ranks all(node_of, algo->flows);
            all.run();
            check_results(all, algo->flows);
        }
    }
}

/* The ring and the way over nodes enter a node once with each shard; by the ring, the owner's own node may be
 * entered again at its other ranks. */
TEST_F(Ops, AShardEntersANodeOnce)
{
    for (const std::vector<int> &node_of : tw::all_worlds()) {
        std::vector<uint64_t> ids(node_of.begin(), node_of.end());
        tw_topo_t topo;
        ASSERT_EQ(tw_topo_init_nodes(&topo, 0, (int)ids.size(), ids.data()), TW_OK);
        for (tw_flow_spread_t spread : {tw_flow_spread_ring, tw_flow_spread_hierarchical}) {
            for (int owner = 0; owner < topo.world; owner++) {
                tw_flow_t flow = {};
                flow.topo = &topo;
                spread(&flow, owner, tw_flow_own(owner));
                int entries = 0;
                for (int i = 0; i < flow.n_ops; i++) {
                    int from = tw_flow_rank(&flow, flow.inputs[flow.ops[i].first_input]);
                    entries += topo.node[from] != topo.node[flow.ops[i].at];
                }
                EXPECT_GE(entries, topo.n_nodes - 1);
                EXPECT_LE(entries, topo.n_nodes - 1 + (spread == tw_flow_spread_ring));
                tw_flow_cleanup(&flow);
            }
        }
        tw_topo_cleanup(&topo);
    }
}

tw_topo_t topo_of_a_thousand()
{
    std::vector<uint64_t> ids(1024);
    for (size_t r = 0; r < ids.size(); r++) {
        ids[r] = r / 8;
    }
    tw_topo_t topo;
    EXPECT_EQ(tw_topo_init_nodes(&topo, 77, (int)ids.size(), ids.data()), TW_OK);
    return topo;
}

/** Chunks that a rank holds at a time where chunk follows chunk (host.c): those of a cell from the hop that
 *  makes it to the last one that reads it, and what is packed while it is sent or received. */
double count_held(const tw_ops_t *ops)
{
    std::map<std::pair<int, int>, std::pair<int, int>> lives;
    double held = 0;
    int hop = 0;
    auto use = [&](int owner, int cell) {
        if (cell >= 0) {
            lives.emplace(std::make_pair(owner, cell), std::make_pair(hop, hop)).first->second.second = hop;
        }
    };
    for (int i = 0; i < ops->n_ops; i++) {
        const tw_op_t &op = ops->ops[i];
        while (i >= ops->first_op[hop + 1]) {
            hop++;
        }
        const bool is_message = op.kind == TW_OP_SEND || op.kind == TW_OP_RECV;
        held += is_message && (op.kind == TW_OP_SEND ? op.from : op.to) < 0;
        for (int k = 0; op.kind == TW_OP_SUM && k < op.n_inputs; k++) {
            use(op.owner, ops->inputs[op.first_input + k]);
        }
        use(op.from_owner, op.kind == TW_OP_SEND || op.kind == TW_OP_CONVERT ? op.from : -1);
        use(op.owner, op.kind == TW_OP_SEND ? -1 : op.to);
    }
    for (const auto &life : lives) {
        held += TW_HOP_ROUNDS * (life.second.second - life.second.first) + 1;
    }
    return held;
}

/* What choosing takes for granted (choose.c): half of the scratch memory is enough for 8 chunks a rank, all
 * of it for twice as many. */
TEST_F(Ops, OfAThousandRanksHoldsSoManyChunks)
{
    tw_topo_t topo = topo_of_a_thousand();
    for (tw_flow_spread_t spread : {(tw_flow_spread_t) nullptr, tw_flow_spread_doubling}) {
        tw_flows_t flows = {};
        flows.reduce = tw_flow_reduce_halving;
        flows.spread = spread;
        flows.merges = 1;
        tw_ops_params_t params = {};
        params.topo = &topo;
        params.flows = &flows;
        tw_kept_program_t kept = {};
        const tw_ops_t *ops = nullptr;
        ASSERT_EQ(tw_ops_get(&kept, &params, &ops), TW_OK);
        EXPECT_LE(count_held(ops), 8.1 * topo.world);
        tw_ops_cleanup(&kept);
    }
    tw_topo_cleanup(&topo);
}

/* A program takes a topology alone, and has what this rank does: with each of the others, twice. */
TEST_F(Ops, OfAThousandRanks)
{
    tw_topo_t topo = topo_of_a_thousand();
    for (tw_flow_spread_t spread : {tw_flow_spread_ring, tw_flow_spread_direct}) {
        tw_flows_t flows = {};
        flows.spread = spread;
        tw_ops_params_t params = {};
        params.topo = &topo;
        params.flows = &flows;
        tw_kept_program_t kept = {};
        const tw_ops_t *ops = nullptr;
        ASSERT_EQ(tw_ops_get(&kept, &params, &ops), TW_OK);
        std::map<tw_op_kind_t, int> n;
        for (int i = 0; i < ops->n_ops; i++) {
            n[ops->ops[i].kind]++;
        }
        EXPECT_EQ(n[TW_OP_SEND], 1023);
        EXPECT_EQ(n[TW_OP_RECV], 1023);
        EXPECT_EQ(n[TW_OP_CONVERT], 1); /* the own shard, to where it belongs */
        EXPECT_EQ(n[TW_OP_SUM], 0);
        tw_ops_cleanup(&kept);
    }
    tw_topo_cleanup(&topo);
}

} // namespace
