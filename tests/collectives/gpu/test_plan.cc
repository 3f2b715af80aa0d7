/* Plans as data: what happens at the same time touches different memory, and both ends of a message agree. */
#include <algorithm>
#include <map>
#include <set>

#include "collectives/gpu/plan.h"
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

struct Range {
    size_t first, bytes;
};

bool overlap(const Range &a, const Range &b)
{
    return a.first < b.first + b.bytes && b.first < a.first + a.bytes;
}

/** flat: no hops inside nodes. */
tw_flows_t flows_of(tw_coll_op_t op, bool flat)
{
    tw_flows_t flows = {};
    if (op != TW_COLL_ALLGATHER) {
        flows.reduce = flat ? tw_flow_reduce_direct : tw_flow_reduce_two_hop;
        flows.nodes_first = !flat;
    }
    if (op != TW_COLL_REDUCE_SCATTER) {
        flows.spread = flat ? tw_flow_spread_direct : tw_flow_spread_rails;
    }
    return flows;
}

/** The plans of all ranks of a world. */
class Plans
{
  public:
    Plans(const tw::Case &c, const std::vector<int> &nodes, bool flat, size_t chunk_bytes)
        : all(nodes.size()), buffers{std::vector<tw::Bytes>(c.sizes.size()),
                                     std::vector<tw::Bytes>(c.sizes.size())},
          asked(c, &buffers, 1)
    {
        int world = (int)nodes.size();
        std::vector<uint64_t> ids(nodes.begin(), nodes.end());
        const tw_flows_t flows = flows_of(c.op, flat);
        for (int r = 0; r < world; r++) {
            tw_topo_t topo;
            tw_kept_program_t kept = {};
            EXPECT_EQ(tw_topo_init_nodes(&topo, r, world, ids.data()), TW_OK);
            tw_gpu_plan_params_t params = {&topo, &flows, &kept, &asked.args, chunk_bytes, 0, 0};
            EXPECT_EQ(tw_gpu_plan_init(&all[(size_t)r], &params), TW_OK);
            tw_topo_cleanup(&topo);
            tw_ops_cleanup(&kept);
        }
    }
    Plans(const Plans &) = delete;
    Plans &operator=(const Plans &) = delete;
    ~Plans()
    {
        for (tw_gpu_plan_t &plan : all) {
            tw_gpu_plan_cleanup(&plan);
        }
    }
    size_t bytes(const tw_gpu_plan_t &plan, const tw_gpu_compute_t &compute, tw_form_t form) const
    {
        bool is_own = form == TW_FORM_CODEC || form == TW_FORM_PACKED;
        const tw_quant_codec_t *codec = is_own                  ? asked.args.codec
                                        : form == TW_FORM_INNER ? asked.args.inner_codec
                                                                : nullptr;
        return tw_grid_chunk_bytes(&plan.grid, compute.chunk, codec, asked.args.type);
    }
    std::vector<Range> reads(const tw_gpu_plan_t &plan, const tw_gpu_compute_t &compute) const
    {
        std::vector<Range> out;
        for (int k = 0; k < std::max(compute.n_inputs, 1) && compute.from < TW_GPU_RESULT; k++) {
            out.push_back({compute.from + (size_t)k * compute.stride, bytes(plan, compute, compute.in)});
        }
        return out;
    }
    std::vector<Range> writes(const tw_gpu_plan_t &plan, const tw_gpu_compute_t &compute) const
    {
        if (compute.to == TW_GPU_USER) {
            return {};
        }
        return {{compute.to, bytes(plan, compute, compute.out)}};
    }

    std::vector<tw_gpu_plan_t> all;

  private:
    tw::RankBuffers buffers;
    tw::RankCase asked;
};

tw::Case make_case(tw_coll_op_t op, const std::string &codec, const std::string &inner,
                   std::vector<size_t> sizes)
{
    tw::Case c;
    c.op = op;
    c.codec = codec;
    c.inner = inner;
    c.sizes = std::move(sizes);
    return c;
}

const tw_coll_op_t ops[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};
const std::vector<std::vector<int>> grids = {{1}, {1, 1}, {3}, {2, 2}, {3, 3}, {1, 2, 4}, {4, 1}};

