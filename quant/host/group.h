/** The fast host codec: the codec over groups of 32 elements, which fill the registers of one instruction
 *  set. avx2.c and avx512.c each include their group_<isa>.h, which defines a group and what is done to one,
 *  then group_decode.h and group_reduce.h, which includes group_encode.h. Private to the folder.
 *
 *  A block is read twice, the second time from the first-level cache: once for its largest magnitude, once
 *  for its codes. What has to be computed before the magnitude is known (rotation, differences, sums) is kept
 *  in between as fp32 in a scratch of one block. Elements beyond the last whole group of a segment, and
 *  blocks whose scale is so large that a result may overflow, are done one by one. */
#pragma once

#include "quant/arithmetic/block.h"
#include "quant/host/host.h"

#define GROUP TW_QUANT_HADAMARD_ELEMS

/** How far ahead of their use arrays are fetched: the processor's own fetching stops at the end of a page. */
#define AHEAD_ELEMS ((size_t)2048)

/** Ask for the memory of a group, which need not be there. */
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
