/* Computes learning rates as DeepSpeed's schedulers do. In the warm-up and in a linear decay, step s (the
 * first is 1) has the rate of DeepSpeed's iteration s. The cosine ends at total_num_steps, one iteration
 * later than DeepSpeed's. DeepSpeed's first two steps both have the warm-up's first rate, usually 0. */
#include <math.h>

#include "trainer/config/config.h"

static double clamp01(double x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

/** Return the share of the warm-up that is done at a step, 0 to 1. A logarithmic one ends a step earlier. */
static double warmup_share(const tw_train_options_t *o, double step)
{
    double length = (double)o->warmup_steps;
    if (length < 1 || step >= length) {
        return 1;
    }
    return o->warmup_type == TW_TRAIN_WARMUP_LOG ? log(step + 1) / log(length) : step / length;
}

static double cosine(const tw_train_options_t *o, double step)
{
    double warmup = (double)o->warmup_steps, length = (double)o->total_steps - warmup;
    if (step < warmup) {
        return o->warmup_min_ratio + (1 - o->warmup_min_ratio) * warmup_share(o, step);
    }
    double along = length > 0 ? clamp01((step - warmup) / length) : 1;
    return o->cos_min_ratio + (1 - o->cos_min_ratio) * 0.5 * (1 + cos(acos(-1.0) * along));
}

/** Returns WSD's factor of the rate: warm-up, stable, decay. Sources: Hu et al. (arXiv 2404.06395); for the
 *  square-root decay, Haegele et al. (arXiv 2405.18392). */
static double wsd(const tw_train_options_t *o, double step)
{
    double decay = o->decay_steps > 0 ? (double)o->decay_steps : floor((double)o->total_steps / 5);
    double begin = (double)o->total_steps - decay;
    if (step <= begin || step < (double)o->warmup_steps) {
        return warmup_share(o, step);
    }
    double along = decay > 0 ? clamp01((step - begin) / decay) : 1;
    return o->decay_min_ratio + (1 - o->decay_min_ratio) * (1 - (o->decay_type == 1 ? sqrt(along) : along));
}

double tw_train_lr_peak(const tw_train_options_t *o)
{
    int has_own = o->schedule == TW_TRAIN_WARMUP || o->schedule == TW_TRAIN_WARMUP_DECAY;
    return has_own && o->warmup_max_lr > 0 ? o->warmup_max_lr : o->lr;
}

double tw_train_lr(const tw_train_options_t *o, uint64_t step)
{
    double at = (double)step, top = tw_train_lr_peak(o);
    double length = (double)(o->total_steps - o->warmup_steps);
    switch (o->schedule) {
    case TW_TRAIN_WARMUP_COSINE:
        return o->lr * cosine(o, at);
    case TW_TRAIN_WSD:
        return o->lr * wsd(o, at);
    case TW_TRAIN_WARMUP_DECAY:
        if (step > (uint64_t)o->warmup_steps) {
            return top * (length > 0 ? clamp01(((double)o->total_steps - at) / length) : 0);
        }
        /* fall through */
    case TW_TRAIN_WARMUP:
        return o->warmup_min_lr + (top - o->warmup_min_lr) * warmup_share(o, at);
    default:
        return o->lr;
    }
}
