/* The AVX-512 twin. Compiled with -mavx512{f,bw,vl,dq}, used only where the machine has them all. */
#include "quant/entropy/vec_avx512.h"

#include "quant/delta/lanes.h"

const tw_delta_backend_t tw_delta_avx512 = {
    .is = VEC_BACKEND,
    .encode = lanes_encode,
    .decode = lanes_decode,
};
