/* The AVX-512 twin. Compiled with -mavx512{f,bw,vl,dq}, used only where the machine has them all. */
#include "quant/entropy/vec_avx512.h"

#include "quant/delta/lanes.h"

static int avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const tw_delta_backend_t tw_delta_avx512 = {
    .name = "avx512",
    .usable = avx512_usable,
    .encode = lanes_encode,
    .decode = lanes_decode,
};
