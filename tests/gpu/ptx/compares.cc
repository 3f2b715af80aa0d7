/* Comparisons and choices. */
#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/makers.h"

namespace tw::ptx
{

namespace
{

bool compare_ordered(Compare how, double a, double b)
{
    switch (how) {
    case Compare::eq:
    case Compare::equ:
        return a == b;
    case Compare::ne:
    case Compare::neu:
        return a != b;
    case Compare::lt:
    case Compare::ltu:
        return a < b;
    case Compare::le:
    case Compare::leu:
        return a <= b;
    case Compare::gt:
    case Compare::gtu:
        return a > b;
    case Compare::ge:
    case Compare::geu:
        return a >= b;
    default:
        return how == Compare::num;
    }
}

bool compare_floats(Compare how, double a, double b)
{
    const bool with_nan = how >= Compare::equ && how != Compare::num;
    return a != a || b != b ? with_nan : compare_ordered(how, a, b);
}

template <class T>
bool compare_integers(Compare how, T a, T b)
{
    switch (how) {
    case Compare::eq:
        return a == b;
    case Compare::ne:
        return a != b;
    case Compare::lt:
    case Compare::lo:
        return a < b;
    case Compare::le:
    case Compare::ls:
        return a <= b;
    case Compare::gt:
    case Compare::hi:
        return a > b;
    default:
        return a >= b;
    }
}

double number_at(const Warp &w, const Insn &in, const Operand &o, u32 lane)
{
    return number_of(in.type, in.ftz, w.get(o, lane));
}

bool compare_at(const Warp &w, const Insn &in, u32 lane)
{
    if (is_float(in.type)) {
        return compare_floats(in.compare, number_at(w, in, in.a, lane), number_at(w, in, in.b, lane));
    }
    const u64 a = w.get(in.a, lane, in.type), b = w.get(in.b, lane, in.type);
    return is_signed(in.type) ? compare_integers(in.compare, (s64)a, (s64)b)
                              : compare_integers(in.compare, a, b);
}

bool combine(u8 how, bool value, bool with)
{
    switch (how) {
    case 1:
        return value && with;
    case 2:
        return value || with;
    case 3:
        return value != with;
    default:
        return value;
    }
}

void run_setp(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const bool is = compare_at(w, in, l), with = in.combine ? w.predicate(in.c, l) : false;
        w.put(in.d, l, combine(in.combine, is, with));
        w.put(in.d2, l, combine(in.combine, !is, with));
    });
}

/* The most frequent ones: 32 bits, one result. */
template <class T>
void run_setp32(Warp &w, const Insn &in, u32 lanes)
{
    u32 *const d = w.row_out<u32>(in.d);
    const u32 *const a = w.row<u32>(in.a), *const b = w.row<u32>(in.b);
    for_lanes(lanes, [&](u32 l) { d[l] = compare_integers<T>(in.compare, (T)a[l], (T)b[l]); });
}

void run_selp(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, w.get(w.predicate(in.c, l) ? in.a : in.b, l)); });
}

void run_slct(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const u32 c = (u32)w.get(in.c, l);
        const bool first = in.from_type == Type::f32 ? float_of(c) >= 0 : (s32)c >= 0;
        w.put(in.d, l, w.get(first ? in.a : in.b, l));
    });
}

void make_setp(Statement &s)
{
    Insn &in = s.insn;
    in.compare = (Compare)s.which({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu",
                                   "ltu", "leu", "gtu", "geu", "num", "nan"});
    in.combine = s.has("and") ? 1 : s.has("or") ? 2 : s.has("xor") ? 3 : 0;
    s.take_pair(0, Type::pred, Type::pred);
    in.a = s.operand(1, in.type);
    in.b = s.operand(2, in.type);
    if (in.combine) {
        in.c = s.operand(3, Type::pred);
    }
    const bool frequent = !in.combine && in.d2.kind == Operand::nothing && in.d.kind == Operand::reg &&
                          bits_of(in.type) == 32 && !is_float(in.type);
    in.run = !frequent ? run_setp : is_signed(in.type) ? run_setp32<s32> : run_setp32<u32>;
}

void make_selp(Statement &s)
{
    s.take(run_selp, s.insn.type, 3);
    s.insn.c = s.operand(3, Type::pred);
}

void make_slct(Statement &s)
{
    s.take(run_slct, s.insn.type, 3);
    s.insn.c = s.operand(3, s.insn.from_type);
}

} // namespace

extern const MakerTable compare_makers;
const MakerTable compare_makers = {
    {"setp", make_setp},
    {"selp", make_selp},
    {"slct", make_slct},
};

} // namespace tw::ptx
