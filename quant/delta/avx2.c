/* The AVX2 twin. Compiled with -mavx2, used only where the machine has it. */
#include "quant/entropy/vec_avx2.h"

#include "quant/delta/lanes.h"

static int avx2_usable(void)
{
    return __builtin_cpu_supports("avx2");
}

const tw_delta_backend_t tw_delta_avx2 = {
    .name = "avx2",
    .usable = avx2_usable,
    .encode = lanes_encode,
    .decode = lanes_decode,
};
