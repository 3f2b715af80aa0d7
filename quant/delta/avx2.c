/* The AVX2 backend. Compiled with -mavx2, used only if the machine has AVX2. */
#include "quant/entropy/vec_avx2.h"

#include "quant/delta/lanes.h"

const tw_delta_backend_t tw_delta_avx2 = {
    .is = VEC_BACKEND,
    .encode = lanes_encode,
    .decode = lanes_decode,
};
