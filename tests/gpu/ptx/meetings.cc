/* Instructions in which lanes of a warp exchange something, and products of matrices. */
#include <algorithm>

#include "tests/gpu/ptx/lanes.h"
#include "tests/gpu/ptx/makers.h"

namespace tw::ptx
{

namespace
{

/* ---- shfl: mode up, down, bfly, idx ---- */

/* The lane that a lane reads. False: none, its own value stays. */
bool shfl_from(u8 mode, u32 lane, u32 by, u32 clamp, u32 *from)
{
    const u32 segment = clamp >> 8 & 31, last = (lane & segment) | (clamp & 31 & ~segment);
    switch (mode) {
    case 0:
        *from = lane - by;
        return (s32)*from >= (s32)last;
    case 1:
        *from = lane + by;
        break;
    case 2:
        *from = lane ^ by;
        break;
    default:
        *from = (lane & segment) | (by & ~segment);
        break;
    }
    return *from <= last;
}

void run_shfl(Warp &w, const Insn &in, u32 lanes)
{
    u32 values[32];
    for_lanes(~0u, [&](u32 l) { values[l] = (u32)w.get(in.a, l); });
    u32 by[32], clamp[32];
    for_lanes(lanes, [&](u32 l) {
        by[l] = (u32)w.get(in.b, l) & 31;
        clamp[l] = (u32)w.get(in.c, l);
    });
    for_lanes(lanes, [&](u32 l) {
        u32 from;
        const bool ok = shfl_from(in.mode, l, by[l], clamp[l], &from);
        from = ok ? from : l;
        const bool there = lanes >> from & 1;
        if (!there) {
            w.report_here("SHFL-INACTIVE", l, "reads lane " + std::to_string(from) + ", which takes no part");
        }
        w.put(in.d, l, there ? values[from] : 0xbadbad);
        w.put(in.d2, l, ok);
    });
}

void make_shfl(Statement &s)
{
    Insn &in = s.insn;
    in.run = run_shfl;
    in.flow = Flow::meet;
    in.mode = s.which({"up", "down", "bfly", "idx"});
    s.take_pair(0, Type::b32, Type::pred);
    in.a = s.operand(1, Type::b32);
    in.b = s.operand(2, Type::b32);
    in.c = s.operand(3, Type::b32);
    in.mask = s.operand(4, Type::b32);
}

/* ---- vote: mode ballot, all, any, uni ---- */

void run_vote(Warp &w, const Insn &in, u32 lanes)
{
    u32 yes = 0;
    for_lanes(lanes, [&](u32 l) { yes |= (u32)w.predicate(in.a, l) << l; });
    const u32 results[] = {yes, yes == lanes, yes != 0, yes == 0 || yes == lanes};
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, results[in.mode]); });
}

void make_vote(Statement &s)
{
    Insn &in = s.insn;
    in.run = run_vote;
    in.flow = Flow::meet;
    in.mode = s.which({"ballot", "all", "any", "uni"});
    in.d = s.operand(0, in.mode ? Type::pred : Type::b32);
    in.a = s.operand(1, Type::pred);
    in.mask = s.operand(2, Type::b32);
}

/* flag: .all */
void run_match(Warp &w, const Insn &in, u32 lanes)
{
    u64 values[32] = {};
    u32 same[32] = {};
    for_lanes(lanes, [&](u32 l) { values[l] = w.get(in.a, l, in.type); });
    for_lanes(lanes, [&](u32 l) {
        for_lanes(lanes, [&](u32 k) { same[l] |= (u32)(values[k] == values[l]) << k; });
    });
    for_lanes(lanes, [&](u32 l) {
        const bool all = same[l] == lanes;
        w.put(in.d, l, in.flag && !all ? 0 : same[l]);
        w.put(in.d2, l, all);
    });
}

void make_match(Statement &s)
{
    Insn &in = s.insn;
    in.run = run_match;
    in.flow = Flow::meet;
    in.flag = s.has("all");
    s.take_pair(0, Type::b32, Type::pred);
    in.a = s.operand(1, in.type);
    in.mask = s.operand(2, Type::b32);
}

/* mode: add, min, max, and, or, xor */
void run_redux(Warp &w, const Insn &in, u32 lanes)
{
    u64 all = w.get(in.a, (u32)__builtin_ctz(lanes), in.type);
    for_lanes(lanes & (lanes - 1), [&](u32 l) {
        const u64 x = w.get(in.a, l, in.type);
        const bool above = is_signed(in.type) ? (s64)x > (s64)all : x > all;
        const u64 results[] = {all + x, above ? all : x, above ? x : all, all & x, all | x, all ^ x};
        all = results[in.mode];
    });
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, all); });
}

void make_redux(Statement &s)
{
    s.insn.flow = Flow::meet;
    s.insn.mode = s.which({"add", "min", "max", "and", "or", "xor"});
    s.take(run_redux, s.insn.type, 2);
    s.insn.mask = s.operand(2, Type::b32);
}

