/** What the parts of quant_group.h share; after group_<isa>.h. */
#ifndef TW_QUANT_HOST_GROUP_COMMON_H
#define TW_QUANT_HOST_GROUP_COMMON_H

#include "quant/arithmetic/block.h"
#include "quant/backend.h"

#define GROUP TW_QUANT_HADAMARD_ELEMS

/* FUNCTION(..., constant) for each value of `type` or `bits`: FUNCTION is always inlined, so it is compiled for each. */
#define FOR_TYPE(type, FUNCTION, ...)                               \
    ((type) == TW_TYPE_FP32   ? FUNCTION(TW_TYPE_FP32, __VA_ARGS__) \
     : (type) == TW_TYPE_BF16 ? FUNCTION(TW_TYPE_BF16, __VA_ARGS__) \
                              : FUNCTION(TW_TYPE_FP16, __VA_ARGS__))
#define FOR_BITS(bits, FUNCTION, ...) ((bits) == 8 ? FUNCTION(8, __VA_ARGS__) : FUNCTION(4, __VA_ARGS__))

/** How far ahead of their use arrays are fetched: the processor's own fetching stops at the end of a page. */
#define AHEAD_ELEMS ((size_t)2048)

/** Ask for the memory of a group, which need not be there. */
GROUP_FN void group_fetch(tw_type_t type, const void *src, size_t i)
{
    const char *at = (const char *)src + i * (type == TW_TYPE_FP32 ? 4 : 2);
    __builtin_prefetch(at);
    if (type == TW_TYPE_FP32) {
        __builtin_prefetch(at + 64);
    }
}

GROUP_FN size_t whole_groups(size_t n)
{
    return n / GROUP * GROUP;
}

#endif
