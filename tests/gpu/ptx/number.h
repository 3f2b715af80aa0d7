/** Numbers as a GPU has them: a NaN that arithmetic makes is always the same one. */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tw::ptx
{

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef unsigned __int128 u128;

/** Roundings as PTX names them: to a type, and to an integer. */
enum class Round : u8 { rn, rz, rm, rp, rni, rzi, rmi, rpi };

template <class TO, class FROM>
inline TO bits_as(FROM from)
{
    static_assert(sizeof(TO) == sizeof(FROM));
    TO to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

inline float float_of(u32 bits)
{
    return bits_as<float>(bits);
}

inline double double_of(u64 bits)
{
    return bits_as<double>(bits);
}

/** The bits of a result. */
inline u32 result_bits(float x)
{
    return x != x ? 0x7fffffffu : bits_as<u32>(x);
}

inline u64 result_bits(double x)
{
    return x != x ? 0xfff8000000000000ull : bits_as<u64>(x);
}

inline float flush(float x)
{
    return std::fpclassify(x) == FP_SUBNORMAL ? copysignf(0.f, x) : x;
}

/** x, exact or nearly so, to fp32. */
float round_to_float(double x, Round round);
double round_to_integer(double x, Round round);

float float_from_half(u16 half);
u16 half_from_float(float x, Round round);
float float_from_bf16(u16 bits);
u16 bf16_from_float(float x, Round round);

/** The result of an approximate instruction, as far off as the settings say. seed: its operand. */
u32 approximate(double exact, u32 seed, bool flushed);

} // namespace tw::ptx