void run_activemask(Warp &w, const Insn &in, u32 lanes)
{
    for_lanes(lanes, [&](u32 l) { w.put(in.d, l, lanes); });
}

void make_activemask(Statement &s)
{
    s.take(run_activemask, Type::b32, 1);
}

/* ---- matrices ---- */

void check_whole(Warp &w, const char *kind, u32 lanes)
{
    if (lanes != ~0u) {
        w.report_here(kind, 0, "not all lanes take part");
    }
}

/* 8 rows of 16 bytes a matrix, from where the lanes say. flag: transposed. */
void run_ldmatrix(Warp &w, const Insn &in, u32 lanes)
{
    u16 rows[32][8] = {};
    check_whole(w, "LDMATRIX-PARTIAL", lanes);
    for (u32 i = 0; i < 8 * in.vector.size(); i++) {
        const u64 address = w.get(in.a, i) + (u64)in.offset;
        const u8 *from = w.memory(in, Space::shared, address, 16, i, Access::read);
        if (from) {
            memcpy(rows[i], from, 16);
        }
    }
    for_lanes(lanes, [&](u32 l) {
        const u32 group = l / 4, t = 2 * (l % 4);
        for (u32 i = 0; i < in.vector.size(); i++) {
            const u16(*const m)[8] = rows + 8 * i;
            const u32 low = in.flag ? m[t][group] : m[group][t];
            const u32 high = in.flag ? m[t + 1][group] : m[group][t + 1];
            w.put(in.vector[i], l, high << 16 | low);
        }
    });
}

void make_ldmatrix(Statement &s)
{
    if (!s.has("m8n8") || !s.has("b16")) {
        s.unknown();
    }
    s.insn.run = run_ldmatrix;
    s.insn.flow = Flow::meet;
    s.insn.aligned_warp = true;
    s.insn.flag = s.has("trans");
    s.take_vector(0, Type::b32);
    s.take_address(1, &s.insn.a, &s.insn.offset);
}

struct Matrices {
    double a[16][16], b[16][8];
    float c[16][8];
};

/* vector: 4 of d, 4 of a, 2 of b, 4 of c */
Matrices gather(Warp &w, const Insn &in)
{
    Matrices m;
    for_lanes(~0u, [&](u32 l) {
        const u32 group = l / 4, t = 2 * (l % 4);
        for (u32 i = 0; i < 4; i++) {
            const u32 pair = (u32)w.get(in.vector[4 + i], l);
            double *const to = &m.a[group + (i & 1 ? 8 : 0)][t + (i & 2 ? 8 : 0)];
            to[0] = float_from_bf16((u16)pair);
            to[1] = float_from_bf16((u16)(pair >> 16));
        }
        for (u32 i = 0; i < 2; i++) {
            const u32 pair = (u32)w.get(in.vector[8 + i], l);
            m.b[t + 8 * i][group] = float_from_bf16((u16)pair);
            m.b[t + 8 * i + 1][group] = float_from_bf16((u16)(pair >> 16));
        }
        for (u32 i = 0; i < 4; i++) {
            m.c[group + (i & 2 ? 8 : 0)][t + (i & 1)] = float_of((u32)w.get(in.vector[10 + i], l));
        }
    });
    return m;
}

/* Sums of 16 products, cut off: one of the results that a GPU may give. */
void run_mma(Warp &w, const Insn &in, u32 lanes)
{
    check_whole(w, "MMA-PARTIAL", lanes);
    const Matrices m = gather(w, in);
    if (w.block->count) {
        w.block->count->products++;
    }
    for_lanes(lanes, [&](u32 l) {
        for (u32 i = 0; i < 4; i++) {
            const u32 row = l / 4 + (i & 2 ? 8 : 0), column = 2 * (l % 4) + (i & 1);
            double sum = m.c[row][column];
            for (u32 k = 0; k < 16; k++) {
                sum += m.a[row][k] * m.b[k][column];
            }
            w.put(in.vector[i], l, result_bits(round_to_float(sum, Round::rz)));
        }
    });
}

void make_mma(Statement &s)
{
    if (!s.has("m16n8k16") || !s.has("bf16") || !s.has("f32")) {
        s.unknown();
    }
    s.insn.run = run_mma;
    s.insn.flow = Flow::meet;
    s.insn.aligned_warp = true;
    for (size_t i = 0; i < 4; i++) {
        s.take_vector(i, Type::b32);
    }
}

} // namespace

extern const MakerTable lane_makers;
const MakerTable lane_makers = {
    {"shfl", make_shfl},
    {"vote", make_vote},
    {"match", make_match},
    {"redux", make_redux},
    {"activemask", make_activemask},
};

extern const MakerTable matrix_makers;
const MakerTable matrix_makers = {
    {"ldmatrix", make_ldmatrix},
    {"mma", make_mma},
};

} // namespace tw::ptx
