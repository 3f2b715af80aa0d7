/* Draws initial values. A value is a hash of its index (a counter-based generator), not of earlier values. */
#include <math.h>

#include "trainer/model/ops.h"

/** Hash x by a step of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
 *  OOPSLA 2014). */
static uint64_t init_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/** Draw a number greater than 0 and less than 1. */
static double uniform(uint64_t key, uint64_t counter)
{
    return ((double)(init_mix(key ^ init_mix(counter)) >> 11) + 0.5) * 0x1p-53;
}

/** Draw a normal number by the Box-Muller transform, which gives elements 2i and 2i + 1 from two draws. */
static double init_normal(uint64_t key, size_t elem)
{
    uint64_t pair = elem / 2;
    double radius = sqrt(-2.0 * log(uniform(key, 2 * pair)));
    double angle = 2.0 * 3.14159265358979323846 * uniform(key, 2 * pair + 1);
    return radius * (elem % 2 ? sin(angle) : cos(angle));
}

void tw_model_init(const tw_model_t *model, size_t tensor, size_t first_elem, size_t n_elems, uint64_t seed,
                   float *out)
{
    const tw_model_tensor_t *of = &model->tensors[tensor];
    uint64_t key = init_mix(init_mix(seed) ^ (uint64_t)tensor);
    for (size_t i = 0; i < n_elems; i++) {
        out[i] =
            of->init_std > 0.0 ? (float)(of->init_std * init_normal(key, first_elem + i)) : of->init_value;
    }
}
