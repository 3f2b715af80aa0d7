/* Means that do not overflow, and how far sums may be from exact ones: every algorithm, every world. */
#include <cmath>

#include "collectives/communicator.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

struct Ask {
    const tw_coll_algo_info_t *info;
    tw_type_t type;
    tw_coll_reduction_t reduction;
    bool plain_segment; /* of an operation with a codec */
};

constexpr size_t N = 2000;

/* What every rank gets: the whole of an all-reduce, the own shard of a reduce-scatter where it belongs, 0
 * elsewhere. */
std::vector<std::vector<float>> run(tw::World &world, const Ask &ask, float (*value)(int rank, size_t elem))
{
    std::vector<std::vector<float>> all((size_t)world.size(), std::vector<float>(N));
    world.run([&](int rank) {
        size_t bytes = tw_type_bytes(ask.type), w = (size_t)world.size(), r = (size_t)rank;
        std::vector<float> values(N);
        std::vector<char> src(N * bytes), dst(N * bytes);
        for (size_t i = 0; i < N; i++) {
            values[i] = value(rank, i);
        }
        tw_convert_from_fp32(ask.type, values.data(), 1, src.data(), N);
        bool scatters = ask.info->op == TW_COLL_REDUCE_SCATTER;
        size_t first = scatters ? tw_coll_shard_offset(N, (int)w, rank) : 0;
        tw_coll_segment_t segment = {};
        segment.src = src.data();
        segment.dst = dst.data() + first * bytes;
        segment.n_elems = N;
        segment.unquantized = ask.plain_segment;
        tw_quant_codec_t codec;
        EXPECT_EQ(tw_quant_codec_parse(ask.info->lossless_only ? "lossless" : "int8", &codec), TW_OK);
        tw_coll_args_t args = {};
        args.op = ask.info->op;
        args.type = ask.type;
        args.segments = &segment;
        args.n_segments = 1;
        args.reduction = ask.reduction;
        args.algo = ask.info->name;
        args.codec = ask.info->quantized ? &codec : nullptr;
        args.force_codec = 1;
        EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        tw_convert_to_fp32(ask.type, dst.data(), all[r].data(), N);
    });
    return all;
}

void for_each_reduction(const std::function<void(const Ask &)> &body, tw_type_t type,
                        tw_coll_reduction_t reduction)
{
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; (info = tw_coll_algo_get(TW_MEM_HOST, i)) != nullptr; i++) {
        if (info->op == TW_COLL_REDUCE_SCATTER || info->op == TW_COLL_ALLREDUCE) {
            body({info, type, reduction, false});
            if (info->quantized) {
                body({info, type, reduction, true});
            }
        }
    }
}

bool owns(const Ask &ask, int world, int rank, size_t elem)
{
    size_t first = tw_coll_shard_offset(N, world, rank);
    return ask.info->op == TW_COLL_ALLREDUCE ||
           (elem >= first && elem < first + tw_coll_shard_elems(N, world, rank));
}

const std::vector<std::vector<int>> grids = {
    {1}, {1, 1}, {1, 1, 1}, {4}, {2, 2}, {3, 1, 2}, {1, 1, 1, 1, 1, 1, 1, 1}};

using Means = tw::Fixture;

/* Sums of four times 40000 are beyond fp16, their mean is not; nor is that of the largest number. */
TEST_F(Means, OfFp16DoNotOverflow)
{
    set_env("TW_COLL_CHUNK", "512");
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        for_each_reduction(
            [&](const Ask &ask) {
                auto got = run(world, ask, [](int rank, size_t elem) {
                    return elem % 3 == 0   ? 40000.0f
                           : elem % 3 == 1 ? -65504.0f
                           : rank % 2      ? 64000.0f
                                           : -64000.0f;
                });
                int w = world.size();
                /* each of up to W + 1 roundings of numbers up to the largest one: half a unit of 32; int8: of
                 * a step */
                bool quantized = ask.info->quantized && !ask.plain_segment;
                double bound = quantized ? 65504.0 / 127 * 3 : 16.0 * (w + 1);
                for (int r = 0; r < w; r++) {
                    for (size_t i = 0; i < N; i++) {
                        double exact = i % 3 == 0 ? 40000 : i % 3 == 1 ? -65504 : -64000.0 * (w % 2) / w;
                        if (owns(ask, w, r, i)) {
                            ASSERT_NEAR(got[(size_t)r][i], exact, bound)
                                << tw_coll_op_name(ask.info->op) << " " << ask.info->name << " rank " << r
                                << " of " << w << ", element " << i;
                        }
                    }
                }
            },
            TW_TYPE_FP16, TW_COLL_MEAN);
    }
}

