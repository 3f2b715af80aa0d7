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

/** A rank that runs a phase. */
struct Rank {
    tw_topo_t topo = {};
    tw_program_t *program = nullptr;
    std::map<int, Contributions> own;                  /**< of each owner's shard */
    std::map<std::pair<int, int>, Contributions> made; /**< by owner and value */
    std::map<int, Contributions> result;
    int next = 0;
};

/** One rank after the other, as far as it gets: sends are buffered. Fails where they wait for each other for
 *  ever. */
class Ranks
{
  public:
    explicit Ranks(const std::vector<int> &node_of, const tw_flows_t &flows)
        : ranks(node_of.size()), is_one_owner(flows.of == tw_flows_t::TW_FLOWS_ROOT)
    {
        std::vector<uint64_t> ids(node_of.begin(), node_of.end());
        for (size_t r = 0; r < ranks.size(); r++) {
            EXPECT_EQ(tw_topo_init_nodes(&ranks[r].topo, (int)r, (int)ids.size(), ids.data()), TW_OK);
            EXPECT_EQ(tw_program_create(&ranks[r].topo, &flows, &ranks[r].program), TW_OK);
            for (size_t owner = 0; owner < ranks.size(); owner++) {
                ranks[r].own[(int)owner] = {(int)r};
            }
        }
    }
    Ranks(const Ranks &) = delete;
    Ranks &operator=(const Ranks &) = delete;
    ~Ranks()
    {
        for (Rank &rank : ranks) {
            tw_program_destroy(rank.program);
            tw_topo_cleanup(&rank.topo);
        }
    }
    void run(bool spreads)
    {
        bool moved = true;
        for (Rank &rank : ranks) {
            rank.next = 0;
            rank.made.clear();
        }
        while (moved) {
            moved = false;
            for (Rank &rank : ranks) {
                const tw_phase_t &phase = spreads ? rank.program->spread : rank.program->reduce;
                while (rank.next < phase.n_steps && step(&rank, phase, phase.steps[rank.next], spreads)) {
                    rank.next++;
                    moved = true;
                }
            }
        }
        for (const Rank &rank : ranks) {
            EXPECT_EQ(rank.next, (spreads ? rank.program->spread : rank.program->reduce).n_steps);
        }
        for (const auto &lane : lanes) {
            EXPECT_TRUE(lane.second.empty());
        }
    }

    std::vector<Rank> ranks;

  private:
    static Contributions input(const Rank &rank, const tw_phase_t &phase, const tw_step_t &at, int i)
    {
        int value = phase.inputs[at.first_input + i];
        return value == TW_STEP_OWN ? rank.own.at(at.owner) : rank.made.at({at.owner, value});
    }
    /** False: it waits for a message. */
    bool step(Rank *rank, const tw_phase_t &phase, const tw_step_t &at, bool spreads)
    {
        Contributions value;
        if (at.kind == TW_STEP_SEND) {
            lane_of(rank->topo.rank, at.peer, at.owner).push_back({at.owner, input(*rank, phase, at, 0)});
            return true;
        }
        if (at.kind == TW_STEP_RECV) {
            std::deque<Message> &lane = lane_of(at.peer, rank->topo.rank, at.owner);
            if (lane.empty()) {
                return false;
            }
            EXPECT_EQ(lane.front().owner, at.owner) << "both ends have messages in the same order";
            value = lane.front().value;
            lane.pop_front();
        }
        for (int i = 0; at.kind == TW_STEP_SUM && i < at.n_inputs; i++) {
            Contributions more = input(*rank, phase, at, i);
            EXPECT_TRUE(i < at.n_partial || more.size() == 1) << "sums come first";
            value.insert(more.begin(), more.end());
        }
        rank->made[{at.owner, at.value}] = value;
        if (at.is_last || spreads) {
            EXPECT_EQ(rank->result.count(at.owner), 0u);
            rank->result[at.owner] = value;
        }
        return true;
    }

    /** Of several roots, only one runs at a time. */
    std::deque<Message> &lane_of(int from, int to, int owner)
    {
        return lanes[{from, to, is_one_owner ? owner : 0}];
    }

    bool is_one_owner;
    std::map<std::tuple<int, int, int>, std::deque<Message>> lanes;
};

using Program = tw::Fixture;

TEST_F(Program, EveryContributionIsAddedOnceAndTheResultGetsEverywhere)
{
    const tw_algo_t *algo;
    for (size_t a = 0; (algo = tw_algo_get(a)) != nullptr; a++) {
        if (algo->build != nullptr) {
            continue;
        }
        for (const std::vector<int> &node_of : tw::all_worlds()) {
            SCOPED_TRACE(std::string(tw_coll_op_name(algo->info.op)) + " " + algo->info.name + " of " +
                         std::to_string(node_of.size()));
            Ranks all(node_of, algo->flows);
            Contributions everybody;
            for (Rank &rank : all.ranks) {
                everybody.insert(rank.topo.rank);
            }
            if (algo->flows.reduce != nullptr) {
                all.run(false);
            }
            for (Rank &rank : all.ranks) {
                int own = rank.topo.rank;
                if (algo->flows.reduce != nullptr) {
                    ASSERT_EQ(rank.result.size(), 1u);
                    EXPECT_EQ(rank.result[own], everybody);
                    rank.own[own] = everybody;
                }
                rank.result.erase(own);
            }
            all.run(true);
            for (Rank &rank : all.ranks) {
                int own = rank.topo.rank;
                EXPECT_EQ(rank.result.size(), algo->flows.spread != nullptr ? all.ranks.size() - 1 : 0);
                for (const auto &got : rank.result) {
                    EXPECT_NE(got.first, own);
                    EXPECT_EQ(got.second,
                              algo->flows.reduce != nullptr ? everybody : Contributions{got.first});
                }
            }
        }
    }
}

/* The ring and the way over nodes enter a node once with each shard; by the ring, the owner's own node may be
 * entered again at its other ranks. */
TEST_F(Program, AShardEntersANodeOnce)
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

/* A program takes a topology alone, and has what this rank does: with each of the others, twice. */
TEST_F(Program, OfAThousandRanks)
{
    std::vector<uint64_t> ids(1024);
    for (size_t r = 0; r < ids.size(); r++) {
        ids[r] = r / 8;
    }
    tw_topo_t topo;
    ASSERT_EQ(tw_topo_init_nodes(&topo, 77, (int)ids.size(), ids.data()), TW_OK);
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
