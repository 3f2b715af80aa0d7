/* Gathers and reductions over all ranks, between primary parts and whole units. */
#include "tests/hpz/replicas.h"

namespace
{

using HpzWorld = tw::Fixture;

const std::vector<std::vector<int>> shapes = {{1},    {3},       {1, 1, 1}, {2, 2},
                                              {3, 3}, {2, 2, 2}, {3, 1},    {1, 2, 2}};

TEST_F(HpzWorld, GatherPutsEveryElementInItsPlace)
{
    for (const std::vector<int> &shape : shapes) {
        tw::on_ranks(shape, tw::tensors_of(97), {}, [](tw::Rank &rank, int) {
            for (int u = 0; u < rank.units(); u++) {
                size_t first, n = tw_hpz_layout_tensors(rank.layout(), u, &first);
                std::vector<float> full(tw_hpz_full_elems(rank.layout(), u), -1);
                tw_coll_args_t args;
                tw_hpz_gather_args(rank.hpz, u, TW_TYPE_FP32, rank.masters[(size_t)u].data(), full.data(),
                                   &args);
                ASSERT_EQ(tw_coll_run(rank.hpz->params.coll, &args), TW_OK);
                for (size_t t = first; t < first + n; t++) {
                    tw_hpz_piece_t whole = tw_hpz_full_piece(rank.layout(), t);
                    for (size_t e = 0; e < whole.n_elems; e++) {
                        ASSERT_EQ(full[whole.offset + e], tw::Rank::weight(t, e)) << t << " " << e;
                    }
                }
            }
        });
    }
}

TEST_F(HpzWorld, ReduceLeavesTheSumAtItsOwner)
{
    for (const std::vector<int> &shape : shapes) {
        tw::on_ranks(shape, tw::tensors_of(97), {}, [](tw::Rank &rank, int r) {
            int world = tw_coll_size(rank.hpz->params.coll);
            for (int u = 0; u < rank.units(); u++) {
                std::vector<float> full(tw_hpz_full_elems(rank.layout(), u));
                for (size_t i = 0; i < full.size(); i++) {
                    full[i] = (float)(i * 64 + (size_t)r);
                }
                tw_coll_args_t args;
                tw_hpz_reduce_args(rank.hpz, u, TW_TYPE_FP32, full.data(), rank.masters[(size_t)u].data(),
                                   &args);
                ASSERT_EQ(tw_coll_run(rank.hpz->params.coll, &args), TW_OK);
            }
            rank.for_own([&](size_t t, size_t e, const float *sum) {
                size_t i = tw_hpz_full_piece(rank.layout(), t).offset + e;
                EXPECT_EQ(*sum, (float)(i * 64 * (size_t)world) + (float)(world * (world - 1) / 2));
            });
        });
    }
}

/* Slice by slice: the bits that the whole unit has. */
void expect_slices_reduce_alike(tw::Rank &rank, int unit, const tw_quant_codec_t *codec)
{
    tw_coll_t *coll = rank.hpz->params.coll;
    std::vector<float> full(tw_hpz_full_elems(rank.layout(), unit)),
        whole(rank.masters[(size_t)unit].size() + 1), parts(whole.size());
    for (size_t i = 0; i < full.size(); i++) {
        full[i] = tw::noise(5, (uint64_t)unit, i, (uint64_t)tw_coll_rank(coll));
    }
    tw_coll_args_t args;
    tw_hpz_reduce_args(rank.hpz, unit, TW_TYPE_FP32, full.data(), whole.data(), &args);
    args.codec = codec;
    args.force_codec = codec != nullptr;
    ASSERT_EQ(tw_coll_run(coll, &args), TW_OK);
    size_t end = tw_hpz_primary_elems(rank.layout(), unit, 0, 0), step = 64, n_slices = 0;
    for (tw_hpz_slice_t slice = {0, 0}; slice.end < end; n_slices++) {
        slice = tw_hpz_slice_next(rank.layout(), unit, slice.end, 200, step);
        std::vector<float> staged;
        tw_hpz_reduce_slice_args(rank.hpz, unit, slice, TW_TYPE_FP32, nullptr, parts.data(), &args);
        for (size_t s = 0; s < args.n_segments; s++) {
            size_t from = tw_hpz_full_piece(rank.layout(), args.segments[s].tensor).offset +
                          args.segments[s].first_elem;
            staged.insert(staged.end(), full.begin() + (long)from,
                          full.begin() + (long)(from + args.segments[s].n_elems));
        }
        tw_hpz_reduce_slice_args(rank.hpz, unit, slice, TW_TYPE_FP32, staged.data(), parts.data(), &args);
        args.codec = codec;
        args.force_codec = codec != nullptr;
        ASSERT_EQ(tw_coll_run(coll, &args), TW_OK);
    }
    EXPECT_GT(n_slices, 2U);
    EXPECT_EQ(parts, whole);
}

TEST_F(HpzWorld, SlicesReduceAlike)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    tw_quant_codec_t codec = tw::codec_of("int4:block=64,hadamard");
    for (const std::vector<int> &shape : shapes) {
        tw::on_ranks(shape, {{5001, 0, 0, 0, 0}, {3, 0, 1, 0, 0}, {2100, 0, 0, 0, 0}, {4000, 0, 0, 0, 0}}, {},
                     [&](tw::Rank &rank, int) {
                         expect_slices_reduce_alike(rank, 0, nullptr);
                         expect_slices_reduce_alike(rank, 0, &codec);
                     });
    }
}

/* Norms and biases stay as they are under a codec; the others do not. */
TEST_F(HpzWorld, UnquantizedTensorsAreNotQuantized)
{
    tw::on_ranks({2, 2}, {{1000, 0, 0, 0, 0}, {1000, 0, 1, 0, 0}}, {}, [](tw::Rank &rank, int) {
        std::vector<float> full(2000);
        tw_quant_codec_t codec = tw::codec_of("int4");
        tw_coll_args_t args;
        int differ = 0;
        tw_hpz_gather_args(rank.hpz, 0, TW_TYPE_FP32, rank.masters[0].data(), full.data(), &args);
        args.codec = &codec;
        args.force_codec = 1;
        ASSERT_EQ(tw_coll_run(rank.hpz->params.coll, &args), TW_OK);
        for (size_t e = 0; e < 1000; e++) {
            differ += full[e] != tw::Rank::weight(0, e);
            EXPECT_EQ(full[1000 + e], tw::Rank::weight(1, e));
        }
        EXPECT_GT(differ, 900);
    });
}

} // namespace
