/** Making and ending an hpz. */
#include "hpz/hpz.h"

#include <stdlib.h>
#include <string.h>

#include "hpz/state.h"

static const tw_config_field_t fields[] = {
    {"TW_HPZ_CHECK_STEPS", "100", "steps",
     "Compare checksums of the replicas of the weights between nodes every so many steps. 0: never.",
     TW_CONFIG_INT, offsetof(tw_hpz_options_t, check_steps), 0, 1e9, NULL},
};

const tw_config_table_t tw_hpz_config_table = {
    .module = "hpz",
    .fields = fields,
    .n_fields = sizeof(fields) / sizeof(fields[0]),
    .options_bytes = sizeof(tw_hpz_options_t),
};

/* ---- where the ranks are ------------------------------------------------------------------------------- */

/** Without replicas the parts of nodes of unequal size are those of as many nodes of one rank. */
static void find_single_places(tw_hpz_t *hpz)
{
    hpz->is_flat = 1;
    hpz->n_nodes = hpz->world;
    hpz->ranks_per_node = 1;
    hpz->node = hpz->rank;
    hpz->local = 0;
}

static void take_place(tw_hpz_t *hpz, const tw_hpz_place_t *place)
{
    hpz->rank = place->rank;
    hpz->world = place->n_nodes * place->ranks_per_node;
    hpz->n_nodes = place->n_nodes;
    hpz->ranks_per_node = place->ranks_per_node;
    hpz->node = tw_hpz_node_of(hpz, place->rank);
    hpz->local = tw_hpz_local_of(hpz, place->rank);
}

static tw_status_t find_places(tw_hpz_t *hpz)
{
    tw_coll_t *coll = hpz->params.coll;

    if (!coll) {
        take_place(hpz, &hpz->params.place);
        return TW_OK;
    }
    hpz->rank = tw_coll_rank(coll);
    hpz->world = tw_coll_size(coll);
    hpz->n_nodes = tw_coll_n_nodes(coll);
    hpz->node = tw_coll_node_of(coll, hpz->rank);
    hpz->local = tw_coll_local_of(coll, hpz->rank);
    hpz->ranks_per_node = hpz->world / hpz->n_nodes;
    for (int r = 0; r < hpz->world; r++) {
        if (tw_coll_local_of(coll, r) < hpz->ranks_per_node) {
            continue;
        }
        if (!hpz->params.replicas) {
            find_single_places(hpz);
            return TW_OK;
        }
        tw_error("rank %d: %d ranks on %d nodes, but more than %d on node %d: replicas need as many ranks on "
                 "each",
                 hpz->rank, hpz->world, hpz->n_nodes, hpz->ranks_per_node, tw_coll_node_of(coll, r));
        return TW_ERR_UNSUPPORTED;
    }
    return TW_OK;
}

int tw_hpz_node_of(const tw_hpz_t *hpz, int rank)
{
    if (!hpz->params.coll) {
        return rank / hpz->ranks_per_node;
    }
    return hpz->is_flat ? rank : tw_coll_node_of(hpz->params.coll, rank);
}

int tw_hpz_local_of(const tw_hpz_t *hpz, int rank)
{
    if (!hpz->params.coll) {
        return rank % hpz->ranks_per_node;
    }
    return hpz->is_flat ? 0 : tw_coll_local_of(hpz->params.coll, rank);
}

/** The ranks of the own node (by_node) or rail, in rank order. */
static tw_status_t make_group(tw_hpz_t *hpz, int by_node, tw_coll_t **out)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    tw_coll_t *coll = hpz->params.coll;
    int n = 0, *ranks = malloc((size_t)hpz->world * sizeof(*ranks));

    if (!ranks) {
        tw_error("rank %d: out of memory for a group", hpz->rank);
        return TW_ERR_NO_MEMORY;
    }
    for (int r = 0; r < hpz->world; r++) {
        if (by_node ? tw_coll_node_of(coll, r) == hpz->node : tw_coll_local_of(coll, r) == hpz->local) {
            ranks[n++] = r;
        }
    }
    tw_status_t status = by_node ? memory->group(memory->ctx, coll, ranks, n, out, &hpz->stream)
                                 : tw_coll_group_create(coll, ranks, n, out);
    free(ranks);
    return status;
}

