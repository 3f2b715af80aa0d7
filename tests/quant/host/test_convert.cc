/* Plain conversions: the SIMD bulk and the scalar rest give the scalar rule's bits, at any size and
 * alignment. */
#include <cmath>
#include <cstring>

#include "quant/arithmetic/float.h"
#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;
using tw::Guarded;
using Convert = tw::Fixture;

const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};
const size_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000, 4099};

template <typename Check>
void for_all(Check check)
{
    for (tw_type_t type : types) {
        for (int data = 0; data < tw::n_data; data++) {
            for (size_t n : sizes) {
                for (size_t offset : {0, 1, 5}) {
                    check(type, Data(data), n, offset);
                }
            }
        }
    }
}

std::vector<uint8_t> zeros(tw_type_t type, size_t n)
{
    return std::vector<uint8_t>(n * tw_type_bytes(type), 0);
}

TEST_F(Convert, ToFp32)
{
    for_all([](tw_type_t type, Data data, size_t n, size_t offset) {
        const std::vector<uint8_t> x = tw::make_data(type, data, n, n);
        Guarded src(x, offset * tw_type_bytes(type)), dst(zeros(TW_TYPE_FP32, n), offset * 4);
        tw_convert_to_fp32(type, src.data(), reinterpret_cast<float *>(dst.data()), n);
        std::vector<uint8_t> expected = zeros(TW_TYPE_FP32, n);
        for (size_t i = 0; i < n; i++) {
            tw_float_store(TW_TYPE_FP32, expected.data(), i, tw_float_load(type, x.data(), i));
        }
        ASSERT_EQ(dst.content(), expected) << tw_type_name(type) << " " << tw::name_of(data) << " " << n;
        ASSERT_TRUE(dst.intact());
    });
}

TEST_F(Convert, EveryHalfWordToFp32)
{
    std::vector<uint8_t> x(2 * 65536);
    for (uint32_t h = 0; h < 65536; h++) {
        memcpy(&x[2 * h], &h, 2);
    }
    for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16}) {
        std::vector<uint32_t> y(65536);
        tw_convert_to_fp32(type, x.data(), reinterpret_cast<float *>(y.data()), 65536);
        for (uint32_t h = 0; h < 65536; h++) {
            ASSERT_EQ(y[h], tw_float_bits(tw_float_load(type, x.data(), h)))
                << tw_type_name(type) << " " << h;
        }
    }
}

TEST_F(Convert, FromFp32)
{
    for_all([](tw_type_t type, Data data, size_t n, size_t offset) {
        /* Data of fp32's range, so that narrower types overflow and underflow. */
        const std::vector<uint8_t> x = tw::make_data(TW_TYPE_FP32, data, n, n);
        for (float factor : {1.0f, 1.0f / 3.0f}) {
            Guarded src(x, offset * 4), dst(zeros(type, n), offset * tw_type_bytes(type));
            tw_convert_from_fp32(type, reinterpret_cast<const float *>(src.data()), factor, dst.data(), n);
            std::vector<uint8_t> expected = zeros(type, n);
            for (size_t i = 0; i < n; i++) {
                tw_float_store(type, expected.data(), i, tw_float_load(TW_TYPE_FP32, x.data(), i) * factor);
            }
            ASSERT_EQ(dst.content(), expected) << tw_type_name(type) << " " << tw::name_of(data) << " " << n;
            ASSERT_TRUE(dst.intact());
        }
    });
}

TEST_F(Convert, OverflowIsInfiniteAndNanStays)
{
    const std::vector<float> x = {
        65519.0f, 65520.0f, -1e6f, INFINITY, NAN, tw_float_of_bits(TW_FLOAT_MAX_BITS), 1.0f, -0.0f, 2.0f};
    uint16_t h[9];
    tw_convert_from_fp32(TW_TYPE_FP16, x.data(), 1.0f, h, 9);
    const uint16_t expected[] = {0x7bff, 0x7c00, 0xfc00, 0x7c00, 0x7e00, 0x7c00, 0x3c00, 0x8000, 0x4000};
    for (size_t i = 0; i < 9; i++) {
        EXPECT_EQ(h[i], expected[i]) << x[i];
    }
    tw_convert_from_fp32(TW_TYPE_BF16, x.data(), 1.0f, h, 9);
    EXPECT_EQ(h[4], 0x7fc0);
    EXPECT_EQ(h[5], 0x7f80);
}

TEST_F(Convert, AddFp32)
{
    for_all([](tw_type_t type, Data data, size_t n, size_t offset) {
        const std::vector<uint8_t> x = tw::make_data(type, data, n, n);
        const std::vector<uint8_t> before = tw::make_data(TW_TYPE_FP32, Data::gauss, n, n + 1);
        Guarded src(x, offset * tw_type_bytes(type)), acc(before, offset * 4);
        tw_convert_add_fp32(type, src.data(), reinterpret_cast<float *>(acc.data()), n);
        std::vector<uint8_t> expected = before;
        for (size_t i = 0; i < n; i++) {
            tw_float_store(TW_TYPE_FP32, expected.data(), i,
                           tw_float_load(TW_TYPE_FP32, before.data(), i) + tw_float_load(type, x.data(), i));
        }
        ASSERT_TRUE(tw::same_values(TW_TYPE_FP32, acc.content(), expected)) << tw_type_name(type) << " " << n;
        ASSERT_TRUE(acc.intact());
    });
}

TEST_F(Convert, AddOutOfPlaceAndOntoEitherInput)
{
    for_all([](tw_type_t type, Data data, size_t n, size_t offset) {
        const std::vector<uint8_t> x = tw::make_data(type, data, n, n),
                                   y = tw::make_data(type, Data::gauss, n, n + 1);
        std::vector<uint8_t> expected = zeros(type, n);
        for (size_t i = 0; i < n; i++) {
            tw_float_store(type, expected.data(), i,
                           tw_float_load(type, x.data(), i) + tw_float_load(type, y.data(), i));
        }
        for (int where = 0; where < 3; where++) {
            const size_t at = offset * tw_type_bytes(type);
            Guarded a(x, at), b(y, at), c(zeros(type, n), at);
            Guarded &dst = where == 0 ? a : where == 1 ? b : c;
            tw_convert_add(type, a.data(), b.data(), dst.data(), n);
            ASSERT_TRUE(tw::same_values(type, dst.content(), expected))
                << tw_type_name(type) << " " << tw::name_of(data) << " " << n;
            ASSERT_TRUE(dst.intact());
        }
    });
}

TEST_F(Convert, RefusesBytes)
{
    expect_log("has no values");
    float x[4] = {1, 2, 3, 4};
    uint8_t y[4] = {9, 9, 9, 9};
    tw_convert_from_fp32(TW_TYPE_BYTE, x, 1.0f, y, 4);
    tw_convert_to_fp32(TW_TYPE_BYTE, y, x, 4);
    tw_convert_add_fp32(TW_TYPE_BYTE, y, x, 4);
    tw_convert_add(TW_TYPE_BYTE, y, y, y, 4);
    EXPECT_EQ(y[0], 9);
    EXPECT_EQ(x[0], 1);
}

} // namespace