/* A sum that is too large for fp16 shows as one: whoever scales a loss looks for it. */
TEST_F(Means, SumsBeyondFp16AreNotFinite)
{
    set_env("TW_COLL_CHUNK", "512");
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        int w = world.size();
        for_each_reduction(
            [&](const Ask &ask) {
                auto got = run(world, ask, [](int, size_t) { return 40000.0f; });
                for (int r = 0; r < w; r++) {
                    for (size_t i = 0; i < N; i++) {
                        if (owns(ask, w, r, i)) {
                            ASSERT_EQ(std::isfinite(got[(size_t)r][i]), w == 1)
                                << tw_coll_op_name(ask.info->op) << " " << ask.info->name << " rank " << r
                                << " of " << w << ", element " << i << ": " << got[(size_t)r][i];
                        }
                    }
                }
            },
            TW_TYPE_FP16, TW_COLL_SUM);
    }
}

/* The error of a plain sum of W numbers that is rounded k times on its way: at most ((1 + u)^k - 1) * sum
 * |x|, where u is half a unit in the last place (2^-8 in bf16) and k is W - 1 for the ring, log2(W) rounded
 * up for the halving, the number of nodes for the hierarchical one, the levels of a tree and 1 for the direct
 * ones. */
TEST_F(Means, SumsOfBf16AreWithinTheFormula)
{
    set_env("TW_COLL_CHUNK", "512");
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        int w = world.size(), n_nodes = (int)grid.size();
        for_each_reduction(
            [&](const Ask &ask) {
                std::string name = ask.info->name;
                if (ask.info->quantized) {
                    return;
                }
                int k = 1;
                if (name == "ring") {
                    k = std::max(w - 1, 1);
                } else if (name == "hierarchical") {
                    k = n_nodes;
                } else if (name == "halving" || name == "halving_doubling") {
                    k = std::max((int)std::ceil(std::log2(w)), 1);
                } else if (name == "binomial" || name == "double_tree") {
                    k = (int)std::ceil(std::log2(n_nodes)) + 1;
                } else if (name == "torus_2d" || name == "torus_3d") {
                    k = std::max(w - 1, 1); /* fewer, but where W is a prime */
                }
                auto value = [](int rank, size_t elem) {
                    return std::ldexp((float)(128 + (elem * 37 + (size_t)rank * 61) % 128), -7);
                };
                auto got = run(world, ask, value);
                double u = std::ldexp(1, -8), fp32 = w * std::ldexp(1, -24);
                for (int r = 0; r < w; r++) {
                    for (size_t i = 0; i < N; i++) {
                        double exact = 0;
                        for (int q = 0; q < w; q++) {
                            exact += value(q, i);
                        }
                        if (owns(ask, w, r, i)) {
                            ASSERT_NEAR(got[(size_t)r][i], exact, exact * (std::pow(1 + u, k) - 1 + fp32))
                                << tw_coll_op_name(ask.info->op) << " " << name << " of " << w;
                        }
                    }
                }
            },
            TW_TYPE_BF16, TW_COLL_SUM);
    }
}

/* Only a mean of fp16 whose factor makes it no larger has a limit. */
TEST(MeansLimit, IsOfMeansThatCannotOverflow)
{
    const struct {
        tw_coll_reduction_t reduction;
        tw_type_t type;
        float factor, limit;
    } cases[] = {{TW_COLL_MEAN, TW_TYPE_FP16, 1.0F, 65504.0F},
                 {TW_COLL_MEAN, TW_TYPE_FP16, -1.0F, 65504.0F},
                 {TW_COLL_MEAN, TW_TYPE_FP16, 0.5F, 65504.0F},
                 {TW_COLL_MEAN, TW_TYPE_FP16, std::nextafter(1.0F, 2.0F), INFINITY},
                 {TW_COLL_MEAN, TW_TYPE_FP16, -1.5F, INFINITY},
                 {TW_COLL_SUM, TW_TYPE_FP16, 1.0F, INFINITY},
                 {TW_COLL_SUM, TW_TYPE_FP16, 0.5F, INFINITY},
                 {TW_COLL_MEAN, TW_TYPE_BF16, 1.0F, INFINITY},
                 {TW_COLL_MEAN, TW_TYPE_FP32, 0.5F, INFINITY}};
    for (const auto &c : cases) {
        tw_coll_args_t args = {};
        args.reduction = c.reduction;
        args.type = c.type;
        args.factor = c.factor;
        EXPECT_EQ(tw_coll_limit(&args), c.limit)
            << c.reduction << " " << tw_type_name(c.type) << " " << c.factor;
    }
}

} // namespace
