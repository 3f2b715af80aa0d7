/** Macros that simd_avx2.h and simd_neon.h share. Private to the folder. */
#pragma once

#include "core/core.h"

#define INLINE static inline __attribute__((always_inline))

/** Call FUNCTION(type, ...) with type as a constant. FUNCTION is inlined, so it is compiled once for each. */
#define FOR_TYPE(type, FUNCTION, ...)                               \
    ((type) == TW_TYPE_FP32   ? FUNCTION(TW_TYPE_FP32, __VA_ARGS__) \
     : (type) == TW_TYPE_BF16 ? FUNCTION(TW_TYPE_BF16, __VA_ARGS__) \
                              : FUNCTION(TW_TYPE_FP16, __VA_ARGS__))
