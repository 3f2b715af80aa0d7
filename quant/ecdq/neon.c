/* The NEON backend. */
#include "quant/entropy/vec_neon.h"

#include "quant/ecdq/lanes.h"

const tw_ecdq_backend_t tw_ecdq_neon = {.is = VEC_BACKEND, LANES};
