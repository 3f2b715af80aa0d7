/** Conversions between types and sums of unencoded values, in host memory. SIMD code is chosen at run time
 *  and gives the same bits as the scalar code. */
#ifndef TW_QUANT_CONVERT_H
#define TW_QUANT_CONVERT_H

#include "core/core.h"

TW_C_BEGIN

/** dst[i] = fp32(src[i]). */
void tw_convert_to_fp32(tw_type_t type, const void *src, float *dst, size_t n_elems);
/** dst[i] = type(src[i] * factor), rounded to nearest even; overflow becomes infinity, as in IEEE 754. */
void tw_convert_from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n_elems);
/** acc[i] += fp32(src[i]). */
void tw_convert_add_fp32(tw_type_t type, const void *src, float *acc, size_t n_elems);
/** dst[i] = type(fp32(a[i]) + fp32(b[i])), rounded to nearest even; dst may be a or b. */
void tw_convert_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n_elems);

TW_C_END

#endif
