/* Allocates the memory of an hpz: arrays for its calls, replicas, and the codecs of their deltas. */
#include <stdlib.h>

#include "hpz/state.h"

static size_t most_tensors(const tw_hpz_t *hpz)
{
    size_t most = 0, first;
    for (int u = 0; u < hpz->n_units; u++) {
        size_t n = tw_hpz_layout_tensors(hpz->layout, u, &first);
        most = n > most ? n : most;
    }
    return most;
}

/** An hpz for planning (coll NULL) posts nothing, so its arrays need no room for all ranks. */
tw_status_t tw_hpz_rooms_make(tw_hpz_t *hpz)
{
    size_t tensors = most_tensors(hpz) + 1, world = hpz->params.coll ? (size_t)hpz->world : 1;
    hpz->units = calloc((size_t)hpz->n_units + 1, sizeof(*hpz->units));
    hpz->segments = calloc(tensors * world, sizeof(*hpz->segments));
    hpz->counts = calloc(tensors * world * world, sizeof(*hpz->counts));
    hpz->pieces = calloc(tensors, sizeof(*hpz->pieces));
    hpz->delta_pieces = calloc(tensors, sizeof(*hpz->delta_pieces));
    TW_FAIL_IF(!hpz->units || !hpz->segments || !hpz->counts || !hpz->pieces || !hpz->delta_pieces,
               TW_ERR_NO_MEMORY, "rank %d: out of memory for %d units", hpz->rank, hpz->n_units);
    return TW_OK;
}

static tw_status_t make_last(tw_hpz_t *hpz, int unit)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    size_t n_own = tw_hpz_primary_elems(hpz->layout, unit, hpz->node, hpz->local);
    own->last = tw_buffer_alloc_zero(hpz->params.coll ? n_own * sizeof(*own->last) : 1);
    TW_FAIL_IF(!own->last, TW_ERR_NO_MEMORY, "rank %d: unit %d: out of memory for %zu masters", hpz->rank,
               unit, n_own);
    return TW_OK;
}

/** Allocate one block of memory for all units. *own is set to it if the hpz must free it. */
static void *room_take_all(tw_hpz_t *hpz, size_t elem_bytes, void **own)
{
    size_t n_bytes = 0;
    for (int u = 0; u < hpz->n_units; u++) {
        n_bytes += tw_hpz_secondary_elems(hpz->layout, u, hpz->local) * elem_bytes;
    }
    void *all = hpz->params.take ? hpz->params.take(hpz->params.take_ctx, n_bytes)
                                 : (*own = tw_buffer_alloc_zero(n_bytes));
    if (!all && !hpz->params.take) {
        tw_error("rank %d: out of memory for replicas: %zu bytes", hpz->rank, n_bytes);
    }
    return all;
}

static tw_status_t take_replicas(tw_hpz_t *hpz)
{
    size_t elem_bytes = tw_hpz_replica_elem_bytes(hpz);
    char *replicas = room_take_all(hpz, elem_bytes, &hpz->replicas);
    uint8_t *states = NULL;
    if (!replicas ||
        (hpz->params.lossless_delta && !(states = room_take_all(hpz, sizeof(*states), &hpz->states)))) {
        return TW_ERR_NO_MEMORY;
    }
    for (int u = 0; u < hpz->n_units; u++) {
        size_t n = tw_hpz_secondary_elems(hpz->layout, u, hpz->local);
        hpz->units[u].replica = (void *)replicas;
        hpz->units[u].states = states;
        replicas += n * elem_bytes;
        states = states ? states + n : NULL;
    }
    return TW_OK;
}

static tw_status_t refuse_memory(const tw_hpz_t *hpz, const char *why)
{
    return tw_fail(TW_ERR_UNSUPPORTED, "rank %d: replicas in such memory: %s", hpz->rank, why);
}

/** Set hpz->memory, the replicas' memory, and reserve there what syncs need. */
static tw_status_t make_memory(tw_hpz_t *hpz)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    hpz->is_elsewhere = hpz->params.memory != NULL;
    hpz->memory = hpz->is_elsewhere ? *hpz->params.memory : tw_hpz_host_memory(hpz);
    if (hpz->is_elsewhere && !hpz->params.take) {
        return refuse_memory(hpz, "there is nothing to take it from");
    }
    if (hpz->is_elsewhere && (hpz->quant || hpz->params.lag_bound > 0)) {
        return refuse_memory(hpz, "quantized deltas and lags are of the host's");
    }
    return memory->reserve(memory->ctx, tw_hpz_slice_elems_max(hpz), most_tensors(hpz),
                           hpz->params.lossless_delta);
}

static tw_status_t make_codecs(tw_hpz_t *hpz)
{
    int has_blocks = tw_quant_form(&hpz->params.delta) == TW_QUANT_BLOCKS;
    int has_delta = has_blocks || hpz->params.lossless_delta;
    TW_FAIL_IF(hpz->params.fp32_replicas && has_delta, TW_ERR_UNSUPPORTED,
               "rank %d: replicas of fp32 follow no deltas: those are of bf16", hpz->rank);
    tw_quant_params_t params = {.codec = hpz->params.delta, .mem = TW_MEM_HOST};
    tw_status_t status = TW_OK;

    if (has_blocks) {
        status = tw_quant_create(&params, &hpz->quant);
    }
    return status == TW_OK ? make_memory(hpz) : status;
}

tw_status_t tw_hpz_replicas_make(tw_hpz_t *hpz)
{
    tw_status_t status = make_codecs(hpz);
    status = status == TW_OK ? take_replicas(hpz) : status;
    for (int u = 0; u < hpz->n_units && hpz->params.lag_bound > 0 && status == TW_OK; u++) {
        status = make_last(hpz, u);
    }
    return status;
}

/** Set the exponents, and allocate old and new codes for one slice. */
tw_status_t tw_hpz_exponents_set(tw_hpz_t *hpz, const int8_t *exponents)
{
    TW_FAIL_IF(hpz->is_elsewhere || hpz->quant || hpz->params.fp32_replicas, TW_ERR_UNSUPPORTED,
               "rank %d: replicas of fp8 are in host memory, and follow lossless deltas", hpz->rank);
    hpz->exponents = exponents;
    tw_buffer_free(hpz->codes); /* codes of an earlier call */
    size_t n_bytes = hpz->params.coll ? tw_hpz_codes_bytes(hpz) : 0;
    hpz->codes = n_bytes > 0 ? tw_buffer_alloc(n_bytes) : NULL;
    if (n_bytes > 0 && !hpz->codes) {
        hpz->exponents = NULL; /* a sync would need their codes */
        return tw_fail(TW_ERR_NO_MEMORY, "rank %d: out of memory for %zu codes", hpz->rank, n_bytes);
    }
    return TW_OK;
}
