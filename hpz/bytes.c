/* Counts the bytes that an hpz holds, and the most that its syncs hold. */
#include "hpz/state.h"

/* ---- what is held -------------------------------------------------------------------------------------- */

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
    size_t bytes = hpz->codes ? tw_hpz_codes_bytes(hpz) : 0;
    for (int u = 0; u < hpz->n_units; u++) {
        bytes += unit_bytes(hpz, u);
    }
    return bytes;
}

/* ---- slices -------------------------------------------------------------------------------------------- */

/* A slice of a unit. Places are in the order in which syncs begin slices: unit by unit. */
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

size_t tw_hpz_slice_elems_max(const tw_hpz_t *hpz)
{
    size_t most = 0;
    for (place_t place = first_place(hpz); place.unit < hpz->n_units; place = next_place(hpz, place)) {
        size_t n = tw_hpz_slice_elems(hpz->layout, place.unit, 0, 0, place.slice);
        most = n > most ? n : most;
    }
    return most;
}

size_t tw_hpz_codes_bytes(const tw_hpz_t *hpz)
{
    return hpz->exponents && hpz->params.replicas && hpz->params.lossless_delta
               ? 2 * tw_hpz_slice_elems_max(hpz)
               : 0;
}

/* ---- the most that syncs take -------------------------------------------------------------------------- */

/* Which syncs to count: those of `kind` (TW_HPZ_SYNC_COUNT: any). `bits`: bits a weight of lossless ones. */
typedef struct {
    tw_hpz_sync_t kind;
    double bits;
} syncs_t;

/** Return the bytes of a node's message in the kind of sync that has the longest one. */
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

/** Return how many bytes of the buffer for a node's message are written. A lossless message's buffer is
 *  allocated for the worst case, but the rest of it is never touched. */
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

/** Return the bytes of this rank's new values (bf16 masters) in a slice. */
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

/** Return the bytes that a slice holds while it is under way. */
static size_t place_bytes(const tw_hpz_t *hpz, place_t place, const syncs_t *syncs)
{
    size_t bytes = keeps_fresh(hpz, syncs->kind) ? fresh_bytes(hpz, place) : 0;
    for (int node = 0; node < hpz->n_nodes; node++) {
        bytes += message_room(hpz, place, syncs, node);
    }
    return bytes;
}

/** Return the bytes of all slices, from `first` on, that may be under way together. New values that are not
 *  kept count only for the one slice that is being encoded. */
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
    return most + tw_hpz_codes_bytes(hpz);
}
