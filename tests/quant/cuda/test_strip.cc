/* Arithmetic on strips against that on elements. */
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/cuda/plain.h"
#include "tests/common/sanitized.h"

namespace
{

constexpr int n = TW_STRIP_ELEMS;

/* Any bits at all, or ordinary numbers. */
float any_float(std::mt19937 &random)
{
    return random() & 1 ? tw_float_of_bits(uint32_t(random())) : std::normal_distribution<float>()(random);
}

bool same(float a, float b)
{
    return tw_float_bits(a) == tw_float_bits(b);
}

TEST(QuantCudaStrip, BytePermutation)
{
    EXPECT_EQ(tw_strip_bytes(0x33221100u, 0x77665544u, 0x7540u), 0x77554400u);
    EXPECT_EQ(tw_strip_bytes(0x33221100u, 0x77665544u, 0x0123u), 0x00112233u);
}

TEST(QuantCudaStrip, MagnitudesOrderAsBits)
{
    std::mt19937 random(1);
    for (int turn = 0; turn < 100000; turn++) {
        float x[n];
        uint32_t expected = 0;
        for (float &v : x) {
            v = any_float(random);
            expected = std::max(expected, tw_float_abs_bits(v));
        }
        ASSERT_EQ(tw_strip_amax_bits(x), expected);
    }
}

/* Every mantissa, with sanitizers one of 31, at exponents all over the range and near the smallest scale. */
TEST(QuantCudaStrip, ScaleIsTheReferences)
{
    const uint32_t stride = tw::is_sanitized ? 31 : 1;
    for (tw_quant_kind_t kind : {TW_CODE_KINDS}) {
        const float reach = float(tw_block_reach(kind)), reach_inv = 1.0f / reach;
        for (uint32_t exponent : {0u, 1u, 2u, 4u, 5u, 6u, 9u, 10u, 11u, 127u, 200u, 254u}) {
            for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += stride * (1 + exponent % 3)) {
                const float amax = tw_float_of_bits(exponent << 23 | mantissa);
                const float fp32 = tw_block_scale(amax, int(reach), TW_QUANT_SCALE_FP32);
                ASSERT_TRUE(same(tw_strip_scale(amax, reach, reach_inv, true), fp32)) << amax;
                if (mantissa % 64 >= 2) {
                    continue;
                }
                const float bf16 = tw_block_scale(amax, int(reach), TW_QUANT_SCALE_BF16);
                ASSERT_TRUE(same(tw_strip_scale(amax, reach, reach_inv, false), bf16)) << amax;
            }
        }
    }
}

template <tw_quant_kind_t KIND>
void check_codes()
{
    std::mt19937 random(KIND);
    for (int turn = 0; turn < 20000; turn++) {
        uint32_t q[n], codes[TW_STRIP_CODE_WORDS(KIND)];
        uint8_t expected[2 * TW_CODE_BITS(KIND)] = {};
        float unpacked[n];
        for (int i = 0; i < n; i++) {
            q[i] = uint32_t(random());
            tw_layout_code_put(expected, TW_CODE_BITS(KIND), size_t(i), int(q[i]));
        }
        tw_strip_pack<KIND>(q, codes);
        ASSERT_EQ(memcmp(codes, expected, sizeof(expected)), 0);
        tw_strip_unpack<KIND>(codes, unpacked);
        for (int i = 0; i < n; i++) {
            const int code = tw_layout_code_get(expected, TW_CODE_BITS(KIND), size_t(i));
            ASSERT_EQ(unpacked[i], tw_block_code_value(KIND, code));
        }
    }
}

template <tw_quant_kind_t... KINDS>
void check_codes_of_all()
{
    (check_codes<KINDS>(), ...);
}

TEST(QuantCudaStrip, Codes)
{
    check_codes_of_all<TW_CODE_KINDS>();
}

template <tw_quant_kind_t KIND>
void check_rounding()
{
    const int qmax = tw_block_qmax(KIND);
    std::mt19937 random(KIND);
    for (int turn = 0; turn < 100000; turn++) {
        float x[n], amax = 0;
        uint32_t words[n], nearest[n], stochastic[n];
        const float size = std::ldexp(1.0f, int(random() % 240) - 120);
        for (int i = 0; i < n; i++) {
            /* halves of codes, too: they are what nearest-even is about */
            x[i] = i % 2 ? std::normal_distribution<float>()(random) * size
                         : float(int(random() % 16) - 8) * size * 0.5f;
            words[i] = uint32_t(random());
            amax = std::fmax(amax, std::fabs(x[i]));
        }
        const float scale = tw_block_scale(amax, tw_block_reach(KIND), tw_quant_scale_t(turn & 1)),
                    inverse = tw_block_inverse(scale);
        ASSERT_TRUE(same(inverse, tw_strip_inverse(scale)));
        tw_strip_quantize_nearest<KIND>(x, inverse, nearest);
        tw_strip_quantize_stochastic<KIND>(x, inverse, words, stochastic);
        for (int i = 0; i < n; i++) {
            const float v = tw_float_mul(x[i], inverse);
            ASSERT_EQ(int8_t(nearest[i]), tw_block_code_nearest(KIND, v)) << v;
            if (tw_quant_row_get(KIND)->has & TW_QUANT_HAS_STOCHASTIC) {
                ASSERT_EQ(int8_t(stochastic[i]),
                          tw_block_round_stochastic(v, tw_block_uniform(words[i]), qmax))
                    << v;
            }
        }
    }
}

