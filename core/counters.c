#include "core/core.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct tw_counters {
    size_t n_counters;
    char **names;
    _Atomic uint64_t values[];
};

static int all_named(const char *const *names, size_t n_counters)
{
    if (names == NULL) {
        return n_counters == 0;
    }
    for (size_t i = 0; i < n_counters; ++i) {
        if (names[i] == NULL) {
            return 0;
        }
    }
    return 1;
}

tw_status_t tw_counters_create(const char *const *names, size_t n_counters, tw_counters_t **out)
{
    tw_counters_t *counters;

    if (!all_named(names, n_counters)) {
        tw_error("counters: a name is missing");
        return TW_ERR_INVALID;
    }
    counters = calloc(1, sizeof(*counters) + n_counters * sizeof(counters->values[0]));
    if (counters == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    counters->names = calloc(n_counters + 1, sizeof(*counters->names));
    if (counters->names == NULL) {
        goto err_counters;
    }
    for (size_t i = 0; i < n_counters; ++i) {
        counters->names[i] = strdup(names[i]);
        if (counters->names[i] == NULL) {
            goto err_counters;
        }
        counters->n_counters = i + 1;
    }
    *out = counters;
    return TW_OK;

err_counters:
    tw_counters_destroy(counters);
    return TW_ERR_NO_MEMORY;
}

void tw_counters_destroy(tw_counters_t *counters)
{
    if (counters == NULL) {
        return;
    }
    for (size_t i = 0; i < counters->n_counters; ++i) {
        free(counters->names[i]);
    }
    free(counters->names);
    free(counters);
}

/* Counts order nothing else, so relaxed is enough. */
void tw_counters_add(tw_counters_t *counters, size_t index, uint64_t amount)
{
    atomic_fetch_add_explicit(&counters->values[index], amount, memory_order_relaxed);
}

uint64_t tw_counters_get(const tw_counters_t *counters, size_t index)
{
    return atomic_load_explicit(&counters->values[index], memory_order_relaxed);
}

void tw_counters_reset(tw_counters_t *counters)
{
    for (size_t i = 0; i < counters->n_counters; ++i) {
        atomic_store_explicit(&counters->values[i], 0, memory_order_relaxed);
    }
}

size_t tw_counters_count(const tw_counters_t *counters)
{
    return counters->n_counters;
}

const char *tw_counters_name(const tw_counters_t *counters, size_t index)
{
    return counters->names[index];
}
