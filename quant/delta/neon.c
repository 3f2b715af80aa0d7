/* The NEON backend. */
#include "quant/entropy/vec_neon.h"

#include "quant/delta/lanes.h"

const tw_delta_backend_t tw_delta_neon = {
    .is = VEC_BACKEND,
    .encode = lanes_encode,
    .decode = lanes_decode,
};
