/* What each set switches on; stage 3 where nothing else is said. */
#include <string.h>

#include "bench/zero/zero.h"

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define STAGE(n) "zero_optimization.stage=" #n
#define QWZ "zero_optimization.zero_quantized_weights=true"
#define QGZ "zero_optimization.zero_quantized_gradients=true"
#define HPZ "thinwire.hpz=on"
#define DELTA(bits) "thinwire.delta_bits=" #bits
#define DELTA_EXACT "thinwire.delta_exact=true"

static const zero_set_t sets[] = {
    {"ddp", LIST(STAGE(0))},
    {"zero1", LIST(STAGE(1))},
    {"zero2", LIST(STAGE(2))},
    {ZERO_BASE, LIST(STAGE(3))},
    {"zero3-qwz", LIST(STAGE(3), QWZ)},
    {"zero3-qgz", LIST(STAGE(3), QGZ)},
    {"zero3-hpz", LIST(STAGE(3), HPZ)},
    {"zeropp", LIST(STAGE(3), QWZ, QGZ, HPZ)},
    {"delta8", LIST(STAGE(3), DELTA(8), QGZ)},
    {"delta4", LIST(STAGE(3), DELTA(4), QGZ)},
    {"delta2", LIST(STAGE(3), DELTA(2), QGZ)},
    {"delta-exact", LIST(STAGE(3), DELTA_EXACT)},
    {"delta-exact-g4", LIST(STAGE(3), DELTA_EXACT, QGZ)},
};

const zero_set_t *zero_set_get(size_t index)
{
    return index < sizeof(sets) / sizeof(sets[0]) ? &sets[index] : NULL;
}

const zero_set_t *zero_set_find(const char *name)
{
    for (size_t i = 0; zero_set_get(i) != NULL; i++) {
        if (strcmp(sets[i].name, name) == 0) {
            return &sets[i];
        }
    }
    return NULL;
}
