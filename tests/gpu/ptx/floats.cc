/* Arithmetic of fp32 and fp64. Of halves there are conversions alone: our kernels compute in fp32. */
#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/makers.h"

namespace tw::ptx
{

namespace
{

float operand32(const Warp &w, const Insn &in, const Operand &o, u32 lane)
{
    const float x = float_of((u32)w.get(o, lane));
    return in.ftz ? flush(x) : x;
}

u32 finish32(const Insn &in, float x)
{
    x = in.ftz ? flush(x) : x;
    if (in.sat) {
        x = x != x || x < 0 ? 0 : x > 1 ? 1 : x;
    }
    return result_bits(x);
}

struct Plus {
    template <class T>
    T operator()(T a, T b) const
    {
        return a + b;
    }
};

struct Minus {
    template <class T>
    T operator()(T a, T b) const
    {
        return a - b;
    }
};

struct Times {
    template <class T>
    T operator()(T a, T b) const
    {
        return a * b;
    }
};

struct Over {
    template <class T>
    T operator()(T a, T b) const
    {
        return a / b;
    }
};

/* fp32 with a rounding, .ftz or .sat; the plain case is binary<float, float, OP>. */
template <class OP>
void run_binary32(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const float a = operand32(w, in, in.a, l), b = operand32(w, in, in.b, l);
        const float x =
            in.round == Round::rn ? OP()(a, b) : round_to_float(OP()((double)a, (double)b), in.round);
        w.put(in.d, l, finish32(in, x));
    });
}

template <class OP>
void make_binary(Statement &s)
{
    const Insn &in = s.insn;
    const bool plain = in.round == Round::rn && !in.ftz && !in.sat;
    const Handler of64 = plain ? binary<double, double, OP> : nullptr;
    const Handler of32 = plain ? binary<float, float, OP> : run_binary32<OP>;
    s.take(in.type == Type::f64 ? of64 : in.type == Type::f32 ? of32 : nullptr, in.type, 3);
}

void run_div_approx(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const double a = operand32(w, in, in.a, l), b = operand32(w, in, in.b, l);
        w.put(in.d, l, approximate(a / b, (u32)(w.get(in.a, l) ^ w.get(in.b, l)), in.ftz));
    });
}

void make_div(Statement &s)
{
    if (s.has("approx") || s.has("full")) {
        s.take(run_div_approx, s.insn.type, 3);
    } else {
        make_binary<Over>(s);
    }
}

struct Fused {
    double operator()(double a, double b, double c) const
    {
        return fma(a, b, c);
    }
};

void run_fma32(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const float x = fmaf(operand32(w, in, in.a, l), operand32(w, in, in.b, l), operand32(w, in, in.c, l));
        w.put(in.d, l, finish32(in, x));
    });
}

void make_fma(Statement &s)
{
    const Type type = s.insn.type;
    const Handler of64 = ternary<double, double, double, Fused>;
    const bool known = s.insn.round == Round::rn;
    s.take(!known ? nullptr : type == Type::f32 ? run_fma32 : type == Type::f64 ? of64 : nullptr, type, 4);
}

struct Absolute {
    template <class T>
    T operator()(T a) const
    {
        return std::fabs(a);
    }
};

struct Negative {
    template <class T>
    T operator()(T a) const
    {
        return -a;
    }
};

template <class OP>
void run_unary32(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, finish32(in, OP()(operand32(w, in, in.a, l)))); });
}

template <class OP>
void make_unary(Statement &s)
{
    const Type type = s.insn.type;
    const bool known = s.insn.round == Round::rn;
    const Handler of64 = unary<double, double, OP>, of32 = run_unary32<OP>;
    s.take(!known ? nullptr : type == Type::f32 ? of32 : type == Type::f64 ? of64 : nullptr, type, 2);
}

/* Of halves the sign alone. */
void run_neg_halves(Warp &w, const Insn &in, u32 lanes)
{
    const bool two = bits_of(in.type) == 32;
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, w.get(in.a, l) ^ (two ? 0x80008000u : 0x8000u)); });
}

void make_neg(Statement &s)
{
    if (s.insn.type == Type::f32 || s.insn.type == Type::f64) {
        make_unary<Negative>(s);
    } else {
        s.take(run_neg_halves, s.insn.type, 2);
    }
}

