/* Makes and frees sets of tensors. */
#include <stdlib.h>

#include "bench/codecs/codecs.h"

tw_status_t cb_set_init(cb_set_t *set, const char *name, size_t n)
{
    *set = (cb_set_t){.tensors = calloc(n ? n : 1, sizeof(*set->tensors))};
    snprintf(set->name, sizeof(set->name), "%s", name);
    if (!set->tensors) {
        tw_error("bench: no memory for %zu tensors", n);
    }
    return set->tensors ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t cb_alloc(size_t bytes, void **memory)
{
    *memory = tw_buffer_alloc(bytes);
    if (!*memory) {
        tw_error("bench: no memory for a tensor of %zu bytes", bytes);
    }
    return *memory ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t cb_set_add(cb_set_t *set, tw_type_t type, size_t n_elems, size_t row_elems)
{
    cb_tensor_t *tensor = &set->tensors[set->n_tensors];
    *tensor = (cb_tensor_t){.type = type, .n_elems = n_elems, .row_elems = row_elems};
    TW_TRY(cb_alloc(n_elems * tw_type_bytes(type), &tensor->values));
    set->n_tensors++;
    set->n_elems += n_elems;
    set->bytes += n_elems * tw_type_bytes(type);
    return TW_OK;
}

void cb_set_cleanup(cb_set_t *set)
{
    for (size_t t = 0; t < set->n_tensors; t++) {
        tw_buffer_free(set->tensors[t].values);
        tw_buffer_free(set->tensors[t].old);
        tw_buffer_free(set->tensors[t].older);
    }
    free(set->tensors);
    *set = (cb_set_t){0};
}
