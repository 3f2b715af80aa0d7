/* Rotary embeddings, scaled like those of Hugging Face's transformers for the same config.json. */
#include "trainer/model/rope.h"

#include <math.h>

#define TWO_PI 6.28318530717958647693

/** Scale a frequency as Llama 3 does. If its wavelength is above n_positions / low_freq_factor, divide it by
 *  `factor`. If below n_positions / high_freq_factor, do not change it. In between, interpolate. */
static double llama3(const tw_model_rope_t *rope, double frequency)
{
    double turns = (double)rope->n_positions * frequency / TWO_PI;
    double keep = (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    keep = fmin(fmax(keep, 0.0), 1.0);
    return (1.0 - keep) * frequency / rope->factor + keep * frequency;
}

/** Return the pair (not rounded to an integer) that makes this many turns in n_positions. */
static double pair_of_turns(const tw_model_rope_t *rope, size_t width, double turns)
{
    return (double)width * log((double)rope->n_positions / (turns * TWO_PI)) / (2.0 * log(rope->theta));
}

/** Scale a frequency as YaRN does (arXiv 2309.00071, section 3.2): keep it up to the pair of beta_fast turns,
 *  divide it by `factor` from the pair of beta_slow turns on, and interpolate by pairs in between. */
static double yarn(const tw_model_rope_t *rope, size_t width, size_t pair, double frequency)
{
    double first = fmax(floor(pair_of_turns(rope, width, rope->beta_fast)), 0.0);
    double last = fmin(ceil(pair_of_turns(rope, width, rope->beta_slow)), (double)width - 1.0);
    last = last == first ? first + 0.001 : last;
    double stretch = fmin(fmax(((double)pair - first) / (last - first), 0.0), 1.0);
    return stretch * frequency / rope->factor + (1.0 - stretch) * frequency;
}

double tw_rope_frequency(const tw_model_rope_t *rope, size_t width, size_t pair)
{
    double frequency = pow(rope->theta, -2.0 * (double)pair / (double)width);
    switch (rope->type) {
    case TW_MODEL_ROPE_LINEAR:
        return frequency / rope->factor;
    case TW_MODEL_ROPE_LLAMA3:
        return llama3(rope, frequency);
    case TW_MODEL_ROPE_YARN:
        return yarn(rope, width, pair, frequency);
    default:
        return frequency;
    }
}

double tw_rope_attention_factor(const tw_model_rope_t *rope)
{
    if (rope->type != TW_MODEL_ROPE_YARN) {
        return 1.0;
    }
    return rope->attention_factor > 0.0 ? rope->attention_factor : 0.1 * log(rope->factor) + 1.0;
}

void tw_rope_table(const tw_model_rope_t *rope, size_t width, size_t seq_len, float *cosines, float *sines)
{
    double factor = tw_rope_attention_factor(rope);
    size_t pairs = width / 2;
    for (size_t pair = 0; pair < pairs; pair++) {
        double frequency = tw_rope_frequency(rope, width, pair);
        for (size_t t = 0; t < seq_len; t++) {
            cosines[t * pairs + pair] = (float)(factor * cos((double)t * frequency));
            sines[t * pairs + pair] = (float)(factor * sin((double)t * frequency));
        }
    }
}
