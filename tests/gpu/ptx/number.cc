#include "tests/gpu/ptx/number.h"

#include <algorithm>

#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

float round_to_float(double x, Round round)
{
    const float near = (float)x;
    if (round == Round::rn || x != x || (double)near == x) {
        return near;
    }
    switch (round) {
    case Round::rz:
        return fabs((double)near) > fabs(x) ? nextafterf(near, 0) : near;
    case Round::rm:
        return (double)near > x ? nextafterf(near, -INFINITY) : near;
    case Round::rp:
        return (double)near < x ? nextafterf(near, INFINITY) : near;
    default:
        return near;
    }
}

double round_to_integer(double x, Round round)
{
    switch (round) {
    case Round::rn:
    case Round::rni:
        return nearbyint(x);
    case Round::rz:
    case Round::rzi:
        return trunc(x);
    case Round::rm:
    case Round::rmi:
        return floor(x);
    default:
        return ceil(x);
    }
}

float float_from_half(u16 half)
{
    const u32 sign = (u32)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    if (exponent == 31) {
        return float_of(mantissa ? 0x7fffffffu : sign | 0x7f800000u);
    }
    if (exponent == 0) {
        const float value = ldexpf((float)mantissa, -24);
        return sign ? -value : value;
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

u16 half_from_float(float x, Round round)
{
    const u16 sign = (u16)(bits_as<u32>(x) >> 16 & 0x8000);
    int exponent;
    if (x != x) {
        return 0x7fff;
    }
    if (std::isinf(x)) {
        return (u16)(sign | 0x7c00);
    }
    frexp(fabs((double)x), &exponent);
    const int unit = std::max(exponent - 11, -24);
    const double in_units = ldexp(fabs((double)x), -unit);
    const double a = ldexp(round == Round::rz ? floor(in_units) : nearbyint(in_units), unit);
    if (a > 65504.0) {
        return (u16)(sign | (round == Round::rz ? 0x7bff : 0x7c00));
    }
    if (a == 0) {
        return sign;
    }
    frexp(a, &exponent);
    if (exponent - 1 < -14) {
        return (u16)(sign | (u16)ldexp(a, 24));
    }
    return (u16)(sign | (u16)((exponent + 14) << 10) | (u16)((u32)ldexp(a, 11 - exponent) & 1023));
}

float float_from_bf16(u16 bits)
{
    const float x = float_of((u32)bits << 16);
    return x != x ? float_of(0x7fffffffu) : x;
}

u16 bf16_from_float(float x, Round round)
{
    const u32 bits = bits_as<u32>(x);
    if (x != x) {
        return 0x7fff;
    }
    return (u16)(round == Round::rz ? bits >> 16 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

u32 approximate(double exact, u32 seed, bool flushed)
{
    const long off = settings().ulps;
    float near = (float)exact;
    if (near != near) {
        return 0x7fffffffu;
    }
    if (off && std::isfinite(near) && near != 0) {
        u32 hash = seed * 2654435761u;
        hash ^= hash >> 15;
        const s64 moved = (s64)(bits_as<u32>(near) & 0x7fffffffu) + (long)(hash % (2 * off + 1)) - off;
        const u32 magnitude = (u32)std::min<s64>(std::max<s64>(moved, 0), 0x7f7fffff);
        near = float_of((bits_as<u32>(near) & 0x80000000u) | magnitude);
    }
    return bits_as<u32>(flushed ? flush(near) : near);
}

} // namespace tw::ptx