static tw_status_t make_groups(tw_hpz_t *hpz)
{
    tw_status_t status = make_group(hpz, 1, &hpz->in_node);

    if (status == TW_OK) {
        status = make_group(hpz, 0, &hpz->rail);
    }
    if (status == TW_OK) {
        status = make_group(hpz, 0, &hpz->rail_lengths);
    }
    return status;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static tw_status_t copy_tensors(tw_hpz_t *hpz)
{
    size_t n = hpz->params.n_tensors;
    tw_hpz_tensor_t *tensors = calloc(n + 1, sizeof(*tensors));

    if (!tensors) {
        hpz->params.tensors = NULL;
        tw_error("rank %d: out of memory for %zu tensors", hpz->rank, n);
        return TW_ERR_NO_MEMORY;
    }
    if (n > 0) {
        memcpy(tensors, hpz->params.tensors, n * sizeof(*tensors));
    }
    hpz->params.tensors = tensors;
    return TW_OK;
}

static size_t most_tensors(const tw_hpz_t *hpz)
{
    size_t most = 0, first;

    for (int u = 0; u < hpz->n_units; u++) {
        size_t n = tw_hpz_layout_tensors(hpz->layout, u, &first);
        most = n > most ? n : most;
    }
    return most;
}

/** A planned one posts nothing. */
static tw_status_t make_rooms(tw_hpz_t *hpz)
{
    size_t tensors = most_tensors(hpz) + 1, world = hpz->params.coll ? (size_t)hpz->world : 1;

    hpz->units = calloc((size_t)hpz->n_units + 1, sizeof(*hpz->units));
    hpz->segments = calloc(tensors * world, sizeof(*hpz->segments));
    hpz->counts = calloc(tensors * world * world, sizeof(*hpz->counts));
    hpz->pieces = calloc(tensors, sizeof(*hpz->pieces));
    hpz->delta_pieces = calloc(tensors, sizeof(*hpz->delta_pieces));
    if (!hpz->units || !hpz->segments || !hpz->counts || !hpz->pieces || !hpz->delta_pieces) {
        tw_error("rank %d: out of memory for %d units", hpz->rank, hpz->n_units);
        return TW_ERR_NO_MEMORY;
    }
    return TW_OK;
}

static tw_status_t make_last(tw_hpz_t *hpz, int unit)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    size_t n_own = tw_hpz_primary_elems(hpz->layout, unit, hpz->node, hpz->local);

    own->last = tw_buffer_alloc_zero(hpz->params.coll ? n_own * sizeof(*own->last) : 1);
    if (!own->last) {
        tw_error("rank %d: unit %d: out of memory for %zu masters", hpz->rank, unit, n_own);
        return TW_ERR_NO_MEMORY;
    }
    return TW_OK;
}

/* A slice of a unit, in the order in which they begin. */
typedef struct {
    int unit;
    tw_hpz_slice_t slice;
} place_t;

static place_t first_place(const tw_hpz_t *hpz)
{
    return (place_t){0, hpz->n_units > 0 ? tw_hpz_sync_slice(hpz, 0, 0) : (tw_hpz_slice_t){0, 0}};
}

static place_t next_place(const tw_hpz_t *hpz, place_t place)
{
    size_t end = tw_hpz_primary_elems(hpz->layout, place.unit, 0, 0);
    int is_last = place.slice.end == end;
    place_t next = {.unit = place.unit + is_last};
    if (next.unit < hpz->n_units) {
        next.slice = tw_hpz_sync_slice(hpz, next.unit, is_last ? 0 : place.slice.end);
    }
    return next;
}

/** One run of memory for all units; *own: what the hpz frees. */
static void *take_all(tw_hpz_t *hpz, size_t elem_bytes, void **own)
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
    char *replicas = take_all(hpz, elem_bytes, &hpz->replicas);
    uint8_t *states = NULL;

    if (!replicas ||
        (hpz->params.lossless_delta && !(states = take_all(hpz, sizeof(*states), &hpz->states)))) {
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

/** What a sync has at most of a rank's. */
static size_t most_slice_elems(const tw_hpz_t *hpz)
{
    size_t most = 0;

    for (place_t place = first_place(hpz); place.unit < hpz->n_units; place = next_place(hpz, place)) {
        size_t n = tw_hpz_slice_elems(hpz->layout, place.unit, 0, 0, place.slice);
        most = n > most ? n : most;
    }
    return most;
}

static tw_status_t refuse_memory(const tw_hpz_t *hpz, const char *why)
{
    tw_error("rank %d: replicas in such memory: %s", hpz->rank, why);
    return TW_ERR_UNSUPPORTED;
}

/** Where replicas lie, and the lossless codec there. */
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
    return memory->reserve(memory->ctx, most_slice_elems(hpz), most_tensors(hpz), hpz->params.lossless_delta);
}

