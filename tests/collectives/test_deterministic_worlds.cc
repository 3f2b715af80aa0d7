/* Deterministic communicators in random worlds: whatever was asked for, in whatever mixture of segments, an
 * all-reduce has the bits of the reduce-scatter followed by the all-gather, a segment those that it has
 * alone, and TW_COLL_MODEL changes none. */
#include <algorithm>
#include <cmath>
#include <random>

#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Bits = std::vector<uint8_t>;

struct Segment {
    size_t n_elems;
    uint32_t tensor;
    std::string codec; /**< "": the operation's; "plain"; or its own */
};

/** What all ranks ask for. */
struct Ask {
    tw_type_t type;
    tw_coll_reduction_t reduction;
    float factor;
    std::string codec, inner; /**< "": none */
    bool force;
    std::vector<Segment> segments;
    const char *algo = nullptr; /**< chosen */
};

std::string pick(std::mt19937 &random, const std::vector<std::string> &from)
{
    return from[random() % from.size()];
}

/** Ranks on nodes: some of one rank, some of several, perhaps taking turns. */
std::vector<int> random_world(std::mt19937 &random)
{
    std::vector<int> grid(1 + random() % 4);
    for (int &n : grid) {
        n = 1 + (int)(random() % 3);
    }
    std::vector<int> nodes = tw::nodes_of(grid);
    nodes.resize(std::min(nodes.size(), (size_t)7));
    if (random() % 3 == 0) {
        std::shuffle(nodes.begin(), nodes.end(), random);
    }
    return nodes;
}

Ask random_ask(std::mt19937 &random)
{
    Ask ask = {};
    ask.type = std::vector<tw_type_t>{TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32}[random() % 3];
    ask.reduction = random() % 2 ? TW_COLL_MEAN : TW_COLL_SUM;
    ask.factor = random() % 2 ? 1.0f : 0.3f;
    ask.codec = pick(random, {"", "int8", "int4", "int4:stochastic,hadamard", "int8:block=32"});
    ask.inner = ask.codec.empty() ? "" : pick(random, {"", "", "int8"});
    ask.force = random() % 4 == 0;
    ask.segments.resize(1 + random() % 4);
    for (Segment &segment : ask.segments) {
        segment.n_elems = random() % 4 == 0 ? random() % 9 : random() % 3000;
        segment.tensor = (uint32_t)(&segment - ask.segments.data()) + 1;
        segment.codec = ask.codec.empty() ? "" : pick(random, {"", "plain", "int8:block=64"});
    }
    return ask;
}

/** The operation that a segment alone is. */
Ask alone(const Ask &ask, const Segment &segment)
{
    Ask one = ask;
    one.segments = {segment};
    if (segment.codec == "plain") {
        one.codec = one.inner = "";
    } else if (!segment.codec.empty()) {
        one.codec = segment.codec;
    }
    one.segments[0].codec = "";
    return one;
}

