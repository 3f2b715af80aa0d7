/* The AVX2 twin. Compiled with -mavx2, used only where the machine has it. */
#include "quant/entropy/vec_avx2.h"

#include "quant/ecdq/lanes.h"

const tw_ecdq_backend_t tw_ecdq_avx2 = {.is = VEC_BACKEND, LANES};