static tw_status_t make_codecs(tw_hpz_t *hpz)
{
    int has_delta = hpz->params.delta.bits != 0 || hpz->params.lossless_delta;

    if (hpz->params.fp32_replicas && has_delta) {
        tw_error("rank %d: replicas of fp32 follow no deltas: those are of bf16", hpz->rank);
        return TW_ERR_UNSUPPORTED;
    }
    tw_quant_params_t params = {.codec = hpz->params.delta, .mem = TW_MEM_HOST};
    tw_status_t status = TW_OK;

    if (params.codec.bits != 0) {
        status = tw_quant_create(&params, &hpz->quant);
    }
    return status == TW_OK ? make_memory(hpz) : status;
}

static tw_status_t make_replicas(tw_hpz_t *hpz)
{
    tw_status_t status = make_codecs(hpz);

    if (status == TW_OK) {
        status = take_replicas(hpz);
    }
    for (int u = 0; u < hpz->n_units && hpz->params.lag_bound > 0 && status == TW_OK; u++) {
        status = make_last(hpz, u);
    }
    return status == TW_OK && hpz->params.coll ? make_groups(hpz) : status;
}

/* ---- creating ------------------------------------------------------------------------------------------ */

static tw_status_t create(tw_hpz_t *hpz)
{
    tw_status_t status = find_places(hpz);

    if (status == TW_OK) {
        status = tw_config_init(&tw_hpz_config_table, &hpz->options);
    }
    if (status == TW_OK) {
        status = tw_hpz_layout_create(hpz->params.tensors, hpz->params.n_tensors, hpz->n_nodes,
                                      hpz->ranks_per_node, &hpz->layout);
    }
    if (status == TW_OK) {
        hpz->n_units = tw_hpz_layout_units(hpz->layout);
        status = make_rooms(hpz);
    }
    return status == TW_OK && hpz->params.replicas ? make_replicas(hpz) : status;
}

tw_status_t tw_hpz_create(const tw_hpz_params_t *params, tw_hpz_t **out)
{
    tw_hpz_t *hpz = calloc(1, sizeof(*hpz));

    if (!hpz) {
        tw_error("out of memory for an hpz");
        return TW_ERR_NO_MEMORY;
    }
    hpz->params = *params;
    hpz->partial = TW_HPZ_NO_UNIT;
    STAILQ_INIT(&hpz->queue);
    tw_status_t status = copy_tensors(hpz);
    if (status == TW_OK) {
        status = create(hpz);
    }
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
    /* First, as they may still write to the memory of syncs under way. */
    tw_coll_destroy(hpz->rail_lengths);
    tw_coll_destroy(hpz->rail);
    tw_coll_destroy(hpz->in_node);
    for (int u = 0; u < hpz->n_units && hpz->units; u++) {
        unit_cleanup(hpz, &hpz->units[u]);
    }
    tw_buffer_free(hpz->replicas);
    tw_buffer_free(hpz->states);
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

/* ---- what can be asked --------------------------------------------------------------------------------- */

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

static size_t transfer_bytes(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    tw_hpz_sync_t kind = hpz->units[transfer->unit].sync.kind;
    size_t bytes = transfer->fresh ? transfer->n_own * sizeof(*transfer->fresh) : 0;

    bytes += tw_hpz_message_bytes(hpz, transfer->unit, transfer->slice, kind, hpz->node);
    for (int node = 0; transfer->others && node < hpz->n_nodes; node++) {
        bytes += node == hpz->node ? 0 : (size_t)transfer->bytes[node];
    }
    return bytes;
}

static size_t unit_bytes(const tw_hpz_t *hpz, int unit)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    const tw_hpz_transfer_t *transfer;
    size_t n = tw_hpz_secondary_elems(hpz->layout, unit, hpz->local);
    size_t n_own = tw_hpz_primary_elems(hpz->layout, unit, hpz->node, hpz->local);
    size_t bytes = hpz->replicas ? n * tw_hpz_replica_elem_bytes(hpz) : 0;

    bytes += hpz->states ? n : 0;
    bytes += own->last ? n_own * sizeof(*own->last) : 0;
    STAILQ_FOREACH(transfer, &own->sync.transfers, in_unit)
    {
        bytes += transfer_bytes(hpz, transfer);
    }
    return bytes;
}

