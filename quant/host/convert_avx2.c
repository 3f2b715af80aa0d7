/* Plain conversions, 8 elements at a time. Compiled with -mavx2 -mf16c; called only where the machine has
 * both. Each type gets a loop of its own: `type` is a constant wherever the always-inlined loops are
 * expanded. */
#include "quant/host/convert_avx2.h"
#include "quant/host/simd_avx2.h"

/* Found once, when the program is loaded: every conversion reads it, and CPUID may take microseconds under a
 * hypervisor. */
static int usable;

__attribute__((constructor)) static void look_at_cpu(void)
{
    __builtin_cpu_init();
    usable = __builtin_cpu_supports("avx2") && cpu_has_f16c();
}

int tw_convert_avx2_usable(void)
{
    return usable;
}

INLINE size_t to_fp32(tw_type_t type, const void *src, float *dst, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(dst + i, load8(type, src, i));
    }
    return i;
}

INLINE size_t from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n)
{
    __m256 f = _mm256_set1_ps(factor);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store8(type, dst, i, _mm256_mul_ps(_mm256_loadu_ps(src + i), f));
    }
    return i;
}

INLINE size_t add_fp32(tw_type_t type, const void *src, float *acc, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), load8(type, src, i)));
    }
    return i;
}

INLINE size_t convert_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store8(type, dst, i, _mm256_add_ps(load8(type, a, i), load8(type, b, i)));
    }
    return i;
}

size_t tw_convert_avx2_to_fp32(tw_type_t type, const void *src, float *dst, size_t n_elems)
{
    return FOR_TYPE(type, to_fp32, src, dst, n_elems);
}

size_t tw_convert_avx2_from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n_elems)
{
    return FOR_TYPE(type, from_fp32, src, factor, dst, n_elems);
}

size_t tw_convert_avx2_add_fp32(tw_type_t type, const void *src, float *acc, size_t n_elems)
{
    return FOR_TYPE(type, add_fp32, src, acc, n_elems);
}

size_t tw_convert_avx2_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n_elems)
{
    return FOR_TYPE(type, convert_add, a, b, dst, n_elems);
}
