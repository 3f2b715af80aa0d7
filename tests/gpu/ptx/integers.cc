/* Integer arithmetic, logic and shifts. */
#include <algorithm>
#include <climits>

#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/makers.h"

namespace tw::ptx
{

extern const Maker float_add, float_sub, float_mul, float_fma, float_div, float_abs, float_neg, float_min,
    float_max;

namespace
{

/* ---- operations ---- */

struct Add {
    template <class T>
    T operator()(T a, T b) const
    {
        return (T)(a + b);
    }
};

struct Sub {
    template <class T>
    T operator()(T a, T b) const
    {
        return (T)(a - b);
    }
};

struct AddSaturated {
    s32 operator()(s32 a, s32 b) const
    {
        return (s32)std::clamp<s64>((s64)a + b, INT32_MIN, INT32_MAX);
    }
};

struct Mul {
    template <class T>
    T operator()(T a, T b) const
    {
        return (T)((u64)a * (u64)b);
    }
};

template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, __int128, u128>;

struct MulHigh {
    template <class T>
    T operator()(T a, T b) const
    {
        return (T)((Wide<T>)a * (Wide<T>)b >> (8 * sizeof(T)));
    }
};

template <class D>
struct MulWide {
    template <class T>
    D operator()(T a, T b) const
    {
        return (D)a * (D)b;
    }
};

struct Min {
    template <class T>
    T operator()(T a, T b) const
    {
        return std::min(a, b);
    }
};

struct Max {
    template <class T>
    T operator()(T a, T b) const
    {
        return std::max(a, b);
    }
};

struct And {
    template <class T>
    T operator()(T a, T b) const
    {
        return a & b;
    }
};

struct Or {
    template <class T>
    T operator()(T a, T b) const
    {
        return a | b;
    }
};

struct Xor {
    template <class T>
    T operator()(T a, T b) const
    {
        return a ^ b;
    }
};

/* ---- handlers for what is rarer: of any type, in 64 bits ---- */

template <class F>
void each_lane(Warp &w, const Insn &in, u32 lanes, F value)
{
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, value(l)); });
}

void run_mad(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) { return w.get(in.a, l) * w.get(in.b, l) + w.get(in.c, l); });
}

void run_mad_wide(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes,
              [&](u32 l) { return w.get(in.a, l, in.type) * w.get(in.b, l, in.type) + w.get(in.c, l); });
}

void run_mad_high(Warp &w, const Insn &in, u32 lanes)
{
    const int bits = bits_of(in.type);
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 a = w.get(in.a, l, in.type), b = w.get(in.b, l, in.type);
        const u128 product = is_signed(in.type) ? (u128)((__int128)(s64)a * (s64)b) : (u128)a * b;
        return (u64)(product >> bits) + w.get(in.c, l);
    });
}

void run_add_carry(Warp &w, const Insn &in, u32 lanes)
{
    const u128 most = bits_of(in.type) == 64 ? ~0ull : 0xffffffffu;
    each_lane(w, in, lanes, [&](u32 l) {
        const u128 sum = (u128)w.get(in.a, l) + w.get(in.b, l) + (in.flag ? w.carry[l] : 0);
        w.carry[l] = in.carry_out ? sum > most : w.carry[l];
        return (u64)(sum & most);
    });
}

void run_sub_carry(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) {
        const u128 minus = (u128)w.get(in.b, l) + (in.flag ? !w.carry[l] : 0);
        const u64 a = w.get(in.a, l);
        w.carry[l] = in.carry_out ? a >= minus : w.carry[l];
        return a - (u64)minus;
    });
}

template <bool REMAINDER>
void run_divide(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) -> u64 {
        const u64 a = w.get(in.a, l, in.type), b = w.get(in.b, l, in.type);
        if (b == 0) {
            w.report_here("DIV0", l, "");
            return REMAINDER ? a : ~0ull;
        }
        if (!is_signed(in.type)) {
            return REMAINDER ? a % b : a / b;
        }
        if ((s64)b == -1) {
            return REMAINDER ? 0 : 0 - a;
        }
        return (u64)(REMAINDER ? (s64)a % (s64)b : (s64)a / (s64)b);
    });
}

