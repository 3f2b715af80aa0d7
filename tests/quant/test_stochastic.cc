/* Stochastic rounding: unbiased, repeatable, and a function of the element alone. */
#include <cmath>

#include "quant/arithmetic/block.h"
#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;

class QuantStochastic : public tw::Fixture, public testing::WithParamInterface<std::string>
{
};

tw_quant_codec_t stochastic(tw_quant_kind_t kind, int block, int hadamard)
{
    return {kind, block, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_STOCHASTIC, hadamard, 0};
}

/* One sample lies on one of the two neighbours on the grid, so its variance is at most step^2 / 4, and the
 * mean of N samples has a standard deviation of at most step / (2 sqrt N). Six of those: with a right
 * generator, once in 5e8. */
TEST_P(QuantStochastic, MeanIsTheValue)
{
    const size_t n = 256;
    const int samples = 4000;
    for (tw_quant_kind_t kind : {TW_QUANT_INT8, TW_QUANT_INT4}) {
        const tw_quant_codec_t codec = stochastic(kind, 32, 0);
        tw::Codec quant(codec, GetParam());
        const std::vector<float> x =
            tw::floats_of(TW_TYPE_FP32, tw::make_data(TW_TYPE_FP32, Data::gauss, n, 6));
        std::vector<double> sum(n, 0.0);
        for (int sample = 0; sample < samples; sample++) {
            const std::vector<uint8_t> encoded =
                tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x), {12345, 0, uint32_t(sample), 1});
            const std::vector<float> y = tw::decode_fp32(quant, encoded, n);
            for (size_t i = 0; i < n; i++) {
                sum[i] += double(y[i]);
            }
        }
        for (size_t first = 0; first < n; first += 32) {
            float amax = 0;
            for (size_t i = first; i < first + 32; i++) {
                amax = std::fmax(amax, std::fabs(x[i]));
            }
            const double step = double(tw_block_scale(amax, tw_block_qmax(kind), codec.scale));
            for (size_t i = first; i < first + 32; i++) {
                ASSERT_LE(std::fabs(sum[i] / samples - double(x[i])),
                          6 * step / (2 * std::sqrt(double(samples))))
                    << codec << ", element " << i;
            }
        }
    }
}

TEST_P(QuantStochastic, SameKeySameBytes)
{
    tw::Codec quant(stochastic(TW_QUANT_INT4, 128, 1), GetParam());
    const std::vector<uint8_t> x = tw::make_data(TW_TYPE_BF16, Data::gauss, 3000, 7);
    const tw::Place place = {1ull << 40 | 5, 1ull << 35, 4, 9};
    EXPECT_EQ(tw::encode(quant, TW_TYPE_BF16, x, place), tw::encode(quant, TW_TYPE_BF16, x, place));
}

TEST_P(QuantStochastic, EveryPartOfTheKeyMatters)
{
    tw::Codec quant(stochastic(TW_QUANT_INT4, 128, 0), GetParam());
    const std::vector<uint8_t> x = tw::make_data(TW_TYPE_BF16, Data::gauss, 3000, 7);
    const std::vector<uint8_t> base = tw::encode(quant, TW_TYPE_BF16, x, {5, 4096, 4, 9});
    const tw::Place others[] = {{6, 4096, 4, 9}, {5 | 1ull << 32, 4096, 4, 9}, {5, 4097, 4, 9},
                                {5, 4100, 4, 9}, {5, 4096 | 1ull << 34, 4, 9}, {5, 4096, 5, 9},
                                {5, 4096, 4, 10}};
    for (const tw::Place &other : others) {
        EXPECT_NE(tw::encode(quant, TW_TYPE_BF16, x, other), base);
    }
}

/* A shard that begins anywhere in the tensor rounds its elements as the whole tensor does. All blocks have
 * the same largest value, so that the scale does not depend on where the blocks begin. */
TEST_P(QuantStochastic, DoesNotDependOnSharding)
{
    const tw_quant_codec_t codec = stochastic(TW_QUANT_INT8, 32, 0);
    tw::Codec quant(codec, GetParam());
    const size_t n = 1200;
    std::vector<float> x = tw::floats_of(TW_TYPE_FP32, tw::make_data(TW_TYPE_FP32, Data::gauss, n, 8));
    for (size_t i = 0; i < n; i++) {
        x[i] = i % 8 == 3 ? 127.0f : x[i];
    }
    const std::vector<float> whole =
        tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x), {1, 70, 2, 3}), n);
    for (size_t first : {1, 2, 3, 4, 5, 31, 32, 33, 500, 1001}) {
        const std::vector<float> shard(x.begin() + long(first), x.end() - 8);
        const std::vector<float> part = tw::decode_fp32(
            quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(shard), {1, 70 + first, 2, 3}), shard.size());
        /* the last block is short and may lack the largest value */
        for (size_t i = 0; i + 32 < shard.size(); i++) {
            ASSERT_EQ(part[i], whole[first + i]) << "shard from " << first;
        }
    }
}

/* Values on the grid stay, also where the random number is 0: element 41841907 of tensor 0 at step 0 with
 * seed 1. */
TEST_P(QuantStochastic, ValuesOnTheGridStay)
{
    const uint64_t elem = 41841907;
    ASSERT_EQ(tw_block_uniform(tw_philox_word(1, 0, 0, elem)), 0.0f);
    for (size_t before = 0; before < 40; before++) {
        tw::Codec quant(stochastic(TW_QUANT_INT8, 64, 0), GetParam());
        std::vector<float> x(64);
        for (size_t i = 0; i < 64; i++) {
            x[i] = float(i) - 30.0f;
        }
        x[63] = 127.0f;
        EXPECT_EQ(tw::decode_fp32(
                      quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x), {1, elem - before, 0, 0}), 64),
                  x);
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantStochastic, testing::ValuesIn(tw::host_backends(true)),
                         [](const testing::TestParamInfo<std::string> &backend) { return backend.param; });

} // namespace
