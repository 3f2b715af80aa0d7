/** Private to trainer/model: rotary embeddings (arXiv 2104.09864). A head's channels i and i + D / 2 are a
 *  pair, which turns by an angle that grows with the position; D is even. */
#pragma once

#include "trainer/model/model.h"

TW_C_BEGIN

/** Radians that pair `pair` of width / 2 turns from a position to the next, stretched as the type says. */
double tw_rope_frequency(const tw_model_rope_t *rope, size_t width, size_t pair);
/** What all cosines and sines are multiplied by: 1 but in YaRN. */
double tw_rope_attention_factor(const tw_model_rope_t *rope);
/** cosines, sines (seq_len, width / 2) */
void tw_rope_table(const tw_model_rope_t *rope, size_t width, size_t seq_len, float *cosines, float *sines);

TW_C_END
