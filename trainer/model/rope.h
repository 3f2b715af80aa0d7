/** Private to trainer/model: rotary embeddings (arXiv 2104.09864). A head's channels i and i + D / 2 are a
 *  pair, which is rotated by an angle that grows with the position; D is even. */
#pragma once

#include "trainer/model/model.h"

TW_C_BEGIN

/** Return the angle per position, in radians, of pair `pair` of width / 2, scaled as rope->type says. */
double tw_rope_frequency(const tw_model_rope_t *rope, size_t width, size_t pair);
/** Return the factor of all cosines and sines. It is 1 except in YaRN. */
double tw_rope_attention_factor(const tw_model_rope_t *rope);
/** Fill in cosines and sines, (seq_len, width / 2) each, times the attention factor. */
void tw_rope_table(const tw_model_rope_t *rope, size_t width, size_t seq_len, float *cosines, float *sines);

TW_C_END
