/* Finds which kernels this machine can run. */
#include "trainer/model/kernels.h"

extern const tw_kernel_set_t tw_kernels_plain, tw_kernels_avx2, tw_kernels_avx512;

enum { MOST_SETS = 3 };
static const tw_kernel_set_t *sets[MOST_SETS] = {&tw_kernels_plain};
static size_t n_sets = 1;

/** Runs once, when the program is loaded, as CPUID may take microseconds under a hypervisor. */
__attribute__((constructor)) static void look_at_cpu(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) {
        sets[n_sets++] = &tw_kernels_avx2;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        sets[n_sets++] = &tw_kernels_avx512;
    }
#endif
}

const tw_kernel_set_t *tw_kernels(void)
{
    return sets[n_sets - 1];
}

const tw_kernel_set_t *tw_kernels_get(size_t index)
{
    return index < n_sets ? sets[index] : NULL;
}
