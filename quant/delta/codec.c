/* Creates and destroys codecs of the lossless delta; lists their backends. */
#include "quant/delta/walk.h"

static const tw_backend_t *const backends[] = {
#ifdef __x86_64__
    &tw_delta_avx512.is,
    &tw_delta_avx2.is,
#elif defined(__aarch64__)
    &tw_delta_neon.is,
#endif
    &tw_delta_ref.is,
};
static const tw_backends_t of_delta = {"lossless delta", backends, sizeof(backends) / sizeof(backends[0])};

size_t tw_quant_delta_backends(const char **names, size_t max)
{
    return tw_backends_names(&of_delta, TW_MEM_HOST, names, max);
}

tw_status_t tw_quant_delta_create(const char *backend, tw_quant_delta_t **out)
{
    const tw_backend_t *found = tw_backends_find(&of_delta, TW_MEM_HOST, backend);
    if (!found) {
        return TW_ERR_UNSUPPORTED;
    }
    tw_quant_delta_t *delta = tw_buffer_alloc_zero(sizeof(*delta));
    TW_FAIL_IF(!delta, TW_ERR_NO_MEMORY, "quant: lossless delta: out of memory");
    delta->backend = (const tw_delta_backend_t *)(const void *)found;
    *out = delta;
    return TW_OK;
}

void tw_quant_delta_destroy(tw_quant_delta_t *delta)
{
    if (delta) {
        tw_buffer_free(delta->narrow);
    }
    tw_buffer_free(delta);
}

const char *tw_quant_delta_backend_name(const tw_quant_delta_t *delta)
{
    return delta->backend->is.name;
}

size_t tw_quant_delta_bound_bytes(size_t n_elems)
{
    return n_elems <= TW_MEMORY_BYTES_MAX ? sizeof(tw_delta_header_t) + sizeof(uint32_t) + 2 * n_elems
                                          : SIZE_MAX;
}
