/* Round trips: the error of every element is within the bound that the header states. */
#include <algorithm>
#include <cmath>

#include "quant/arithmetic/block.h"
#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;

const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};
const Data finite_data[] = {Data::gauss,    Data::outlier,  Data::denormal, Data::zeros,
                            Data::negative, Data::constant, Data::huge,     Data::spread};

/* Half a unit in the last place of `type` around a value of this magnitude: what rounding into it may add. */
double half_ulp(tw_type_t type, double magnitude)
{
    if (type == TW_TYPE_FP32) {
        return 0;
    }
    const int mantissa_bits = type == TW_TYPE_BF16 ? 7 : 10, lowest = type == TW_TYPE_BF16 ? -126 : -14;
    const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), lowest) : lowest;
    return std::ldexp(0.5, exponent - mantissa_bits);
}

double largest(const std::vector<float> &x, size_t first, size_t n)
{
    double amax = 0;
    for (size_t i = first; i < first + n; i++) {
        amax = std::max(amax, std::fabs(double(x[i])));
    }
    return amax;
}

class QuantError : public tw::Fixture, public testing::WithParamInterface<std::string>
{
  protected:
    void check(const tw_quant_codec_t &codec, tw_type_t type, Data data, size_t n)
    {
        tw::Codec quant(codec, GetParam());
        const std::vector<uint8_t> plain = tw::make_data(type, data, n, n);
        const std::vector<uint8_t> encoded = tw::encode(quant, type, plain);
        const std::vector<float> x = tw::floats_of(type, plain), exact = tw::decode_fp32(quant, encoded, n),
                                 typed = tw::floats_of(type, tw::decode(quant, type, encoded, n));
        const size_t block = size_t(codec.block);
        for (size_t first = 0; first < n; first += block) {
            const size_t in_block = std::min(block, n - first);
            if (codec.hadamard) {
                check_rotated(codec, x, exact, first, in_block);
            } else {
                check_plain(codec, x, exact, first, in_block);
            }
        }
        for (size_t i = 0; i < n; i++) {
            ASSERT_TRUE(std::isfinite(typed[i]))
                << codec << " " << tw_type_name(type) << " " << tw::name_of(data);
            const double top = double(tw_float_type_max(type)),
                         ideal = std::clamp(double(exact[i]), -top, top);
            ASSERT_LE(std::fabs(double(typed[i]) - ideal), half_ulp(type, std::fabs(ideal)));
        }
    }

  private:
    static double bound_of(const tw_quant_codec_t &codec, double amax)
    {
        return (codec.round == TW_QUANT_ROUND_STOCHASTIC ? 2 : 1) * tw_quant_error_bound(&codec, amax);
    }

    void check_plain(const tw_quant_codec_t &codec, const std::vector<float> &x,
                     const std::vector<float> &decoded, size_t first, size_t n)
    {
        const double bound = bound_of(codec, largest(x, first, n));
        for (size_t i = first; i < first + n; i++) {
            ASSERT_LE(std::fabs(double(decoded[i]) - double(x[i])), bound)
                << codec << " element " << i << " of " << x.size();
        }
    }

    /* In the 2-norm of each group of 32: the bound of the rotated block times sqrt(32), and what two
     * rotations in fp32 add: six roundings each and a norm that is 2^-2.5 to 2^-25, of at most both norms. */
    void check_rotated(const tw_quant_codec_t &codec, const std::vector<float> &x,
                       const std::vector<float> &decoded, size_t first, size_t n)
    {
        std::vector<float> y(x.begin() + long(first), x.begin() + long(first + n));
        for (size_t i = 0; i + 32 <= n; i += 32) {
            tw_block_hadamard32(&y[i]);
        }
        const double bound = bound_of(codec, largest(y, 0, n));
        for (size_t i = 0; i < n; i += 32) {
            double error = 0, norm = 0;
            for (size_t j = i; j < std::min(i + 32, n); j++) {
                error += std::pow(double(decoded[first + j]) - double(x[first + j]), 2);
                norm += std::pow(double(x[first + j]), 2);
            }
            const double quantized = std::sqrt(32.0) * bound;
            ASSERT_LE(std::sqrt(error), quantized + 14 * 0x1p-24 * (2 * std::sqrt(norm) + quantized))
                << codec;
        }
    }
};