void run_sad(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) {
        const s64 a = (s64)w.get(in.a, l, in.type), b = (s64)w.get(in.b, l, in.type);
        return (u64)(a < b ? b - a : a - b) + w.get(in.c, l);
    });
}

void run_abs(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) {
        const s64 a = (s64)w.get(in.a, l, in.type);
        return a < 0 ? 0 - (u64)a : (u64)a;
    });
}

void run_neg(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) { return 0 - w.get(in.a, l, in.type); });
}

void run_not(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) { return ~w.get(in.a, l); });
}

void run_cnot(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) { return w.get(in.a, l, in.type) == 0; });
}

template <class OP>
void run_predicates(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) { return OP()(w.predicate(in.a, l), w.predicate(in.b, l)); });
}

void run_not_predicate(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) { return !w.predicate(in.a, l); });
}

/* ---- shifts and bits ---- */

void run_shl(Warp &w, const Insn &in, u32 lanes)
{
    const u64 bits = (u64)bits_of(in.type);
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 by = w.get(in.b, l);
        return by >= bits ? 0 : w.get(in.a, l) << by;
    });
}

void run_shr(Warp &w, const Insn &in, u32 lanes)
{
    const u64 bits = (u64)bits_of(in.type);
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 a = w.get(in.a, l, in.type), by = w.get(in.b, l);
        if (is_signed(in.type)) {
            return (u64)((s64)a >> std::min<u64>(by, 63));
        }
        return by >= bits ? 0 : a >> by;
    });
}

/* mode 1: left; flag: the amount wraps */
void run_shf(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) {
        const u32 amount = (u32)w.get(in.c, l);
        const u32 by = in.flag ? amount & 31 : std::min(amount, 32u);
        const u64 both = w.get(in.b, l) << 32 | (u32)w.get(in.a, l);
        return in.mode ? both << by >> 32 : both >> by;
    });
}

u32 permute(u64 bytes, u32 selector)
{
    u32 result = 0;
    for (u32 i = 0; i < 4; i++) {
        const u32 s = selector >> (4 * i) & 15;
        const u32 byte = (u32)(bytes >> (8 * (s & 7))) & 255;
        result |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return result;
}

/* Selectors of the modes f4e, b4e, rc8, ecl, ecr, rc16. */
const u32 permute_modes[6][4] = {
    {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123}, {0x0000, 0x1111, 0x2222, 0x3333},
    {0x3210, 0x3211, 0x3222, 0x3333}, {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232},
};

void run_prmt(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 bytes = w.get(in.b, l) << 32 | (u32)w.get(in.a, l);
        const u32 selector = (u32)w.get(in.c, l);
        return permute(bytes, in.mode ? permute_modes[in.mode - 1][selector & 3] : selector);
    });
}

void run_lop3(Warp &w, const Insn &in, u32 lanes)
{
    u32 *const d = w.row_out<u32>(in.d);
    const u32 *const a = w.row<u32>(in.a), *const b = w.row<u32>(in.b), *const c = w.row<u32>(in.c);
    for_lanes(lanes, [&](u32 l) {
        u32 result = 0;
        for (u32 i = 0; i < 8; i++) {
            const u32 term = (i & 4 ? a[l] : ~a[l]) & (i & 2 ? b[l] : ~b[l]) & (i & 1 ? c[l] : ~c[l]);
            result |= in.mode >> i & 1 ? term : 0;
        }
        d[l] = result;
    });
}

void run_bfe(Warp &w, const Insn &in, u32 lanes)
{
    const u32 last = (u32)bits_of(in.type) - 1;
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 a = w.get(in.a, l, in.type);
        const u32 from = (u32)w.get(in.b, l) & 255, n = (u32)w.get(in.c, l) & 255;
        const u64 sign = is_signed(in.type) && n ? a >> std::min(from + n - 1, last) & 1 : 0;
        u64 result = 0;
        for (u32 i = 0; i <= last; i++) {
            result |= (i < n && from + i <= last ? a >> (from + i) & 1 : sign) << i;
        }
        return result;
    });
}

