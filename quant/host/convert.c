/* Conversions on the host: with SIMD if the machine has it; the scalar code does the rest of each array. */
#include "quant/arithmetic/float.h"
#include "quant/host/convert_simd.h"
#include "quant/quant.h"

static int type_is_real(const char *function, tw_type_t type)
{
    if (type == TW_TYPE_FP32 || type == TW_TYPE_BF16 || type == TW_TYPE_FP16) {
        return 1;
    }
    return tw_fail(0, "quant: %s: type %d (%s) has no values", function, (int)type, tw_type_name(type));
}

void tw_convert_to_fp32(tw_type_t type, const void *src, float *dst, size_t n_elems)
{
    if (!type_is_real(__func__, type)) {
        return;
    }
    size_t i = tw_convert_simd_usable() ? tw_convert_simd_to_fp32(type, src, dst, n_elems) : 0;
    for (; i < n_elems; i++) {
        dst[i] = tw_float_load(type, src, i);
    }
}

void tw_convert_from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n_elems)
{
    if (!type_is_real(__func__, type)) {
        return;
    }
    size_t i = tw_convert_simd_usable() ? tw_convert_simd_from_fp32(type, src, factor, dst, n_elems) : 0;
    for (; i < n_elems; i++) {
        tw_float_store(type, dst, i, tw_float_mul(src[i], factor));
    }
}

void tw_convert_add_fp32(tw_type_t type, const void *src, float *acc, size_t n_elems)
{
    if (!type_is_real(__func__, type)) {
        return;
    }
    size_t i = tw_convert_simd_usable() ? tw_convert_simd_add_fp32(type, src, acc, n_elems) : 0;
    for (; i < n_elems; i++) {
        acc[i] = tw_float_add(acc[i], tw_float_load(type, src, i));
    }
}

void tw_convert_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n_elems)
{
    if (!type_is_real(__func__, type)) {
        return;
    }
    size_t i = tw_convert_simd_usable() ? tw_convert_simd_add(type, a, b, dst, n_elems) : 0;
    for (; i < n_elems; i++) {
        tw_float_store(type, dst, i, tw_float_add(tw_float_load(type, a, i), tw_float_load(type, b, i)));
    }
}