void check_memory(const Plans &plans, const tw_gpu_plan_t &plan)
{
    for (size_t t = 0; t < plan.n_ticks; t++) {
        const tw_gpu_tick_t &tick = plan.ticks[t];
        std::vector<Range> compute_reads, compute_writes;
        for (size_t i = 0; i < tick.n_computes; i++) {
            const tw_gpu_compute_t &compute = plan.computes[tick.first_compute + i];
            for (const Range &r : plans.reads(plan, compute)) {
                compute_reads.push_back(r);
            }
            for (const Range &w : plans.writes(plan, compute)) {
                compute_writes.push_back(w);
            }
        }
        for (const Range &range : compute_writes) {
            ASSERT_LE(range.first + range.bytes, plan.workspace_bytes);
        }
        for (size_t i = 0; i < tick.n_messages; i++) {
            const tw_gpu_message_t &message = plan.messages[tick.first_message + i];
            Range mine = {message.at, message.bytes};
            ASSERT_LE(mine.first + mine.bytes, plan.temp_at);
            for (const Range &write : compute_writes) {
                ASSERT_FALSE(overlap(mine, write)) << "tick " << t;
            }
            for (const Range &read : compute_reads) {
                ASSERT_FALSE(!message.is_send && overlap(mine, read)) << "tick " << t;
            }
            for (size_t j = 0; j < i; j++) {
                const tw_gpu_message_t &other = plan.messages[tick.first_message + j];
                bool both_send = message.is_send && other.is_send;
                ASSERT_FALSE(!both_send && overlap(mine, {other.at, other.bytes})) << "tick " << t;
            }
        }
    }
}

void check_messages(const Plans &plans)
{
    std::map<std::pair<int, int>, std::vector<size_t>> sent, received;
    for (size_t r = 0; r < plans.all.size(); r++) {
        const tw_gpu_plan_t &plan = plans.all[r];
        EXPECT_EQ(plan.n_ticks, plans.all[0].n_ticks);
        for (size_t t = 0; t < plan.n_ticks; t++) {
            for (size_t i = 0; i < plan.ticks[t].n_messages; i++) {
                const tw_gpu_message_t &message = plan.messages[plan.ticks[t].first_message + i];
                std::pair<int, int> pair = message.is_send ? std::make_pair((int)r, message.peer)
                                                           : std::make_pair(message.peer, (int)r);
                EXPECT_NE(message.peer, (int)r);
                auto &list = message.is_send ? sent[pair] : received[pair];
                list.push_back(t); /* in the same tick, so that one call has both */
                list.push_back(message.bytes);
            }
        }
    }
    EXPECT_TRUE(sent == received);
}

/* The host reads a packed chunk's length when it sends it: it has been packed there, or has come, and it is
 * where the data are. To unpack what was packed there it is read a tick later: kernels are launched first. */
void check_packed(const tw_gpu_plan_t &plan)
{
    std::map<size_t, size_t> place;                    /* of a cell */
    std::map<size_t, size_t> sent_from, unpacked_from; /* cell: the first tick in which that may be */
    auto may = [](const std::map<size_t, size_t> &from, size_t packed, size_t t) {
        const auto found = from.find(packed);
        return found != from.end() && found->second <= t;
    };
    auto is_at = [&](size_t packed, size_t at) {
        EXPECT_LT(packed, plan.n_cells);
        EXPECT_EQ(place.emplace(packed, at).first->second, at);
    };
    for (size_t t = 0; t < plan.n_ticks; t++) {
        const tw_gpu_tick_t &tick = plan.ticks[t];
        for (size_t i = 0; i < tick.n_computes; i++) {
            const tw_gpu_compute_t &compute = plan.computes[tick.first_compute + i];
            if (compute.out == TW_FORM_PACKED) {
                is_at(compute.packed, compute.to);
                sent_from[compute.packed] = t + 1;
                unpacked_from[compute.packed] = t + 2;
            } else if (compute.in == TW_FORM_PACKED) {
                is_at(compute.packed, compute.from);
                EXPECT_TRUE(may(unpacked_from, compute.packed, t)) << t;
            }
        }
        for (size_t i = 0; i < tick.n_messages; i++) {
            const tw_gpu_message_t &message = plan.messages[tick.first_message + i];
            if (message.packed == TW_GPU_NOT_PACKED) {
                continue;
            }
            is_at(message.packed, message.at);
            EXPECT_TRUE(!message.is_send || may(sent_from, message.packed, t)) << t;
            if (!message.is_send) {
                sent_from[message.packed] = unpacked_from[message.packed] = t + 1;
            }
        }
    }
}

