/* The AVX-512 backend. Compiled with -mavx512{f,bw,vl,dq}, used only if the machine has them all. */
#include "quant/entropy/vec_avx512.h"

#include "quant/ecdq/lanes.h"

const tw_ecdq_backend_t tw_ecdq_avx512 = {.is = VEC_BACKEND, LANES};
