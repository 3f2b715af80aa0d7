/** Makes and destroys an hpz. */
#include "hpz/hpz.h"

#include <stdlib.h>
#include <string.h>

#include "hpz/state.h"

static const tw_config_field_t fields[] = {
    {"TW_HPZ_CHECK_STEPS", "100", "steps",
     "Compare checksums of the replicas of the weights between nodes every so many steps. 0: never.",
     TW_CONFIG_INT, offsetof(tw_hpz_options_t, check_steps), 0, 1e9, NULL},
};

const tw_config_table_t tw_hpz_config_table = TW_CONFIG_TABLE("hpz", fields, tw_hpz_options_t);

static tw_status_t copy_tensors(tw_hpz_t *hpz)
{
    size_t n = hpz->params.n_tensors;
    tw_hpz_tensor_t *tensors = calloc(n + 1, sizeof(*tensors));
    if (!tensors) {
        hpz->params.tensors = NULL;
        return tw_fail(TW_ERR_NO_MEMORY, "rank %d: out of memory for %zu tensors", hpz->rank, n);
    }
    if (n > 0) {
        memcpy(tensors, hpz->params.tensors, n * sizeof(*tensors));
    }
    hpz->params.tensors = tensors;
    return TW_OK;
}

static tw_status_t hpz_create(tw_hpz_t *hpz)
{
    tw_status_t status = tw_hpz_places_find(hpz);
    status = status == TW_OK ? tw_config_init(&tw_hpz_config_table, &hpz->options) : status;
    if (status == TW_OK) {
        status = tw_hpz_layout_create(hpz->params.tensors, hpz->params.n_tensors, hpz->n_nodes,
                                      hpz->ranks_per_node, &hpz->layout);
    }
    if (status == TW_OK) {
        hpz->n_units = tw_hpz_layout_units(hpz->layout);
        status = tw_hpz_rooms_make(hpz);
    }
    if (status == TW_OK && hpz->params.replicas) {
        status = tw_quant_codec_check(&hpz->params.delta);
    }
    if (status == TW_OK && hpz->params.replicas) {
        status = tw_hpz_replicas_make(hpz);
    }
    return status == TW_OK && hpz->params.replicas && hpz->params.coll ? tw_hpz_groups_make(hpz) : status;
}

tw_status_t tw_hpz_create(const tw_hpz_params_t *params, tw_hpz_t **out)
{
    tw_hpz_t *hpz = calloc(1, sizeof(*hpz));
    TW_FAIL_IF(!hpz, TW_ERR_NO_MEMORY, "out of memory for an hpz");
    hpz->params = *params;
    hpz->params.lossless_delta |= tw_quant_form(&params->delta) == TW_QUANT_CHANGE;
    hpz->partial = TW_HPZ_NO_UNIT;
    STAILQ_INIT(&hpz->queue);
    tw_status_t status = copy_tensors(hpz);
    status = status == TW_OK ? hpz_create(hpz) : status;
    if (status != TW_OK) {
        tw_hpz_destroy(hpz);
        return status;
    }
    *out = hpz;
    return TW_OK;
}

static void unit_cleanup(const tw_hpz_t *hpz, tw_hpz_unit_t *unit)
{
    tw_hpz_transfers_cleanup(hpz, unit);
    tw_buffer_free(unit->last);
    free(unit->lag.late);
    free(unit->now.late);
}

void tw_hpz_destroy(tw_hpz_t *hpz)
{
    if (!hpz) {
        return;
    }
    /* The communicators go first, as they may still write to the memory of syncs under way. */
    tw_coll_destroy(hpz->rail_lengths);
    tw_coll_destroy(hpz->rail);
    tw_coll_destroy(hpz->in_node);
    for (int u = 0; u < hpz->n_units && hpz->units; u++) {
        unit_cleanup(hpz, &hpz->units[u]);
    }
    tw_buffer_free(hpz->replicas);
    tw_buffer_free(hpz->states);
    tw_buffer_free(hpz->codes);
    tw_quant_destroy(hpz->quant);
    tw_quant_delta_destroy(hpz->delta);
    tw_hpz_layout_destroy(hpz->layout);
    free(hpz->units);
    free(hpz->segments);
    free(hpz->counts);
    free(hpz->pieces);
    free(hpz->delta_pieces);
    free((void *)hpz->params.tensors);
    free(hpz);
}

const tw_hpz_layout_t *tw_hpz_layout(const tw_hpz_t *hpz)
{
    return hpz->layout;
}

int tw_hpz_node(const tw_hpz_t *hpz)
{
    return hpz->node;
}

int tw_hpz_local(const tw_hpz_t *hpz)
{
    return hpz->local;
}

static void add_counters(tw_coll_t *coll, tw_hpz_counters_t *out)
{
    tw_coll_counters_t counters;
    if (coll) {
        tw_coll_counters_get(coll, &counters);
        out->inter_node_bytes += counters.inter_node_bytes;
        out->in_node_bytes += counters.in_node_bytes;
    }
}

void tw_hpz_counters_get(tw_hpz_t *hpz, tw_hpz_counters_t *out)
{
    *out = hpz->counters;
    for (int u = 0; u < hpz->n_units; u++) {
        const tw_hpz_unit_t *unit = &hpz->units[u];
        if (unit->lag.max > out->lag_max) {
            out->lag_max = unit->lag.max;
            out->lag_tensor = unit->lag.tensor;
        }
    }
    add_counters(hpz->in_node, out);
    add_counters(hpz->rail, out);
    add_counters(hpz->rail_lengths, out);
}
