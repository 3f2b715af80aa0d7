/** The SIMD part of conversions. Private to the folder.
 *  Each function converts the first elements and returns their number; the caller converts the rest. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Whether this machine has AVX2 and F16C, or NEON. */
#if defined(__x86_64__) || defined(__aarch64__)
int tw_convert_simd_usable(void);
#else
#define tw_convert_simd_usable() 0
#endif

size_t tw_convert_simd_to_fp32(tw_type_t type, const void *src, float *dst, size_t n_elems);
size_t tw_convert_simd_from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n_elems);
size_t tw_convert_simd_add_fp32(tw_type_t type, const void *src, float *acc, size_t n_elems);
size_t tw_convert_simd_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n_elems);

TW_C_END
