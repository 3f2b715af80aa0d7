/* Deterministic communicators: a tensor's result has the same bits alone and in any bucket, whatever the
 * timing and the chunks, and an all-reduce has those of the reduce-scatter followed by the all-gather. */
#include <chrono>
#include <cstring>
#include <map>
#include <random>

#include "collectives/communicator.h"
#include "collectives/model/model.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Bits = std::vector<uint16_t>;

/** What is reduced: a tensor's elements differ from rank to rank. */
struct Kind {
    tw_type_t type;
    const char *codec; /**< "": plain */
    tw_coll_reduction_t reduction;
};

const Kind kinds[] = {
    {TW_TYPE_BF16, "", TW_COLL_SUM},
    {TW_TYPE_FP16, "", TW_COLL_MEAN},
    {TW_TYPE_BF16, "int8", TW_COLL_MEAN},
    {TW_TYPE_BF16, "int4:stochastic", TW_COLL_SUM},
};

class Deterministic : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_DETERMINISTIC", "y");
        set_env("TW_COLL_MODEL", "measure"); /* which it does not */
    }

    /** Elements of a tensor on a rank: bf16 or fp16 of about 1 to 2, both signs. */
    static Bits make_tensor(const Kind &kind, uint32_t tensor, int rank, size_t n)
    {
        std::mt19937 random(tensor * 977 + (uint32_t)rank);
        Bits bits(n);
        for (uint16_t &b : bits) {
            b = kind.type == TW_TYPE_BF16 ? (uint16_t)(0x3f80 | (random() & 0x807f))
                                          : (uint16_t)(0x3c00 | (random() & 0x83ff));
        }
        return bits;
    }

    /** The results of an operation on tensors in one bucket, as rank 0 has them: all of a tensor. A
     *  reduce-scatter is followed by an all-gather. */
    static std::vector<Bits> run_bucket(tw::World &world, const Kind &kind, bool in_two,
                                        const std::vector<uint32_t> &tensors,
                                        const std::vector<size_t> &sizes, uint32_t delay_seed = 0)
    {
        std::vector<std::vector<Bits>> results((size_t)world.size());
        world.run([&](int rank) {
            std::mt19937 random(delay_seed + (uint32_t)rank);
            auto delay = [&] {
                if (delay_seed > 0) {
                    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
                }
            };
            tw_quant_codec_t codec;
            std::vector<Bits> in, out;
            std::vector<tw_coll_segment_t> segments(tensors.size());
            for (size_t t = 0; t < tensors.size(); t++) {
                in.push_back(make_tensor(kind, tensors[t], rank, sizes[t]));
                out.emplace_back(sizes[t]);
            }
            for (size_t t = 0; t < tensors.size(); t++) {
                size_t first = tw_coll_shard_offset(sizes[t], world.size(), rank);
                segments[t] = {};
                segments[t].src = in[t].data();
                segments[t].dst = in_two ? out[t].data() + first : out[t].data();
                segments[t].n_elems = sizes[t];
                segments[t].tensor = tensors[t];
            }
            tw_coll_args_t args = {};
            args.op = in_two ? TW_COLL_REDUCE_SCATTER : TW_COLL_ALLREDUCE;
            args.type = kind.type;
            args.reduction = kind.reduction;
            args.segments = segments.data();
            args.n_segments = segments.size();
            args.seed = 7;
            if (kind.codec[0] != '\0') {
                ASSERT_EQ(tw_quant_codec_parse(kind.codec, &codec), TW_OK);
                args.codec = &codec;
            }
            delay();
            ASSERT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
            if (in_two) {
                for (size_t t = 0; t < tensors.size(); t++) {
                    segments[t].src = nullptr;
                    segments[t].dst = out[t].data();
                }
                args.op = TW_COLL_ALLGATHER;
                delay();
                ASSERT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
            }
            results[(size_t)rank] = out;
        });
        for (int r = 1; r < world.size(); r++) {
            EXPECT_EQ(results[(size_t)r], results[0]) << r;
        }
        return results[0];
    }

    /** Tensors in buckets of random neighbours and orders, with random delays; how many results differ from
     *  those alone. */
    static int count_differences(const std::vector<int> &grid)
    {
        tw::World world(tw::nodes_of(grid));
        std::mt19937 random(11);
        int differences = 0;
        for (const Kind &kind : kinds) {
            std::map<uint32_t, std::pair<size_t, Bits>> alone;
            for (uint32_t t = 1; t <= 5; t++) {
                size_t n = t == 1 ? 4096 : 1 + random() % (t == 2 ? 200000 : 9000);
                alone[t] = {n, run_bucket(world, kind, false, {t}, {n})[0]};
            }
            for (int i = 0; i < 4; i++) {
                std::vector<uint32_t> tensors = {1};
                for (uint32_t t = 2; t <= 5; t++) {
                    tensors.insert(tensors.begin() + (long)(random() % (tensors.size() + 1)), t);
                }
                tensors.resize(2 + random() % 4);
                std::vector<size_t> sizes;
                for (uint32_t t : tensors) {
                    sizes.push_back(alone[t].first);
                }
                std::vector<Bits> got =
                    run_bucket(world, kind, i % 2 == 1, tensors, sizes, (uint32_t)random() | 1);
                for (size_t t = 0; t < tensors.size(); t++) {
                    differences += got[t] != alone[tensors[t]].second;
                }
            }
        }
        return differences;
    }
};

TEST_F(Deterministic, SameBitsInAnyBucket)
{
    for (const std::vector<int> &grid :
         {std::vector<int>{1, 1, 1, 1}, {2, 2}, {4}, {2, 1, 1}, {3, 2}, {1, 1, 1}}) {
        EXPECT_EQ(count_differences(grid), 0)
            << grid.size() << " nodes, " << grid[0] << " ranks on the first";
    }
}

