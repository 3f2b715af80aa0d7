/* The AVX2 backend. Compiled with -mavx2 -mfma -mf16c, used only if the machine has all three. */
#include "quant/host/group_avx2.h"

#include "quant/host/group_reduce.h"

static int avx2_usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

const tw_quant_backend_t tw_quant_backend_avx2 = {
    .is = {"avx2", TW_MEM_HOST, avx2_usable},
    .host = &group_operations,
    TW_QUANT_HOST_OPERATIONS,
};
