/** Private to trainer: constants of tw_model_orthogonalize, for the processor and for devices. */
#pragma once

#include "trainer/model/ops.h"

TW_C_BEGIN

/** How many times x becomes x (a + b x'x + c (x'x)^2). */
#define TW_ORTHOGONAL_STEPS 5
#define TW_ORTHOGONAL_A 3.4445f
#define TW_ORTHOGONAL_B (-4.7750f)
#define TW_ORTHOGONAL_C 2.0315f

/** Return the factor to multiply x by before the first step, so that no singular value is above 1. */
float tw_orthogonal_scale(const float *x, size_t n_elems);

TW_C_END
