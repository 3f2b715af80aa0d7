/* The AVX-512 twin. Compiled with -mavx512{f,bw,vl,dq,bf16} and what quant_avx2.c is; used only where the machine has
 * them all: Zen 4, Sapphire Rapids and later. */
#include "quant/host/group_avx512.h"

#include "quant/host/group.h"

static int avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && cpu_has_f16c();
}

const tw_quant_backend_t tw_quant_backend_avx512 = {
    .name = "avx512",
    .mem = TW_MEM_HOST,
    .usable = avx512_usable,
    GROUP_OPERATIONS,
};
