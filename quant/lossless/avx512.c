/* The AVX-512 twin. Compiled with -mavx512{f,bw,vl,dq}, used only where the machine has them all. */
#include "quant/entropy/vec_avx512.h"

#include "quant/lossless/lanes.h"

static int avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const tw_lossless_backend_t tw_lossless_avx512 = {.name = "avx512", .usable = avx512_usable, LANES};