void run_bfi(Warp &w, const Insn &in, u32 lanes)
{
    const u32 bits = (u32)bits_of(in.type);
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 a = w.get(in.a, l);
        u64 into = w.get(in.b, l);
        const u32 at = (u32)w.get(in.c, l) & 255, n = (u32)w.get(in.mask, l) & 255;
        for (u32 i = 0; i < n && at + i < bits; i++) {
            into = (into & ~(1ull << (at + i))) | (a >> i & 1) << (at + i);
        }
        return into;
    });
}

/* flag: .shiftamt */
void run_bfind(Warp &w, const Insn &in, u32 lanes)
{
    const u32 bits = (u32)bits_of(in.type);
    each_lane(w, in, lanes, [&](u32 l) -> u64 {
        u64 a = w.get(in.a, l, in.type);
        a = is_signed(in.type) && (s64)a < 0 ? ~a : a;
        a &= bits == 64 ? ~0ull : 0xffffffffu;
        if (!a) {
            return ~0ull;
        }
        const u32 at = 63 - (u32)__builtin_clzll(a);
        return in.flag ? bits - 1 - at : at;
    });
}

void run_popc(Warp &w, const Insn &in, u32 lanes)
{
    each_lane(w, in, lanes, [&](u32 l) { return (u64)__builtin_popcountll(w.get(in.a, l)); });
}

void run_clz(Warp &w, const Insn &in, u32 lanes)
{
    const u64 bits = (u64)bits_of(in.type);
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 a = w.get(in.a, l);
        return a ? (u64)__builtin_clzll(a) - (64 - bits) : bits;
    });
}

void run_brev(Warp &w, const Insn &in, u32 lanes)
{
    const int bits = bits_of(in.type);
    each_lane(w, in, lanes, [&](u32 l) {
        const u64 a = w.get(in.a, l);
        u64 result = 0;
        for (int i = 0; i < bits; i++) {
            result |= (a >> i & 1) << (bits - 1 - i);
        }
        return result;
    });
}

/* ---- makers ---- */

void make_add(Statement &s)
{
    if (is_float(s.insn.type)) {
        float_add(s);
    } else if (s.insn.carry_out || s.word == "addc") {
        s.insn.flag = s.word == "addc";
        s.take(run_add_carry, s.insn.type, 3);
    } else {
        s.take(s.insn.sat ? binary<s32, s32, AddSaturated> : binary_of<Add>(unsigned_of(s.insn.type)),
               s.insn.type, 3);
    }
}

void make_sub(Statement &s)
{
    if (is_float(s.insn.type)) {
        float_sub(s);
    } else if (s.insn.carry_out || s.word == "subc") {
        s.insn.flag = s.word == "subc";
        s.take(run_sub_carry, s.insn.type, 3);
    } else {
        s.take(binary_of<Sub>(unsigned_of(s.insn.type)), s.insn.type, 3);
    }
}

Type twice(Type type)
{
    return bits_of(type) == 32 ? Type::b64 : Type::b32;
}

void make_mul(Statement &s)
{
    const Type type = s.insn.type;
    if (is_float(type)) {
        float_mul(s);
    } else if (s.has("wide")) {
        const Handler of16 =
            is_signed(type) ? binary<s32, s16, MulWide<s32>> : binary<u32, u16, MulWide<u32>>;
        const Handler of32 =
            is_signed(type) ? binary<s64, s32, MulWide<s64>> : binary<u64, u32, MulWide<u64>>;
        s.take(bits_of(type) == 32 ? of32 : of16, type, 3);
        s.insn.d = s.operand(0, twice(type));
    } else {
        s.take(s.has("hi") ? binary_of<MulHigh>(type) : binary_of<Mul>(unsigned_of(type)), type, 3);
    }
}

void make_mad(Statement &s)
{
    const Type type = s.insn.type;
    if (is_float(type)) {
        float_fma(s);
    } else if (s.insn.carry_out) {
        s.unknown();
    } else if (s.has("wide")) {
        s.take(run_mad_wide, type, 3);
        s.insn.d = s.operand(0, twice(type));
        s.insn.c = s.operand(3, twice(type));
    } else {
        s.take(s.has("hi") ? run_mad_high : run_mad, type, 4);
    }
}