class DeterministicWorlds : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_DETERMINISTIC", "y");
    }

    static tw_quant_codec_t parse(const std::string &text)
    {
        tw_quant_codec_t codec = {};
        EXPECT_EQ(tw_quant_codec_parse(text.c_str(), &codec), TW_OK) << text;
        return codec;
    }

    /** Of many magnitudes and both signs: sums have more digits than the type. */
    static Bits make_tensor(const Ask &ask, uint32_t tensor, int rank, size_t n)
    {
        std::mt19937 random(tensor * 977 + (uint32_t)rank);
        std::vector<float> values(n);
        for (float &value : values) {
            value = std::ldexp((float)(random() % 8192 + 4096), -(int)(random() % 12) - 12);
            value = random() % 2 ? value : -value;
        }
        Bits bits(n * tw_type_bytes(ask.type));
        tw_convert_from_fp32(ask.type, values.data(), 1, bits.data(), n);
        return bits;
    }

    /** The whole of each segment as rank 0 has it; in two: reduced and scattered, then gathered. quantized:
     *  of all that ran. */
    static std::vector<Bits> run(tw::World &world, const Ask &ask, bool in_two, int *quantized)
    {
        std::vector<std::vector<Bits>> results((size_t)world.size());
        std::vector<int> kinds((size_t)world.size(), -1);
        world.run([&](int rank) {
            size_t n_segments = ask.segments.size(), elem = tw_type_bytes(ask.type);
            std::vector<Bits> in, out;
            std::vector<tw_quant_codec_t> own(n_segments);
            std::vector<tw_coll_segment_t> segments(n_segments);
            for (size_t s = 0; s < n_segments; s++) {
                const Segment &what = ask.segments[s];
                size_t first = in_two ? tw_coll_shard_offset(what.n_elems, world.size(), rank) : 0;
                in.push_back(make_tensor(ask, what.tensor, rank, what.n_elems));
                out.emplace_back(what.n_elems * elem + 1);
                segments[s] = {};
                segments[s].src = in[s].data();
                segments[s].dst = out[s].data() + first * elem;
                segments[s].n_elems = what.n_elems;
                segments[s].tensor = what.tensor;
                segments[s].unquantized = what.codec == "plain";
                if (!what.codec.empty() && what.codec != "plain") {
                    own[s] = parse(what.codec);
                    segments[s].codec = &own[s];
                }
            }
            tw_quant_codec_t codec = parse(ask.codec.empty() ? "int8" : ask.codec);
            tw_quant_codec_t inner = parse(ask.inner.empty() ? "int8" : ask.inner);
            tw_coll_args_t args = {};
            args.op = in_two ? TW_COLL_REDUCE_SCATTER : TW_COLL_ALLREDUCE;
            args.type = ask.type;
            args.reduction = ask.reduction;
            args.factor = ask.factor;
            args.segments = segments.data();
            args.n_segments = n_segments;
            args.seed = 7;
            args.algo = ask.algo;
            args.codec = ask.codec.empty() ? nullptr : &codec;
            args.inner_codec = ask.inner.empty() ? nullptr : &inner;
            args.force_codec = ask.force;
            ASSERT_EQ(world.run(rank, &args), TW_OK);
            kinds[(size_t)rank] = world.plan(rank).quantized;
            if (in_two) {
                for (size_t s = 0; s < n_segments; s++) {
                    segments[s].src = nullptr;
                    segments[s].dst = out[s].data();
                }
                args.op = TW_COLL_ALLGATHER;
                ASSERT_EQ(world.run(rank, &args), TW_OK);
                EXPECT_EQ(world.plan(rank).quantized, kinds[(size_t)rank]);
            }
            results[(size_t)rank] = out;
        });
        for (int r = 1; r < world.size(); r++) {
            EXPECT_EQ(results[(size_t)r], results[0]) << r;
            EXPECT_EQ(kinds[(size_t)r], kinds[0]) << r;
        }
        *quantized = kinds[0];
        return results[0];
    }

    /** All that is promised of one operation; its bits. */
    static std::vector<Bits> check(tw::World &world, const Ask &ask)
    {
        int together, apart, one;
        std::vector<Bits> want = run(world, ask, false, &together);
        EXPECT_EQ(run(world, ask, true, &apart), want) << "in two operations";
        EXPECT_EQ(apart, together);
        EXPECT_EQ(together, !ask.codec.empty() && (tw_coll_n_nodes(world.coll(0)) > 1 || ask.force));
        for (size_t s = 0; s < want.size(); s++) {
            EXPECT_EQ(run(world, alone(ask, ask.segments[s]), false, &one)[0], want[s])
                << "segment " << s << " alone, codec " << ask.segments[s].codec;
        }
        return want;
    }

    static std::string describe(const std::vector<int> &nodes, const Ask &ask)
    {
        std::string text = "nodes of the ranks:";
        for (int node : nodes) {
            text += " " + std::to_string(node);
        }
        text += std::string("; ") + tw_type_name(ask.type) +
                (ask.reduction == TW_COLL_MEAN ? " mean" : " sum") + " factor " + std::to_string(ask.factor) +
                " codec " + ask.codec + " inner " + ask.inner + (ask.force ? " forced" : "");
        for (const Segment &segment : ask.segments) {
            text += " [" + std::to_string(segment.n_elems) + " " + segment.codec + "]";
        }
        return text;
    }
};