template <tw_quant_kind_t... KINDS>
void check_rounding_of_all()
{
    (check_rounding<KINDS>(), ...);
}

TEST(QuantCudaStrip, Rounding)
{
    check_rounding_of_all<TW_CODE_KINDS>();
}

TEST(QuantCudaStrip, RandomWords)
{
    for (uint64_t elem : {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{15}, (uint64_t{1} << 34) - 5}) {
        uint32_t words[n];
        tw_strip_random(0x123456789abcdefull, 7, 9, elem, words);
        for (uint64_t i = 0; i < n; i++) {
            ASSERT_EQ(words[i], tw_philox_word(0x123456789abcdefull, 7, 9, elem + i));
        }
    }
}

/* Any code with any scale, decoded and added up. */
template <tw_quant_kind_t KIND>
void check_decoding()
{
    std::mt19937 random(KIND);
    for (int turn = 0; turn < 100000; turn++) {
        uint32_t codes[TW_STRIP_CODE_WORDS(KIND)], scale_bits = uint32_t(random());
        for (uint32_t &word : codes) {
            word = uint32_t(random());
        }
        const bool bf16 = turn & 1;
        const float scale = tw_float_of_bits(bf16 ? scale_bits & 0xffff0000u : scale_bits);
        float x[n], sum[n], any[n], before[n];
        for (int i = 0; i < n; i++) {
            before[i] = sum[i] = any[i] =
                std::normal_distribution<float>()(random) * (turn & 2 ? scale : 1.0f);
        }
        tw_strip_dequantize<KIND>(codes, scale, tw_block_may_overflow(scale, KIND, 0, TW_TYPE_FP32), x);
        tw_strip_accumulate_any<KIND>(codes, scale, any);
        if (tw_strip_scale_is_small(scale)) {
            tw_strip_accumulate<KIND>(codes, scale, bf16, sum);
        }
        for (int i = 0; i < n; i++) {
            const int code =
                tw_layout_code_get(reinterpret_cast<uint8_t *>(codes), TW_CODE_BITS(KIND), size_t(i));
            const float expected = tw_block_scale_is_nonfinite(scale)
                                       ? tw_float_of_bits(TW_FLOAT_NAN_BITS)
                                       : tw_block_dequantize(tw_block_code_value(KIND, code), scale);
            ASSERT_TRUE(same(x[i], expected)) << scale << " * " << code;
            const float total = tw_float_add(before[i], expected);
            ASSERT_TRUE(same(any[i], total) || (std::isnan(any[i]) && std::isnan(total)));
            if (tw_strip_scale_is_small(scale)) {
                ASSERT_TRUE(same(sum[i], total)) << scale << " * " << code << " + " << before[i];
            }
        }
    }
}

template <tw_quant_kind_t... KINDS>
void check_decoding_of_all()
{
    (check_decoding<KINDS>(), ...);
}

TEST(QuantCudaStrip, Decoding)
{
    check_decoding_of_all<TW_CODE_KINDS_OF_SUMS>();
}

/* Two strips, as two lanes hold them. */
TEST(QuantCudaStrip, Rotation)
{
    std::mt19937 random(3);
    for (int turn = 0; turn < 1000; turn++) {
        float expected[2 * n], half[2][n];
        for (int i = 0; i < 2 * n; i++) {
            expected[i] = half[i / n][i % n] = std::normal_distribution<float>()(random);
        }
        tw_block_hadamard32(expected);
        tw_strip_rotate_inside(half[0]);
        tw_strip_rotate_inside(half[1]);
        for (int i = 0; i < n; i++) {
            const float low = tw_strip_butterfly(half[0][i], half[1][i], 1.0f);
            const float high = tw_strip_butterfly(half[1][i], half[0][i], -1.0f);
            ASSERT_TRUE(same(tw_float_mul(low, TW_BLOCK_HADAMARD_NORM), expected[i]));
            ASSERT_TRUE(same(tw_float_mul(high, TW_BLOCK_HADAMARD_NORM), expected[n + i]));
        }
    }
}

template <int TYPE>
void check_types()
{
    std::mt19937 random(TYPE);
    for (int turn = 0; turn < 50000; turn++) {
        float x[n], back[n];
        uint32_t saturated[8], infinite[8];
        uint16_t expected[n];
        for (float &v : x) {
            v = turn % 4 ? any_float(random) : std::ldexp(1.0f, int(random() % 48) - 30);
        }
        tw_strip_fit<TYPE>(x, TW_STRIP_SATURATE, saturated);
        tw_strip_fit<TYPE>(x, TW_STRIP_INFINITE, infinite);
        for (size_t i = 0; i < n; i++) {
            tw_float_store_saturate(tw_type_t(TYPE), expected, i, x[i]);
        }
        ASSERT_EQ(memcmp(saturated, expected, sizeof(expected)), 0);
        for (size_t i = 0; i < n; i++) {
            tw_float_store(tw_type_t(TYPE), expected, i, x[i]);
        }
        ASSERT_EQ(memcmp(infinite, expected, sizeof(expected)), 0);
        tw_strip_widen<TYPE>(infinite, back);
        for (size_t i = 0; i < n; i++) {
            ASSERT_TRUE(same(back[i], tw_float_load(tw_type_t(TYPE), expected, i)));
        }
    }
}

TEST(QuantCudaStrip, Types)
{
    check_types<TW_TYPE_BF16>();
    check_types<TW_TYPE_FP16>();
}

} // namespace
