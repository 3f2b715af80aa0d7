/* What can be switched on, from plain data parallelism on. */
#include <string.h>

#include "trainer/trainer.h"

#define STAGE(n) "zero_optimization.stage=" #n
#define QWZ(on) "zero_optimization.zero_quantized_weights=" #on
#define QGZ(on) "zero_optimization.zero_quantized_gradients=" #on
#define HPZ(how) "thinwire.hpz=" #how
#define LOSSLESS(weights, gradients) \
    "thinwire.lossless_weights=" #weights, "thinwire.lossless_gradients=" #gradients
#define TORCH(weights, gradients) "TW_WEIGHTS=" #weights " TW_GRADS=" #gradients
#define DELTA(bits, lossless) "thinwire.delta_bits=" #bits, "thinwire.delta_lossless=" #lossless

static const tw_trainer_set_t sets[] = {
    {"ddp", {STAGE(0), QWZ(n), QGZ(n), HPZ(off), DELTA(0, n), LOSSLESS(n, n)}, NULL},
    {"zero1", {STAGE(1), QWZ(n), QGZ(n), HPZ(off), DELTA(0, n), LOSSLESS(n, n)}, NULL},
    {"zero2", {STAGE(2), QWZ(n), QGZ(n), HPZ(off), DELTA(0, n), LOSSLESS(n, n)}, NULL},
    {"zero3", {STAGE(3), QWZ(n), QGZ(n), HPZ(off), DELTA(0, n), LOSSLESS(n, n)}, NULL},
    {"zero3-qwz", {STAGE(3), QWZ(y), QGZ(n), HPZ(off), DELTA(0, n), LOSSLESS(n, n)}, TORCH(int8, plain)},
    {"zero3-qgz", {STAGE(3), QWZ(n), QGZ(y), HPZ(off), DELTA(0, n), LOSSLESS(n, n)}, TORCH(plain, int4)},
    {"zero3-hpz", {STAGE(3), QWZ(n), QGZ(n), HPZ(on), DELTA(0, n), LOSSLESS(n, n)}, NULL},
    {"zeropp", {STAGE(3), QWZ(y), QGZ(y), HPZ(on), DELTA(0, n), LOSSLESS(n, n)}, NULL},
    {"delta8", {STAGE(3), QWZ(n), QGZ(y), HPZ(on), DELTA(8, n), LOSSLESS(n, n)}, NULL},
    {"delta4", {STAGE(3), QWZ(n), QGZ(y), HPZ(on), DELTA(4, n), LOSSLESS(n, n)}, TORCH(delta4, int4)},
    {"delta2", {STAGE(3), QWZ(n), QGZ(y), HPZ(on), DELTA(2, n), LOSSLESS(n, n)}, TORCH(delta2, int4)},
    {"delta", {STAGE(3), QWZ(n), QGZ(n), HPZ(on), DELTA(0, y), LOSSLESS(n, n)}, TORCH(delta, plain)},
    {"zero3-lossless",
     {STAGE(3), QWZ(n), QGZ(n), HPZ(off), DELTA(0, n), LOSSLESS(y, y)},
     TORCH(lossless, lossless)},
    {"lossless", {STAGE(3), QWZ(n), QGZ(n), HPZ(on), DELTA(0, y), LOSSLESS(n, y)}, TORCH(delta, lossless)},
    {"delta-g4", {STAGE(3), QWZ(n), QGZ(y), HPZ(on), DELTA(0, y), LOSSLESS(n, n)}, TORCH(delta, int4)},
};

const tw_trainer_set_t *tw_trainer_set_get(size_t index)
{
    return index < sizeof(sets) / sizeof(sets[0]) ? &sets[index] : NULL;
}

/** What a set is called now. */
static const char *current_name(const char *name)
{
    if (strcmp(name, "delta-exact") == 0) {
        return "delta";
    }
    return strcmp(name, "delta-exact-g4") == 0 ? "delta-g4" : name;
}

const tw_trainer_set_t *tw_trainer_set_find(const char *name)
{
    const tw_trainer_set_t *set;
    name = current_name(name);
    for (size_t i = 0; (set = tw_trainer_set_get(i)) && strcmp(set->name, name) != 0; i++) {
    }
    return set;
}