using GpuPlan = tw::Fixture;

TEST_F(GpuPlan, WhatOverlapsIsApart)
{
    for (const std::vector<int> &grid : grids) {
        for (tw_coll_op_t op : ops) {
            for (const char *codec : {"", "int8:block=32", "int4:block=64", "lossless", "ecdq"}) {
                for (bool flat : {false, true}) {
                    for (size_t n : {0, 1, 5000, 40011}) {
                        bool inner = *codec != '\0' && op != TW_COLL_ALLGATHER && n % 2 == 1;
                        tw::Case c = make_case(op, codec, inner ? "int8:block=96" : "", {n, 7, 0, 513});
                        Plans plans(c, tw::nodes_of(grid), flat, 2048);
                        check_messages(plans);
                        for (const tw_gpu_plan_t &plan : plans.all) {
                            check_memory(plans, plan);
                            check_packed(plan);
                        }
                    }
                }
            }
        }
    }
}

/* The workspace is that of a few rounds, however large the tensor. */
TEST_F(GpuPlan, WorkspaceDoesNotGrowWithTheTensor)
{
    for (tw_coll_op_t op : ops) {
        Plans small(make_case(op, "int8", "", {1 << 20}), tw::nodes_of({2, 2}), false, 4096);
        Plans large(make_case(op, "int8", "", {1 << 24}), tw::nodes_of({2, 2}), false, 4096);
        EXPECT_GT(large.all[0].n_rounds, 8 * small.all[0].n_rounds);
        EXPECT_EQ(large.all[0].workspace_bytes, small.all[0].workspace_bytes);
        EXPECT_LE(large.all[0].n_slots, 7u);
    }
}

/* One tensor of one round takes a tick for each stage and nothing more. */
TEST_F(GpuPlan, FewTicksForSmallTensors)
{
    auto ticks = [](tw_coll_op_t op, const std::vector<int> &grid) {
        Plans plans(make_case(op, "int8", "", {1000}), tw::nodes_of(grid), false, 1 << 20);
        return plans.all[0].n_ticks;
    };
    EXPECT_EQ(ticks(TW_COLL_ALLGATHER, {1}), 2u);          /* encode, decode */
    EXPECT_EQ(ticks(TW_COLL_ALLGATHER, {1, 1}), 3u);       /* encode, rail, decode */
    EXPECT_EQ(ticks(TW_COLL_ALLGATHER, {2, 2}), 4u);       /* and inside */
    EXPECT_EQ(ticks(TW_COLL_REDUCE_SCATTER, {1, 1}), 3u);  /* encode, rail, sum */
    EXPECT_EQ(ticks(TW_COLL_REDUCE_SCATTER, {2, 2}), 5u);  /* pack, inside, sum, rail, sum */
    EXPECT_EQ(ticks(TW_COLL_ALLREDUCE, {2, 2}), 8u);       /* and rail, inside, decode */
    EXPECT_EQ(ticks(TW_COLL_ALLREDUCE, {4}), 5u);          /* no rails */
    EXPECT_EQ(ticks(TW_COLL_ALLREDUCE, {1, 1, 1, 1}), 5u); /* no mates */
}

TEST_F(GpuPlan, ManyRanks)
{
    std::vector<int> grid(9, 8); /* 72 ranks */
    for (tw_coll_op_t op : ops) {
        Plans plans(make_case(op, "int4", op == TW_COLL_ALLGATHER ? "" : "int8", {3 << 20, 11}),
                    tw::nodes_of(grid), false, 64 << 10);
        check_messages(plans);
        check_memory(plans, plans.all[71]);
    }
}

} // namespace
