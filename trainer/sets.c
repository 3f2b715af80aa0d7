/* Lists the feature sets, the first of which is plain data parallelism. */
#include <string.h>

#include "trainer/trainer.h"

#define STAGE(n) "zero_optimization.stage=" #n
#define HPZ(how) "thinwire.hpz=" #how
#define AS(weights, gradients) "thinwire.weights=" weights, "thinwire.gradients=" gradients
/* Keys that turn off features outside the sets: older keys, and fp8. */
#define NO_OTHERS                                                                \
    "model.gather=bf16", "zero_optimization.zero_quantized_weights=n",           \
        "zero_optimization.zero_quantized_gradients=n", "thinwire.delta_bits=0", \
        "thinwire.delta_lossless=n", "thinwire.lossless_weights=n", "thinwire.lossless_gradients=n"
#define TORCH(weights, gradients) "TW_WEIGHTS=" weights " TW_GRADS=" gradients

static const tw_trainer_set_t sets[] = {
    {"ddp", {STAGE(0), HPZ(off), AS("plain", "plain"), NO_OTHERS}, NULL},
    {"zero1", {STAGE(1), HPZ(off), AS("plain", "plain"), NO_OTHERS}, NULL},
    {"zero2", {STAGE(2), HPZ(off), AS("plain", "plain"), NO_OTHERS}, NULL},
    {"zero3", {STAGE(3), HPZ(off), AS("plain", "plain"), NO_OTHERS}, NULL},
    {"zero3-qwz", {STAGE(3), HPZ(off), AS("int8", "plain"), NO_OTHERS}, TORCH("int8", "plain")},
    {"zero3-qgz", {STAGE(3), HPZ(off), AS("plain", "int4"), NO_OTHERS}, TORCH("plain", "int4")},
    {"zero3-hpz", {STAGE(3), HPZ(on), AS("plain", "plain"), NO_OTHERS}, NULL},
    {"zeropp", {STAGE(3), HPZ(on), AS("int8", "int4"), NO_OTHERS}, NULL},
    {"delta8", {STAGE(3), HPZ(on), AS("delta8", "int4"), NO_OTHERS}, NULL},
    {"delta4", {STAGE(3), HPZ(on), AS("delta4", "int4"), NO_OTHERS}, TORCH("delta4", "int4")},
    {"delta2", {STAGE(3), HPZ(on), AS("delta2", "int4"), NO_OTHERS}, TORCH("delta2", "int4")},
    {"delta", {STAGE(3), HPZ(on), AS("delta", "plain"), NO_OTHERS}, TORCH("delta", "plain")},
    {"zero3-lossless",
     {STAGE(3), HPZ(off), AS("lossless", "lossless"), NO_OTHERS},
     TORCH("lossless", "lossless")},
    {"lossless", {STAGE(3), HPZ(on), AS("delta", "lossless"), NO_OTHERS}, TORCH("delta", "lossless")},
    {"fp8", {STAGE(3), HPZ(on), AS("delta", "lossless"), NO_OTHERS, "model.gather=fp8"}, NULL},
    {"delta-g4", {STAGE(3), HPZ(on), AS("delta", "int4"), NO_OTHERS}, TORCH("delta", "int4")},
    {"delta-ecdq-half",
     {STAGE(3), HPZ(on), AS("delta", "ecdq:step=0.5"), NO_OTHERS},
     TORCH("delta", "ecdq:step=0.5")},
    {"delta-ecdq", {STAGE(3), HPZ(on), AS("delta", "ecdq"), NO_OTHERS}, TORCH("delta", "ecdq")},
};

const tw_trainer_set_t *tw_trainer_set_get(size_t index)
{
    return index < sizeof(sets) / sizeof(sets[0]) ? &sets[index] : NULL;
}

/** Return the current name of a set. Some sets were renamed. */
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