/* What the mode is for: the test above would fail without it. */
TEST_F(Deterministic, ElsewhereTheBucketMatters)
{
    set_env("TW_COLL_DETERMINISTIC", "n");
    set_env("TW_COLL_MODEL", "inter:beta=100mbit,alpha=10us,turn=10us");
    EXPECT_GT(count_differences({1, 1, 1, 1}), 0);
    EXPECT_GT(count_differences({2, 2}), 0);
}

/* Nor do the chunks, which follow the size and TW_COLL_CHUNK. */
TEST_F(Deterministic, ChunksDoNotMatter)
{
    for (const Kind &kind : kinds) {
        std::vector<Bits> want;
        for (const char *chunk : {"0", "4K", "1M"}) {
            set_env("TW_COLL_CHUNK", chunk);
            tw::World world(tw::nodes_of({2, 2}));
            std::vector<Bits> got = run_bucket(world, kind, false, {3, 4}, {40000, 1001});
            want = want.empty() ? got : want;
            EXPECT_EQ(got, want) << chunk;
        }
    }
}

class DeterministicChoice : public Deterministic
{
  protected:
    static tw_coll_choice_t choose(const tw_coll_t *coll, tw_coll_op_t op, const char *codec_text, size_t n,
                                   int force = 0)
    {
        tw_quant_codec_t codec;
        tw_coll_segment_t segment = {};
        segment.n_elems = n;
        tw_coll_args_t args = {};
        args.op = op;
        args.type = TW_TYPE_BF16;
        args.segments = &segment;
        args.n_segments = 1;
        args.force_codec = force;
        if (codec_text[0] != '\0') {
            EXPECT_EQ(tw_quant_codec_parse(codec_text, &codec), TW_OK);
            args.codec = &codec;
        }
        tw_coll_choice_t choice = {};
        EXPECT_EQ(tw_coll_choose((tw_coll_t *)(uintptr_t)coll, &args, n, &choice), TW_OK);
        return choice;
    }
    static tw_coll_cost_t cost_of(const tw_coll_t *coll, size_t algo, tw_coll_op_t op, double bytes)
    {
        tw_coll_args_t args = {};
        args.op = op;
        args.type = TW_TYPE_BF16;
        tw_case_t c = {};
        c.model = &coll->model;
        c.topo = &coll->topo;
        c.args = &args;
        c.bytes = c.encoded_bytes = c.inner_bytes = bytes;
        c.chunk_bytes = 1 << 20;
        const tw_flows_t *flows = &tw_algo_get(algo)->flows;
        tw_coll_cost_t cost;
        tw_traffic_t traffic;
        EXPECT_EQ(tw_traffic_read(c.topo, flows, 0, 0, &traffic), TW_OK);
        tw_cost_read(&c, flows, &traffic, &cost);
        return cost;
    }
};

/* One algorithm for all sizes, none of which has fewer inter-node bytes among those where the owner does not
 * matter. */
TEST_F(DeterministicChoice, TheFewestInterNodeBytesAtAnySize)
{
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1, 1}, {2, 2}, {4}, {3, 2, 1}}) {
        tw::World world(tw::nodes_of(grid));
        const tw_coll_t *coll = world.coll(0);
        for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
            for (const char *codec : {"", "int8"}) {
                size_t algo = choose(coll, op, codec, 1).algo;
                for (size_t n : {100, 10000, 1000000, 100000000}) {
                    EXPECT_EQ(choose(coll, op, codec, n).algo, algo) << n;
                }
                EXPECT_FALSE(tw_algo_get(algo)->owner_matters);
                EXPECT_EQ(tw_algo_get(algo)->info.quantized, codec[0] != '\0' && grid.size() > 1);
                for (size_t i = 0; codec[0] == '\0' && tw_algo_get(i) != nullptr; i++) {
                    const tw_algo_t *other = tw_algo_get(i);
                    if (other->info.op == op && !other->info.quantized && !other->owner_matters) {
                        EXPECT_LE(cost_of(coll, algo, op, 1e6).inter_bytes,
                                  cost_of(coll, i, op, 1e6).inter_bytes * 1.001)
                            << other->info.name;
                    }
                }
            }
        }
    }
}

/* Nothing is measured, and no constants decline a codec: only where the ranks are does. */
TEST_F(DeterministicChoice, OnlyOneNodeDeclines)
{
    for (const char *model :
         {"measure", "inter:beta=400gbit;node:beta=400gbit;codec:encode=1G,decode=1G", "inter:beta=1mbit"}) {
        set_env("TW_COLL_MODEL", model);
        tw::World nodes(tw::nodes_of({1, 1})), node(tw::nodes_of({3}));
        for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
            for (size_t n : {1, 1000, 10000000}) {
                EXPECT_TRUE(tw_algo_get(choose(nodes.coll(0), op, "int8", n).algo)->info.quantized) << model;
                tw_coll_choice_t choice = choose(node.coll(0), op, "int8", n);
                EXPECT_FALSE(tw_algo_get(choice.algo)->info.quantized) << model;
                EXPECT_STREQ(choice.reason, "all ranks are on one node");
                EXPECT_TRUE(tw_algo_get(choose(node.coll(0), op, "int8", n, 1).algo)->info.quantized);
            }
        }
    }
}

TEST_F(DeterministicChoice, MeasuresNothing)
{
    tw::World world(tw::nodes_of({1, 1}));
    tw_coll_model_t dflt;
    tw_coll_model_default(&dflt);
    EXPECT_EQ(memcmp(&world.coll(0)->model, &dflt, sizeof(dflt)), 0);
}

} // namespace
