/* Codecs of the lossless delta: their backends, and what belongs to one. */
#include "quant/delta/walk.h"

#include <string.h>

/* Best first. */
static const tw_delta_backend_t *const backends[] = {
#ifdef __x86_64__
    &tw_delta_avx512,
    &tw_delta_avx2,
#endif
    &tw_delta_ref,
};
#define N_BACKENDS (sizeof(backends) / sizeof(backends[0]))

size_t tw_quant_delta_backends(const char **names, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < N_BACKENDS && n < max; i++) {
        if (backends[i]->usable()) {
            names[n++] = backends[i]->name;
        }
    }
    return n;
}

tw_status_t tw_quant_delta_create(const char *backend, tw_quant_delta_t **out)
{
    const tw_delta_backend_t *found = NULL;
    int any = !backend || strcmp(backend, "auto") == 0;
    for (size_t i = 0; i < N_BACKENDS && !found; i++) {
        if ((any || strcmp(backend, backends[i]->name) == 0) && backends[i]->usable()) {
            found = backends[i];
        }
    }
    if (!found) {
        tw_error("quant: lossless delta: no backend '%s' on this machine", backend);
        return TW_ERR_UNSUPPORTED;
    }
    tw_quant_delta_t *delta = tw_buffer_alloc_zero(sizeof(*delta));
    if (!delta) {
        tw_error("quant: lossless delta: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    delta->backend = found;
    *out = delta;
    return TW_OK;
}

void tw_quant_delta_destroy(tw_quant_delta_t *delta)
{
    tw_buffer_free(delta);
}

const char *tw_quant_delta_backend_name(const tw_quant_delta_t *delta)
{
    return delta->backend->name;
}

size_t tw_quant_delta_bound_bytes(size_t n_elems)
{
    return n_elems <= TW_MEMORY_BYTES_MAX ? sizeof(tw_delta_header_t) + sizeof(uint32_t) + 2 * n_elems
                                          : SIZE_MAX;
}
