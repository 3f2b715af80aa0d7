/** The fast host codec. It works on groups of 32 elements, in registers. avx2.c, avx512.c and neon.c each
 *  include their group_<isa>.h, which defines a group and its operations (AVX2 and NEON share group_simd.h),
 *  then group_reduce.h, which includes group_decode.h and group_encode.h. Private to the folder.
 *
 *  A block is read twice: once for its largest magnitude, and once, from the first-level cache, for its
 *  codes. Values computed in the first pass (rotated values, differences, sums) are kept as fp32 in a scratch
 *  of one block. Elements after a segment's last whole group, and blocks whose scale is so large that a
 *  result may overflow, are done one by one. */
#pragma once

#include "quant/arithmetic/block.h"
#include "quant/host/host.h"

#define GROUP TW_QUANT_HADAMARD_ELEMS

/** How many elements ahead arrays are prefetched. The processor's own prefetching stops at a page's end. */
#define AHEAD_ELEMS ((size_t)2048)

/** Prefetch the group at element i, which may be past the array's end. */
INLINE void group_fetch(tw_type_t type, const void *src, size_t i)
{
    const char *at = (const char *)src + i * (type == TW_TYPE_FP32 ? 4 : 2);
    __builtin_prefetch(at);
    if (type == TW_TYPE_FP32) {
        __builtin_prefetch(at + 64);
    }
}

INLINE size_t whole_groups(size_t n)
{
    return n / GROUP * GROUP;
}
