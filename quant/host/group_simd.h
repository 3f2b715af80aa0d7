/** Code for groups of 32 floats in AVX2 or NEON registers. Include simd_<isa>.h first. Private to the
 *  folder. */
#pragma once

#include "quant/arithmetic/block.h"

/* Loops over registers must be unrolled, or compilers would keep the registers in memory. */
#define UNROLL _Pragma("GCC unroll 8")
#define FOR_EACH_REGISTER(r) UNROLL for (int r = 0; r < TW_QUANT_HADAMARD_ELEMS / SIMD_ELEMS; r++)

typedef struct {
    simd_t v[TW_QUANT_HADAMARD_ELEMS / SIMD_ELEMS];
} group_t;

/** Load 32 elements at src[i]. */
INLINE group_t group_load(tw_type_t type, const void *src, size_t i)
{
    group_t g;
    FOR_EACH_REGISTER(r)
    {
        g.v[r] = simd_load(type, src, i + SIMD_ELEMS * (size_t)r);
    }
    return g;
}

/** tw_float_store for 32 elements. */
INLINE void group_store(tw_type_t type, void *dst, size_t i, group_t g)
{
    FOR_EACH_REGISTER(r)
    {
        simd_store(type, dst, i + SIMD_ELEMS * (size_t)r, g.v[r]);
    }
}

/** Blocks with scales above this, or 0, decode fast (see group_decode.h). Here all scales do. */
#define GROUP_SCALE_TINY_BITS 0u
/** tw_float_store for 32 values of a block that decodes fast. */
#define group_store_decoded group_store_small

INLINE group_t group_add(group_t a, group_t b)
{
    FOR_EACH_REGISTER(r)
    {
        a.v[r] += b.v[r];
    }
    return a;
}

INLINE group_t group_sub(group_t a, group_t b)
{
    FOR_EACH_REGISTER(r)
    {
        a.v[r] -= b.v[r];
    }
    return a;
}

INLINE group_t group_mul(group_t g, float factor)
{
    FOR_EACH_REGISTER(r)
    {
        g.v[r] *= simd_set(factor);
    }
    return g;
}

/** A block's decoder: the block's scale, in all lanes. */
typedef struct {
    simd_t scale;
} decoder_t;

INLINE decoder_t decoder_for(tw_quant_kind_t kind, float scale)
{
    (void)kind;
    return (decoder_t){simd_set(scale)};
}
