/* The AVX-512 twin. Compiled with -mavx512{f,bw,vl,dq,bf16} and what avx2.c is; used only where the machine
 * has them all: Zen 4, Sapphire Rapids and later. */
#include "quant/host/group_avx512.h"

#include "quant/host/group_decode.h"
#include "quant/host/group_reduce.h"

static int usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && cpu_has_f16c();
}

static const tw_quant_host_t operations = {
    .encode = encode_segment,
    .decode = decode_segment,
    .reduce_encode = reduce_encode_segment,
    .reduce_decode = reduce_decode_segment,
};

const tw_quant_backend_t tw_quant_backend_avx512 = {
    .name = "avx512",
    .usable = usable,
    .adamw_encode_delta = tw_quant_host_adamw_encode_delta,
    .host = &operations,
    TW_QUANT_HOST_OPERATIONS,
};
