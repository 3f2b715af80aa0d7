/* Loads, stores, atomics and cp.async. */
#include <algorithm>

#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/makers.h"

namespace tw::ptx
{

namespace
{

u64 load(const u8 *from, Type type)
{
    switch (type) {
    case Type::S8:
        return (u64)(s64)(s8)*from;
    case Type::S16:
        return (u64)(s64)bits_as<s16>(*(const u16 *)from);
    case Type::S32:
        return (u64)(s64)bits_as<s32>(*(const u32 *)from);
    default:
        break;
    }
    u64 value = 0;
    memcpy(&value, from, (size_t)bits_of(type) / 8);
    return value;
}

void run_ld(Warp &w, const Insn &in, u32 lanes)
{
    const u32 each = (u32)bits_of(in.type) / 8, n = (u32)in.vector.size();
    for_lanes(lanes, [&](u32 l) {
        const u64 address = w.get(in.a, l) + (u64)in.offset;
        const u8 *from = w.memory(in, in.space, address, each * n, l, Access::read);
        for (u32 i = 0; i < n; i++) {
            w.put(in.vector[i], l, from ? load(from + i * each, in.type) : 0xdeadbeefdeadbeefull);
        }
    });
}

void run_st(Warp &w, const Insn &in, u32 lanes)
{
    const u32 each = (u32)bits_of(in.type) / 8, n = (u32)in.vector.size();
    for_lanes(lanes, [&](u32 l) {
        const u64 address = w.get(in.a, l) + (u64)in.offset;
        u8 *to = w.memory(in, in.space, address, each * n, l, Access::write);
        for (u32 i = 0; to && i < n; i++) {
            const u64 value = w.get(in.vector[i], l);
            memcpy(to + i * each, &value, each);
        }
    });
}

void make_ld(Statement &s)
{
    s.insn.run = run_ld;
    s.take_vector(0, s.insn.type);
    s.take_address(1, &s.insn.a, &s.insn.offset);
}

void make_st(Statement &s)
{
    s.insn.run = run_st;
    s.take_vector(1, s.insn.type);
    s.take_address(0, &s.insn.a, &s.insn.offset);
}

/* ---- atomics ---- */

u64 add(Type type, u64 a, u64 b)
{
    if (type == Type::f32) {
        return result_bits(float_of((u32)a) + float_of((u32)b));
    }
    return type == Type::f64 ? result_bits(double_of(a) + double_of(b)) : a + b;
}

u64 larger(Type type, u64 a, u64 b)
{
    return is_signed(type) ? (u64)std::max((s64)a, (s64)b) : std::max(a, b);
}

u64 atomic(const Insn &in, u64 old, u64 b, u64 c)
{
    switch (in.mode) {
    case 0:
        return add(in.type, old, b);
    case 1:
        return larger(in.type, old, b) == old ? b : old;
    case 2:
        return larger(in.type, old, b);
    case 3:
        return old & b;
    case 4:
        return old | b;
    case 5:
        return old ^ b;
    case 6:
        return b;
    case 7:
        return old == b ? c : old;
    case 8:
        return old >= b ? 0 : old + 1;
    default:
        return old == 0 || old > b ? b : old - 1;
    }
}

void run_atom(Warp &w, const Insn &in, u32 lanes)
{
    const u32 bytes = (u32)bits_of(in.type) / 8;
    for_lanes(lanes, [&](u32 l) {
        u8 *at = w.memory(in, in.space, w.get(in.a, l) + (u64)in.offset, bytes, l, Access::atomic);
        if (!at) {
            return;
        }
        const bool swap = in.c.kind != Operand::nothing;
        const u64 old = load(at, in.type);
        const u64 now = atomic(in, old, w.get(in.b, l, in.type), swap ? w.get(in.c, l, in.type) : 0);
        memcpy(at, &now, bytes);
        w.put(in.d, l, old);
    });
}

void make_atom(Statement &s)
{
    Insn &in = s.insn;
    const size_t first = s.word == "atom" ? 1 : 0;
    in.run = run_atom;
    in.mode = s.which({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"});
    const bool whole = !is_float(in.type) || ((in.type == Type::f32 || in.type == Type::f64) && in.mode == 0);
    if (!whole) {
        s.unknown();
    }
    if (first) {
        in.d = s.operand(0, in.type);
    }
    s.take_address(first, &in.a, &in.offset);
    in.b = s.operand(first + 1, in.type);
    if (in.mode == 7) {
        in.c = s.operand(first + 2, in.type);
    }
}

/* ---- cp.async ---- */

/* From [b + offset2] in global memory to [a + offset] in shared; c: how many bytes, the others are 0. */
void run_copy(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const u64 to = w.get(in.a, l) + (u64)in.offset, from = w.get(in.b, l) + (u64)in.offset2;
        const u32 n = in.c.kind == Operand::nothing ? in.bytes : (u32)w.get(in.c, l);
        const u8 *source = n ? w.memory(in, Space::global, from, n, l, Access::read) : nullptr;
        Copy copy = {(u32)to, in.bytes, w.copy_group[l], {}};
        if (source) {
            memcpy(copy.data, source, n);
        }
        if (w.memory(in, Space::shared, to, in.bytes, l, Access::write) && (source || !n)) {
            w.copy_begin(l, copy);
        }
    });
}

void run_commit(Warp &w, const Insn &, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) { w.copy_group[l]++; });
}

/* flag: all; otherwise all but the last `offset` groups */
void run_wait(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) {
        const std::vector<Copy> &copies = w.copies[l];
        size_t n = 0;
        while (n < copies.size() && (in.flag || copies[n].group + (u32)in.offset < w.copy_group[l])) {
            n++;
        }
        w.copies_end(l, n);
    });
}

void make_cp(Statement &s)
{
    Insn &in = s.insn;
    in.run = s.has("commit_group")                      ? run_commit
             : s.has("wait_all") || s.has("wait_group") ? run_wait
                                                        : run_copy;
    if (!s.has("async")) {
        s.unknown();
    }
    if (s.has("wait_group")) {
        in.offset = (s64)s.immediate(0);
    }
    in.flag = s.has("wait_all");
    if (in.run != run_copy) {
        return;
    }
    s.take_address(0, &in.a, &in.offset);
    s.take_address(1, &in.b, &in.offset2);
    in.bytes = (u32)s.immediate(2);
    if (s.operands.size() > 3) {
        in.c = s.operand(3, Type::b32);
    }
    if (in.bytes > 16 || (s.has("cg") && in.bytes != 16)) {
        s.unknown();
    }
}

} // namespace

extern const MakerTable memory_makers;
const MakerTable memory_makers = {
    {"ld", make_ld},     {"ldu", make_ld},   {"st", make_st},
    {"atom", make_atom}, {"red", make_atom}, {"cp", make_cp},
};

} // namespace tw::ptx
