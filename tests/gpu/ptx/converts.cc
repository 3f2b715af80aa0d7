/* Moves and conversions. */
#include <algorithm>

#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/makers.h"
#include "tests/gpu/ptx/report.h"

namespace tw::ptx
{

namespace
{

/* ---- cvt ---- */

u64 largest(Type type)
{
    const int bits = bits_of(type);
    return is_signed(type) ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
}

u64 integer_to_integer(const Insn &in, u64 value)
{
    if (!in.sat) {
        return value;
    }
    const s64 high = (s64)std::min<u64>(largest(in.type), INT64_MAX);
    const s64 low = is_signed(in.type) ? -high - 1 : 0;
    if (!is_signed(in.from_type)) {
        return std::min<u64>(value, (u64)high);
    }
    return (u64)std::clamp((s64)value, low, high);
}

u64 float_to_float(const Insn &in, double x)
{
    if (in.type == in.from_type && in.round >= Round::rni) {
        x = round_to_integer(x, in.round);
    }
    if (in.sat) {
        x = x != x ? 0 : std::clamp(x, 0.0, 1.0);
    }
    x = in.relu && x < 0 ? 0 : x;
    const Round round = in.round >= Round::rni ? Round::rn : in.round;
    const float single = round_to_float(x, round);
    switch (in.type) {
    case Type::f32:
        return result_bits(in.ftz ? flush(single) : single);
    case Type::f64:
        return result_bits(x);
    case Type::f16:
        return half_from_float((float)x, round);
    default:
        return bf16_from_float((float)x, round);
    }
}

u64 integer_to_float(const Insn &in, u64 value)
{
    const long double x = is_signed(in.from_type) ? (long double)(s64)value : (long double)value;
    if (in.type == Type::f64) {
        return bits_as<u64>((double)x);
    }
    if (in.type == Type::f32) {
        float near = (float)x;
        if (in.round == Round::rz && fabsl((long double)near) > fabsl(x)) {
            near = nextafterf(near, 0);
        } else if (in.round == Round::rm && (long double)near > x) {
            near = nextafterf(near, -INFINITY);
        } else if (in.round == Round::rp && (long double)near < x) {
            near = nextafterf(near, INFINITY);
        }
        return bits_as<u32>(near);
    }
    if (fabsl(x) > 16777216.0L) {
        fatal("a conversion of a large integer to 16 bits");
    }
    return in.type == Type::f16 ? half_from_float((float)x, in.round) : bf16_from_float((float)x, in.round);
}

u64 float_to_integer(const Insn &in, double x)
{
    const int bits = bits_of(in.type);
    if (x != x) {
        return bits == 64 ? 0x8000000000000000ull : 0;
    }
    x = round_to_integer(x, in.round);
    if (!is_signed(in.type)) {
        return x <= 0 ? 0 : x >= ldexp(1, bits) ? largest(in.type) : (u64)x;
    }
    const double beyond = ldexp(1, bits - 1);
    return x >= beyond ? largest(in.type) : x < -beyond ? ~largest(in.type) : (u64)(s64)x;
}

u64 converted(const Insn &in, u64 value)
{
    const bool from = is_float(in.from_type), to = is_float(in.type);
    if (from) {
        const double x = number_of(in.from_type, in.ftz, value);
        return to ? float_to_float(in, x) : float_to_integer(in, x);
    }
    return to ? integer_to_float(in, value) : integer_to_integer(in, value);
}

/* A value cut to a type and extended to 64 bits: what a wider register holds. */
u64 extended(Type type, u64 value)
{
    switch (bits_of(type)) {
    case 8:
        return is_signed(type) ? (u64)(s64)(s8)value : (u8)value;
    case 16:
        return is_signed(type) ? (u64)(s64)(s16)value : (u16)value;
    case 32:
        return is_signed(type) ? (u64)(s64)(s32)value : (u32)value;
    default:
        return value;
    }
}

void run_cvt(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes,
              [&](u32 l) { w.put(in.d, l, extended(in.type, converted(in, w.get(in.a, l, in.from_type)))); });
}

/* Two fp32 to a word of two halves: a is the upper one. */
void run_cvt_pack(Warp &w, const Insn &in, u32 lanes)
{
    const auto half = [&](const Operand &o, u32 l) -> u32 {
        const float x = float_of((u32)w.get(o, l)), y = in.relu && x < 0 ? 0 : x;
        return in.type == Type::f16x2 ? half_from_float(y, in.round) : bf16_from_float(y, in.round);
    };
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, half(in.a, l) << 16 | half(in.b, l)); });
}