/* min and max: the number if one is NaN, unless .NaN; -0 is below 0. */
u32 choose(const Insn &in, bool larger, float a, float b)
{
    if (a != a || b != b) {
        return in.nan || (a != a && b != b) ? 0x7fffffffu : bits_as<u32>(a != a ? b : a);
    }
    if (a == b) {
        return bits_as<u32>(std::signbit(a) == larger ? b : a);
    }
    return bits_as<u32>((a > b) == larger ? a : b);
}

template <bool LARGER>
void run_choose(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        u32 bits = choose(in, LARGER, operand32(w, in, in.a, l), operand32(w, in, in.b, l));
        if (in.c.kind != Operand::nothing) {
            bits = choose(in, LARGER, float_of(bits), operand32(w, in, in.c, l));
        }
        w.put(in.d, l, bits);
    });
}

template <bool LARGER>
void make_choose(Statement &s)
{
    s.take(s.insn.type == Type::f32 ? run_choose<LARGER> : nullptr, s.insn.type, s.operands.size());
}

/* ---- functions ---- */

double inverse(double x)
{
    return 1.0 / x;
}

double inverse_root(double x)
{
    return 1.0 / sqrt(x);
}

template <double FUNCTION(double)>
void run_approx(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        w.put(in.d, l, approximate(FUNCTION(operand32(w, in, in.a, l)), (u32)w.get(in.a, l), in.ftz));
    });
}

template <double FUNCTION(double)>
struct Exact {
    template <class T>
    T operator()(T a) const
    {
        return (T)FUNCTION((double)a);
    }
};

template <double FUNCTION(double)>
void make_function(Statement &s)
{
    if (s.insn.type == Type::f32 && (s.has("approx") || s.word == "tanh")) {
        s.take(run_approx<FUNCTION>, s.insn.type, 2);
    } else {
        make_unary<Exact<FUNCTION>>(s);
    }
}

/* mode: finite, infinite, number, notanumber, normal, subnormal */
void run_testp(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const u64 bits = w.get(in.a, l);
        const bool wide = in.type == Type::f64;
        const int class_of = wide ? std::fpclassify(double_of(bits)) : std::fpclassify(float_of((u32)bits));
        const bool is[] = {
            class_of != FP_NAN && class_of != FP_INFINITE,
            class_of == FP_INFINITE,
            class_of != FP_NAN,
            class_of == FP_NAN,
            class_of == FP_NORMAL,
            class_of == FP_SUBNORMAL,
        };
        w.put(in.d, l, is[in.mode]);
    });
}

void make_testp(Statement &s)
{
    s.insn.mode = s.which({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
    s.take(run_testp, s.insn.type, 2);
    s.insn.d = s.operand(0, Type::pred);
}

/* The sign of a on b. */
struct CopySign {
    u32 operator()(u32 a, u32 b) const
    {
        return (a & 0x80000000u) | (b & 0x7fffffffu);
    }
    u64 operator()(u64 a, u64 b) const
    {
        return (a & 0x8000000000000000ull) | (b & 0x7fffffffffffffffull);
    }
};

void make_copysign(Statement &s)
{
    const bool wide = s.insn.type == Type::f64;
    s.take(wide ? binary<u64, u64, CopySign> : binary<u32, u32, CopySign>, s.insn.type, 3);
}

} // namespace

extern const Maker float_add, float_sub, float_mul, float_fma, float_div, float_abs, float_neg, float_min,
    float_max;
const Maker float_add = make_binary<Plus>, float_sub = make_binary<Minus>, float_mul = make_binary<Times>,
            float_fma = make_fma, float_div = make_div, float_abs = make_unary<Absolute>,
            float_neg = make_neg, float_min = make_choose<false>, float_max = make_choose<true>;

extern const MakerTable float_makers;
const MakerTable float_makers = {
    {"fma", make_fma},
    {"rcp", make_function<inverse>},
    {"sqrt", make_function<sqrt>},
    {"rsqrt", make_function<inverse_root>},
    {"ex2", make_function<exp2>},
    {"lg2", make_function<log2>},
    {"sin", make_function<sin>},
    {"cos", make_function<cos>},
    {"tanh", make_function<tanh>},
    {"testp", make_testp},
    {"copysign", make_copysign},
};

} // namespace tw::ptx