const char *const models[] = {
    "measure",
    "inter:alpha=20us,beta=10gbit;node:beta=40gbit;codec:encode=2G,decode=2G",
    "inter:alpha=1us,beta=100gbit;node:alpha=50us,beta=1gbit;codec:encode=1G,decode=1G",
};

/* The world is made again with each model. */
TEST_F(DeterministicWorlds, NothingButTheQuestionAndTheTopologyCounts)
{
    for (uint32_t seed = 1; seed <= 40; seed++) {
        std::mt19937 random(seed);
        std::vector<int> nodes = random_world(random);
        std::vector<Ask> asks = {random_ask(random), random_ask(random)};
        std::vector<std::vector<Bits>> first;
        for (const char *model : models) {
            set_env("TW_COLL_MODEL", model);
            tw::World world(nodes);
            for (size_t i = 0; i < asks.size(); i++) {
                SCOPED_TRACE("seed " + std::to_string(seed) + ", " + model + ", " + describe(nodes, asks[i]));
                std::vector<Bits> got = check(world, asks[i]);
                if (first.size() == i) {
                    first.push_back(got);
                }
                EXPECT_EQ(got, first[i]) << "with another model";
            }
        }
        if (HasFailure()) {
            return;
        }
    }
}

/* As it was found: the constants of a fast network, and enough elements for quantizing to seem worth it in
 * one operation alone. */
TEST_F(DeterministicWorlds, ConstantsOfAFastNetwork)
{
    set_env("TW_COLL_MODEL", models[1]);
    tw::World world(tw::nodes_of({1, 1, 1, 1, 1}));
    Ask ask = {TW_TYPE_BF16, TW_COLL_SUM, 1.0f, "int8", "", false, {{20480, 1, ""}}};
    check(world, ask);
}

/* A plain segment beside a quantized one is multiplied and rounded as often as alone: by 1 / W and 0.3 at
 * once in fp16, and not on its way where there is one node. Many elements, as few of them are near enough to
 * the middle of two numbers. */
TEST_F(DeterministicWorlds, PlainBesideQuantized)
{
    tw::World flat(tw::nodes_of({1, 1, 1})), node(tw::nodes_of({3}));
    Ask mean = {TW_TYPE_FP16, TW_COLL_MEAN, 0.3f, "int8", "", true, {{200000, 1, "plain"}, {100, 2, ""}}};
    check(flat, mean);
    Ask sum = {TW_TYPE_BF16, TW_COLL_SUM, 0.3f, "int8", "", true, {{1000, 1, "plain"}, {100, 2, ""}}};
    for (const char *algo : {"two_hop", "one_hop"}) {
        int quantized;
        sum.algo = algo;
        Ask plain = alone(sum, sum.segments[0]);
        plain.algo = "two_hop";
        EXPECT_EQ(run(node, sum, false, &quantized)[0], run(node, plain, false, &quantized)[0]) << algo;
    }
}

/* Two nodes, one of a single rank: as many bytes leave the busier one whether sums are made inside it first
 * or not. */
TEST_F(DeterministicWorlds, ANodeOfOneRank)
{
    for (const char *model : models) {
        set_env("TW_COLL_MODEL", model);
        for (const std::vector<int> &grid : {std::vector<int>{2, 1}, {1, 3}}) {
            tw::World world(tw::nodes_of(grid));
            Ask ask = {TW_TYPE_BF16, TW_COLL_SUM, 1.0f, "", "", false, {{1000, 1, ""}}};
            check(world, ask);
            world.run([&](int rank) {
                Bits in = make_tensor(ask, 1, rank, 1000), out(2000);
                tw_coll_segment_t segment = {};
                segment.src = in.data();
                segment.dst = out.data();
                segment.n_elems = 1000;
                tw_coll_args_t args = {};
                args.op = TW_COLL_ALLREDUCE;
                args.type = TW_TYPE_BF16;
                args.segments = &segment;
                args.n_segments = 1;
                ASSERT_EQ(world.run(rank, &args), TW_OK);
                EXPECT_STREQ(world.plan(rank).algo, "two_hop");
            });
        }
    }
}

} // namespace
