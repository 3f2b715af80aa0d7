/** The CUDA backend behind pointers to host memory: every call copies its arguments to the GPU, with the same
 *  alignment, runs there, and copies back; whatever changed besides the results is an error. */
#ifndef TW_TESTS_QUANT_CUDA_STAGED_H
#define TW_TESTS_QUANT_CUDA_STAGED_H

#include "quant/backend.h"

namespace tw::staged
{

/** Is there a GPU? Silent. */
bool available();

extern const tw_quant_backend_t backend;

/** test_quant_twins takes every n-th case; 1 to begin with. */
void set_take_every(size_t n);

} // namespace tw::staged

#endif
