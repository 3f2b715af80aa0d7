/* The AVX-512 backends. Compiled with -mavx512{f,bw,vl,dq} and the flags of avx2.c, for Skylake servers and
 * later, and a second time with -mavx512bf16, for Zen 4, Cooper Lake, Sapphire Rapids and later. Used only if
 * the machine has all of them. */
#include "quant/host/group_avx512.h"

#include "quant/host/group_reduce.h"

#ifdef __AVX512BF16__
#define NAME "avx512bf16"
#define BACKEND tw_quant_backend_avx512bf16
#define HAS_BF16 __builtin_cpu_supports("avx512bf16")
#else
#define NAME "avx512"
#define BACKEND tw_quant_backend_avx512
#define HAS_BF16 1
#endif

static int avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && HAS_BF16 &&
           __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

const tw_quant_backend_t BACKEND = {
    .is = {NAME, TW_MEM_HOST, avx512_usable},
    .host = &group_operations,
    TW_QUANT_HOST_OPERATIONS,
};