void make_cvt(Statement &s)
{
    if (bits_of(s.insn.type) == 32 && is_float(s.insn.type) && s.insn.type != Type::f32) {
        s.take(run_cvt_pack, Type::b32, 3);
        return;
    }
    s.take(run_cvt, s.insn.type, 1);
    s.insn.a = s.operand(1, s.insn.from_type);
}

/* ---- mov ---- */

struct Same {
    template <class T>
    T operator()(T a) const
    {
        return a;
    }
};

void run_mov_predicate(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, w.predicate(in.a, l)); });
}

void run_clock(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, warp_instructions); });
}

u64 low_bits(u64 value, size_t bits)
{
    return bits >= 64 ? value : value & ((1ull << bits) - 1);
}

void run_unpack(Warp &w, const Insn &in, u32 lanes)
{
    const size_t each = (size_t)bits_of(in.type) / in.vector.size();
    for_lanes(lanes, [&](u32 l) {
        const u64 all = w.get(in.a, l);
        for (size_t i = 0; i < in.vector.size(); i++) {
            w.put(in.vector[i], l, low_bits(all >> (i * each), each));
        }
    });
}

void run_pack(Warp &w, const Insn &in, u32 lanes)
{
    const size_t each = (size_t)bits_of(in.type) / in.vector.size();
    for_lanes(lanes, [&](u32 l) {
        u64 all = 0;
        for (size_t i = 0; i < in.vector.size(); i++) {
            all |= low_bits(w.get(in.vector[i], l), each) << (i * each);
        }
        w.put(in.d, l, all);
    });
}

void make_mov(Statement &s)
{
    const Type type = s.insn.type;
    if (s.operands.size() != 2) {
        s.unknown();
    }
    if (s.operands[0][0] == '{') {
        s.insn.run = run_unpack;
        s.take_vector(0, Type::b32);
        s.insn.a = s.operand(1, type);
    } else if (s.operands[1][0] == '{') {
        s.take(run_pack, type, 1);
        s.take_vector(1, Type::b32);
    } else if (s.operands[1] == "%clock" || s.operands[1] == "%clock64" || s.operands[1] == "%globaltimer") {
        s.take(run_clock, type, 1);
    } else {
        s.take(type == Type::pred    ? run_mov_predicate
               : bits_of(type) == 64 ? unary<u64, u64, Same>
                                     : unary<u32, u32, Same>,
               type, 2);
    }
}

/* ---- addresses ---- */

u64 base_of(Space space)
{
    return space == Space::shared  ? shared_base
           : space == Space::local ? local_base
           : space == Space::param ? param_base
                                   : 0;
}

void run_cvta(Warp &w, const Insn &in, u32 lanes)
{
    const u64 base = base_of(in.space);
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, w.get(in.a, l) + base); });
}

void run_cvta_to(Warp &w, const Insn &in, u32 lanes)
{
    const u64 base = base_of(in.space);
    for_lanes(lanes, [&](u32 l) {
        const u64 a = w.get(in.a, l);
        if (base && a >> 48 != base >> 48) {
            w.report_here("CVTA-WRONG-SPACE", l, "");
        }
        w.put(in.d, l, a - base);
    });
}

void make_cvta(Statement &s)
{
    s.take(s.has("to") ? run_cvta_to : run_cvta, s.insn.type, 2);
}

void run_isspacep(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const u64 at = w.get(in.a, l) >> 48, base = base_of(in.space) >> 48;
        const bool other = at == shared_base >> 48 || at == local_base >> 48 || at == param_base >> 48;
        w.put(in.d, l, base ? at == base : !other);
    });
}

void make_isspacep(Statement &s)
{
    s.take(run_isspacep, Type::b64, 2);
    s.insn.d = s.operand(0, Type::pred);
}

} // namespace

extern const MakerTable convert_makers;
const MakerTable convert_makers = {
    {"cvt", make_cvt},
    {"mov", make_mov},
    {"cvta", make_cvta},
    {"isspacep", make_isspacep},
};

} // namespace tw::ptx