void make_div(Statement &s)
{
    is_float(s.insn.type) ? float_div(s) : s.take(run_divide<false>, s.insn.type, 3);
}

void make_abs(Statement &s)
{
    is_float(s.insn.type) ? float_abs(s) : s.take(run_abs, s.insn.type, 2);
}

void make_neg(Statement &s)
{
    is_float(s.insn.type) ? float_neg(s) : s.take(run_neg, s.insn.type, 2);
}

void make_min(Statement &s)
{
    is_float(s.insn.type) ? float_min(s) : s.take(binary_of<Min>(s.insn.type), s.insn.type, 3);
}

void make_max(Statement &s)
{
    is_float(s.insn.type) ? float_max(s) : s.take(binary_of<Max>(s.insn.type), s.insn.type, 3);
}

template <class OP>
void make_logic(Statement &s)
{
    s.take(s.insn.type == Type::pred ? run_predicates<OP> : binary_of<OP>(s.insn.type), s.insn.type, 3);
}

void make_shift(Statement &s)
{
    s.take(s.word == "shl" ? run_shl : run_shr, s.insn.type, 2);
    s.insn.b = s.operand(2, Type::b32);
}

void make_shf(Statement &s)
{
    s.insn.mode = s.has("l");
    s.insn.flag = s.has("wrap");
    s.take(run_shf, Type::b32, 4);
}

void make_prmt(Statement &s)
{
    const char *modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
    for (u8 i = 0; i < 6; i++) {
        s.insn.mode = s.has(modes[i]) ? (u8)(i + 1) : s.insn.mode;
    }
    s.take(run_prmt, Type::b32, 4);
}

void make_lop3(Statement &s)
{
    s.take(run_lop3, Type::b32, 4);
    s.insn.mode = (u8)s.immediate(4);
}

void make_bfe(Statement &s)
{
    s.take(run_bfe, s.insn.type, 2);
    s.insn.b = s.operand(2, Type::b32);
    s.insn.c = s.operand(3, Type::b32);
}

void make_bfi(Statement &s)
{
    s.take(run_bfi, s.insn.type, 3);
    s.insn.c = s.operand(3, Type::b32);
    s.insn.mask = s.operand(4, Type::b32);
}

/* To 32 bits whatever the type of the operand. */
template <Handler RUN>
void make_count(Statement &s)
{
    s.insn.flag = s.has("shiftamt");
    s.take(RUN, s.insn.type, 2);
    s.insn.d = s.operand(0, Type::b32);
}

template <Handler RUN, size_t N>
void make(Statement &s)
{
    s.take(RUN, s.insn.type, N);
}

void make_not(Statement &s)
{
    s.take(s.insn.type == Type::pred ? run_not_predicate : run_not, s.insn.type, 2);
}

} // namespace

extern const MakerTable integer_makers;
const MakerTable integer_makers = {
    {"add", make_add},
    {"addc", make_add},
    {"sub", make_sub},
    {"subc", make_sub},
    {"mul", make_mul},
    {"mad", make_mad},
    {"div", make_div},
    {"rem", make<run_divide<true>, 3>},
    {"sad", make<run_sad, 4>},
    {"abs", make_abs},
    {"neg", make_neg},
    {"min", make_min},
    {"max", make_max},
    {"and", make_logic<And>},
    {"or", make_logic<Or>},
    {"xor", make_logic<Xor>},
    {"not", make_not},
    {"cnot", make<run_cnot, 2>},
    {"shl", make_shift},
    {"shr", make_shift},
    {"shf", make_shf},
    {"prmt", make_prmt},
    {"lop3", make_lop3},
    {"bfe", make_bfe},
    {"bfi", make_bfi},
    {"bfind", make_count<run_bfind>},
    {"popc", make_count<run_popc>},
    {"clz", make_count<run_clz>},
    {"brev", make<run_brev, 2>},
};

} // namespace tw::ptx
