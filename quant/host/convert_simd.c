/* Conversions, SIMD_ELEMS at a time. Compiled with -mavx2 -mf16c on x86, and called only if the machine has
 * both. Each type has its own loop, because loops are inlined with a constant `type`. */
#include "quant/host/convert_simd.h"
#ifdef __aarch64__
#include "quant/host/simd_neon.h"

int tw_convert_simd_usable(void)
{
    return 1;
}
#else
#include "quant/host/simd_avx2.h"

/* Set once, when the program is loaded, because every conversion reads it and CPUID may take microseconds
 * under a hypervisor. */
static int usable;

__attribute__((constructor)) static void look_at_cpu(void)
{
    __builtin_cpu_init();
    usable = __builtin_cpu_supports("avx2") && cpu_has_f16c();
}

int tw_convert_simd_usable(void)
{
    return usable;
}
#endif

INLINE size_t to_fp32(tw_type_t type, const void *src, float *dst, size_t n)
{
    size_t i = 0;
    for (; i + SIMD_ELEMS <= n; i += SIMD_ELEMS) {
        simd_store(TW_TYPE_FP32, dst, i, simd_load(type, src, i));
    }
    return i;
}

INLINE size_t from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n)
{
    simd_t f = simd_set(factor);
    size_t i = 0;
    for (; i + SIMD_ELEMS <= n; i += SIMD_ELEMS) {
        simd_store(type, dst, i, simd_load(TW_TYPE_FP32, src, i) * f);
    }
    return i;
}

INLINE size_t add_fp32(tw_type_t type, const void *src, float *acc, size_t n)
{
    size_t i = 0;
    for (; i + SIMD_ELEMS <= n; i += SIMD_ELEMS) {
        simd_store(TW_TYPE_FP32, acc, i, simd_load(TW_TYPE_FP32, acc, i) + simd_load(type, src, i));
    }
    return i;
}

INLINE size_t convert_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n)
{
    size_t i = 0;
    for (; i + SIMD_ELEMS <= n; i += SIMD_ELEMS) {
        simd_store(type, dst, i, simd_load(type, a, i) + simd_load(type, b, i));
    }
    return i;
}

size_t tw_convert_simd_to_fp32(tw_type_t type, const void *src, float *dst, size_t n_elems)
{
    return FOR_TYPE(type, to_fp32, src, dst, n_elems);
}

size_t tw_convert_simd_from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n_elems)
{
    return FOR_TYPE(type, from_fp32, src, factor, dst, n_elems);
}

size_t tw_convert_simd_add_fp32(tw_type_t type, const void *src, float *acc, size_t n_elems)
{
    return FOR_TYPE(type, add_fp32, src, acc, n_elems);
}

size_t tw_convert_simd_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n_elems)
{
    return FOR_TYPE(type, convert_add, a, b, dst, n_elems);
}
