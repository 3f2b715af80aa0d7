/* The AVX2 twin. Compiled with -mavx2 -mfma -mf16c; used only where the machine has all three. */
#include "quant/host/group_avx2.h"

#include "quant/host/group.h"

static int avx2_usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

const tw_quant_backend_t tw_quant_backend_avx2 = {
    .name = "avx2",
    .mem = TW_MEM_HOST,
    .usable = avx2_usable,
    GROUP_OPERATIONS,
};
