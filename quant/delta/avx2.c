/* The AVX2 twin. Compiled with -mavx2, used only where the machine has it. */
#include "quant/entropy/vec_avx2.h"

#include "quant/delta/lanes.h"

const tw_delta_backend_t tw_delta_avx2 = {
    .is = VEC_BACKEND,
    .encode = lanes_encode,
    .decode = lanes_decode,
};