size_t tw_hpz_memory_bytes(const tw_hpz_t *hpz)
{
    size_t bytes = 0;

    for (int u = 0; u < hpz->n_units; u++) {
        bytes += unit_bytes(hpz, u);
    }
    return bytes;
}

/* ---- the most that syncs take -------------------------------------------------------------------------- */

/* Syncs of a kind, of so many bits a weight where they are lossless; TW_HPZ_SYNC_COUNT: of any. */
typedef struct {
    tw_hpz_sync_t kind;
    double bits;
} syncs_t;

/** A node's message in the kind that takes most. */
static size_t message_bytes_max(const tw_hpz_t *hpz, place_t place, int node)
{
    size_t most = 0;

    for (int kind = 0; kind < TW_HPZ_SYNC_COUNT; kind++) {
        int is_possible = kind != TW_HPZ_QUANTIZED || hpz->quant;
        size_t one =
            is_possible ? tw_hpz_message_bytes(hpz, place.unit, place.slice, (tw_hpz_sync_t)kind, node) : 0;
        most = one > most ? one : most;
    }
    return most;
}

/** Of a lossless message what is written: its room has more, which nobody touches. */
static size_t message_room(const tw_hpz_t *hpz, place_t place, const syncs_t *syncs, int node)
{
    if (syncs->kind == TW_HPZ_SYNC_COUNT) {
        return message_bytes_max(hpz, place, node);
    }
    size_t most = tw_hpz_message_bytes(hpz, place.unit, place.slice, syncs->kind, node);
    if (syncs->kind == TW_HPZ_LOSSLESS) {
        double n = (double)tw_hpz_message_elems(hpz, place.unit, place.slice, syncs->kind, node);
        return n * syncs->bits / 8 < (double)most ? (size_t)(n * syncs->bits / 8) : most;
    }
    return most;
}

/** The own new values of a slice. */
static size_t fresh_bytes(const tw_hpz_t *hpz, place_t place)
{
    size_t n_own = tw_hpz_slice_elems(hpz->layout, place.unit, hpz->node, hpz->local, place.slice);
    return hpz->is_elsewhere ? 0 : n_own * sizeof(uint16_t);
}

static int keeps_fresh(const tw_hpz_t *hpz, tw_hpz_sync_t kind)
{
    if (kind != TW_HPZ_SYNC_COUNT) {
        return tw_hpz_keeps_fresh(hpz, kind);
    }
    return (hpz->params.lossless_delta && tw_hpz_keeps_fresh(hpz, TW_HPZ_LOSSLESS)) ||
           (hpz->quant && tw_hpz_keeps_fresh(hpz, TW_HPZ_QUANTIZED));
}

/** Of a slice under way. */
static size_t place_bytes(const tw_hpz_t *hpz, place_t place, const syncs_t *syncs)
{
    size_t bytes = keeps_fresh(hpz, syncs->kind) ? fresh_bytes(hpz, place) : 0;

    for (int node = 0; node < hpz->n_nodes; node++) {
        bytes += message_room(hpz, place, syncs, node);
    }
    return bytes;
}

/** What may be under way together from one slice on. New values that are not kept are there while they are
 *  encoded. */
static size_t window_bytes(const tw_hpz_t *hpz, place_t first, const syncs_t *syncs)
{
    size_t room = hpz->params.sync_elems, elems = 0, bytes = 0, encoded = 0;

    for (place_t place = first; place.unit < hpz->n_units; place = next_place(hpz, place)) {
        elems += tw_hpz_rail_elems(hpz, place.unit, place.slice);
        if (bytes > 0 && room > 0 && elems > room) {
            break;
        }
        size_t fresh = keeps_fresh(hpz, syncs->kind) ? 0 : fresh_bytes(hpz, place);
        encoded = fresh > encoded ? fresh : encoded;
        bytes += place_bytes(hpz, place, syncs);
    }
    return bytes + encoded;
}

size_t tw_hpz_sync_bytes(const tw_hpz_t *hpz, tw_hpz_sync_t kind, double bits)
{
    const syncs_t syncs = {.kind = kind, .bits = bits};
    size_t most = 0;

    for (place_t place = first_place(hpz); place.unit < hpz->n_units && hpz->params.replicas;
         place = next_place(hpz, place)) {
        size_t bytes = window_bytes(hpz, place, &syncs);
        most = bytes > most ? bytes : most;
    }
    return most;
}