TEST_P(QuantError, EveryCodecTypeAndKindOfData)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 96, 128, 2048})) {
        for (tw_type_t type : types) {
            for (Data data : finite_data) {
                if (codec.hadamard && type != TW_TYPE_FP16 && (data == Data::huge || data == Data::spread)) {
                    continue; /* beyond 2^122, where rotated blocks count as overflown */
                }
                ASSERT_NO_FATAL_FAILURE(check(codec, type, data, 4100));
            }
        }
    }
}

TEST_P(QuantError, EverySize)
{
    size_t turn = 0;
    const std::vector<tw_quant_codec_t> codecs = tw::all_codecs({32, 128, 2048});
    for (size_t n = 0; n <= 4100; n++, turn++) {
        ASSERT_NO_FATAL_FAILURE(check(codecs[turn % codecs.size()], types[turn % 3], Data::outlier, n));
    }
}

TEST_P(QuantError, EveryBlockSize)
{
    for (int block = 32; block <= 4096; block += 32) {
        for (tw_quant_kind_t kind : tw::block_kinds()) {
            ASSERT_NO_FATAL_FAILURE(
                check({kind, block, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, block / 32 % 2, 0},
                      TW_TYPE_BF16, Data::gauss, size_t(block) * 2 + 7));
        }
    }
}

/* 2 bits: changes that are coded again and again come to rest. Block by block, in the norm, up to what fp32
 * rounds away; and nothing becomes of a block's zeros. */
TEST_P(QuantError, TwoBitsAreAContraction)
{
    const size_t n = 64 * 40 + 13, block = 64;
    for (int hadamard : {0, 1}) {
        tw::Codec quant({TW_QUANT_INT2, int(block), TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, hadamard, 0},
                        GetParam());
        for (Data data : {Data::gauss, Data::outlier, Data::negative, Data::constant, Data::zeros}) {
            const std::vector<float> x =
                tw::floats_of(TW_TYPE_FP32, tw::make_data(TW_TYPE_FP32, data, n, 11));
            const std::vector<float> y =
                tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x)), n);
            for (size_t first = 0; first < n; first += block) {
                double error = 0, norm = 0;
                for (size_t i = first; i < std::min(first + block, n); i++) {
                    error += std::pow(double(y[i]) - double(x[i]), 2);
                    norm += std::pow(double(x[i]), 2);
                }
                ASSERT_LE(error, norm * (1 - 0.75 / double(block) + 32 * 0x1p-23))
                    << tw::name_of(data) << " from " << first;
            }
        }
    }
}

TEST_P(QuantError, TwoBitsLeaveZerosBesideAnOutlier)
{
    for (int hadamard : {0, 1}) {
        tw::Codec quant({TW_QUANT_INT2, 64, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, hadamard, 0},
                        GetParam());
        std::vector<float> x(64, 0.0f);
        x[5] = -3.0f;
        for (int step = 0; step < 20; step++) { /* what is left is sent again */
            const std::vector<float> y =
                tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x)), 64);
            for (size_t i = 0; i < 64; i++) {
                if (i != 5 && (!hadamard || i >= 32)) {
                    ASSERT_EQ(y[i], 0.0f) << "element " << i;
                }
                x[i] -= y[i];
            }
        }
        EXPECT_LE(std::fabs(x[5]), 3.0f * 0x1p-15f) << "halved in each step";
    }
}

/* An outlier of 8 sigma makes the grid of its block coarse; rotated, its group of 32 shares it. (One of 200
 * sigma drowns all else either way.) */
TEST_P(QuantError, RotationHelpsAgainstOutliers)
{
    const size_t n = 1 << 16;
    std::vector<float> x = tw::floats_of(TW_TYPE_FP32, tw::make_data(TW_TYPE_FP32, Data::gauss, n, 5));
    for (size_t i = 17; i < n; i += 128) {
        x[i] = 8.0f;
    }
    double error[2] = {0, 0};
    for (int hadamard : {0, 1}) {
        tw::Codec quant({TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, hadamard, 0},
                        GetParam());
        const std::vector<float> y =
            tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x)), n);
        for (size_t i = 0; i < n; i++) {
            error[hadamard] += std::pow(double(y[i]) - double(x[i]), 2);
        }
    }
    EXPECT_LT(error[1], error[0] / 2);
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantError, testing::ValuesIn(tw::host_backends(true)),
                         [](const testing::TestParamInfo<std::string> &backend) { return backend.param; });

} // namespace
