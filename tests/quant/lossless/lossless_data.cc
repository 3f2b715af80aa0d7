#include "tests/quant/lossless/lossless_data.h"

#include <cmath>
#include <cstring>
#include <random>

namespace tw
{
namespace
{

uint32_t special_bits(tw_type_t type, std::mt19937 &random)
{
    const uint32_t mantissa = type == TW_TYPE_FP32 ? 23 : type == TW_TYPE_BF16 ? 7 : 10;
    const uint32_t sign_bit = type == TW_TYPE_FP32 ? 31 : 15;
    const uint32_t infinity = ((1u << sign_bit) - 1) >> mantissa << mantissa;
    const uint32_t payload = random() & ((1u << mantissa) - 1), sign = (random() & 1) << sign_bit;
    const uint32_t choices[] = {0u, payload, infinity, infinity | payload, infinity - 1};
    return sign | choices[random() % 5];
}

/* A generator of one element's value, or of its bits. */
struct Maker {
    Values values;
    tw_type_t type;
    size_t columns;
    std::mt19937 random;
    std::normal_distribution<float> normal;

    float scale(size_t i) const
    {
        const auto row = float(i / columns), column = float(i % columns);
        return 1e-3f * std::exp2(2 * std::sin(row) + 3 * std::sin(7 * column));
    }

    float value(size_t i)
    {
        switch (values) {
        case Values::weight:
            return 0.02f * normal(random);
        case Values::sparse:
            return i / columns % 20 == 3 ? normal(random) : 0.0f;
        case Values::constant:
            return 0.3f;
        case Values::mostly_zero:
            return random() % 10 ? 0.0f : normal(random);
        case Values::outliers:
            return normal(random) * (random() % 100 ? 1e-3f : 1e4f);
        default:
            return normal(random) * scale(i);
        }
    }

    bool is_bits(size_t i) const
    {
        return values == Values::random || values == Values::special || values == Values::tiny ||
               (values == Values::mixed && i / 65536 % 2);
    }

    uint32_t bits()
    {
        const uint32_t sign = type == TW_TYPE_FP32 ? 0x80000000u : 0x8000u;
        if (values == Values::special) {
            return special_bits(type, random);
        }
        return values == Values::tiny ? (random() & sign) | random() % 9 : uint32_t(random());
    }
};

} // namespace

std::string name_of(Values values)
{
    const char *names[] = {"gradient", "weight", "zero",        "sparse",   "constant", "random",
                           "special",  "tiny",   "mostly_zero", "outliers", "mixed"};
    return names[size_t(values)];
}

std::vector<uint8_t> make_values(Values values, tw_type_t type, size_t n, size_t columns)
{
    const size_t elem_bytes = tw_type_bytes(type);
    std::vector<uint8_t> bytes(n * elem_bytes);
    Maker maker{values, type, columns, std::mt19937(5), {}};
    for (size_t i = 0; i < n && values != Values::zero; i++) {
        if (maker.is_bits(i)) {
            const uint32_t bits = maker.bits();
            memcpy(&bytes[i * elem_bytes], &bits, elem_bytes);
        } else {
            const float x = maker.value(i);
            tw_convert_from_fp32(type, &x, 1.0f, &bytes[i * elem_bytes], 1);
        }
    }
    return bytes;
}

} // namespace tw
