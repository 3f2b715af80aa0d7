/** Exchanges a unit's changes along the rail. A large unit goes slice by slice.
 *
 *  Messages of variable length are posted when all lengths have arrived, in the order in which the slices
 *  began. Lengths and messages have separate communicators, so all ranks post in this order, no matter when
 *  lengths arrive. How many slices are under way depends on sync_elems and on timing. Their order does not,
 *  because no unit begins before all slices of the previous one have begun. */
#include <inttypes.h>
#include <stdlib.h>

#include "hpz/state.h"

#define ALIGN_BYTES 16

const char *tw_hpz_sync_name(tw_hpz_sync_t kind)
{
    static const char *const names[TW_HPZ_SYNC_COUNT] = {"full", "quantized", "lossless"};
    return (unsigned)kind < TW_HPZ_SYNC_COUNT ? names[kind] : "?";
}

/* ---- slices -------------------------------------------------------------------------------------------- */

static size_t unit_end(const tw_hpz_t *hpz, int unit)
{
    return tw_hpz_primary_elems(hpz->layout, unit, 0, 0);
}

static size_t slice_step(const tw_hpz_t *hpz)
{
    return tw_hpz_slice_step(hpz->params.slice_elems, &hpz->params.delta);
}

static size_t slice_most(const tw_hpz_t *hpz, int unit)
{
    return tw_hpz_sync_slice_most(hpz->layout, unit, hpz->local, hpz->params.sync_elems, slice_step(hpz));
}

tw_hpz_slice_t tw_hpz_sync_slice(const tw_hpz_t *hpz, int unit, size_t first)
{
    return tw_hpz_slice_next(hpz->layout, unit, first, slice_most(hpz, unit), slice_step(hpz));
}

size_t tw_hpz_rail_elems(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice)
{
    size_t n_elems = 0;
    for (int n = 0; n < hpz->n_nodes; n++) {
        n_elems += tw_hpz_slice_elems(hpz->layout, unit, n, hpz->local, slice);
    }
    return n_elems;
}

/* ---- a transfer's memory ------------------------------------------------------------------------------- */

static void transfer_free(const tw_hpz_t *hpz, tw_hpz_transfer_t *transfer)
{
    if (transfer) {
        tw_buffer_free(hpz->is_elsewhere ? NULL : transfer->fresh);
        tw_buffer_free(transfer->message);
        tw_buffer_free(transfer->others);
        free(transfer->bytes);
        free(transfer->counts);
        free(transfer);
    }
}

void tw_hpz_transfers_cleanup(const tw_hpz_t *hpz, tw_hpz_unit_t *unit)
{
    tw_hpz_transfer_t *transfer;
    while ((transfer = STAILQ_FIRST(&unit->sync.transfers))) {
        STAILQ_REMOVE_HEAD(&unit->sync.transfers, in_unit);
        transfer_free(hpz, transfer);
    }
}

/** Allocate a transfer and its lists of lengths, but no memory for new values and messages. */
static tw_hpz_transfer_t *transfer_alloc(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice)
{
    size_t nodes = (size_t)hpz->n_nodes;
    tw_hpz_transfer_t *transfer = calloc(1, sizeof(*transfer));
    if (!transfer) {
        return NULL;
    }
    transfer->unit = unit;
    transfer->slice = slice;
    transfer->own_first =
        tw_hpz_slice_elems(hpz->layout, unit, hpz->node, hpz->local, (tw_hpz_slice_t){0, slice.first});
    transfer->n_own = tw_hpz_slice_elems(hpz->layout, unit, hpz->node, hpz->local, slice);
    transfer->n_elems = tw_hpz_rail_elems(hpz, unit, slice);
    transfer->bytes = calloc(nodes, sizeof(*transfer->bytes));
    transfer->counts = calloc(nodes * nodes, sizeof(*transfer->counts));
    if (!transfer->bytes || !transfer->counts) {
        transfer_free(hpz, transfer);
        return NULL;
    }
    return transfer;
}

static tw_status_t transfer_create(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice,
                                   tw_hpz_transfer_t **out)
{
    tw_hpz_sync_t kind = hpz->units[unit].sync.kind;
    tw_hpz_transfer_t *transfer = transfer_alloc(hpz, unit, slice);
    if (transfer) {
        transfer->fresh = hpz->is_elsewhere ? hpz->memory.fresh(hpz->memory.ctx)
                                            : tw_buffer_alloc(transfer->n_own * sizeof(*transfer->fresh));
        transfer->message = tw_buffer_alloc(tw_hpz_message_bytes(hpz, unit, slice, kind, hpz->node));
    }
    if (!transfer || !transfer->fresh || !transfer->message) {
        tw_error("rank %d: unit %d: out of memory for a sync", hpz->rank, unit);
        transfer_free(hpz, transfer);
        return TW_ERR_NO_MEMORY;
    }
    *out = transfer;
    return TW_OK;
}

/* ---- the exchange -------------------------------------------------------------------------------------- */

static tw_coll_args_t lengths_args(const tw_hpz_t *hpz, tw_hpz_transfer_t *transfer,
                                   tw_coll_segment_t *segment)
{
    *segment = (tw_coll_segment_t){.dst = transfer->bytes,
                                   .n_elems = (size_t)hpz->n_nodes * sizeof(*transfer->bytes)};
    return (tw_coll_args_t){
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = segment, .n_segments = 1};
}

static size_t sync_aligned(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/** Return the arguments of the exchange of messages: a segment for each node. This rank's is in place. */
static tw_coll_args_t payload_args(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer,
                                   tw_coll_segment_t *segments)
{
    size_t at = 0;
    for (int n = 0; n < hpz->n_nodes; n++) {
        size_t *counts = transfer->counts + (size_t)n * (size_t)hpz->n_nodes;
        counts[n] = (size_t)transfer->bytes[n];
        segments[n] = (tw_coll_segment_t){.n_elems = counts[n], .counts = counts};
        if (n == hpz->node) {
            segments[n].dst = transfer->message;
        } else {
            segments[n].dst = transfer->others + at;
            at += sync_aligned(counts[n]);
        }
    }
    return (tw_coll_args_t){.op = TW_COLL_ALLGATHER,
                            .type = TW_TYPE_BYTE,
                            .segments = segments,
                            .n_segments = (size_t)hpz->n_nodes};
}

static tw_status_t post_counted(tw_hpz_t *hpz, tw_coll_t *rail, const tw_coll_args_t *args,
                                tw_coll_request_t **request)
{
    uint64_t bytes;
    tw_status_t status = tw_coll_planned_inter_node_bytes(rail, args, &bytes);
    status = status == TW_OK ? tw_coll_post(rail, args, request) : status;
    if (status == TW_OK) {
        hpz->counters.planned_inter_node_bytes += bytes;
    }
    return status;
}

/** Check the lengths that other nodes sent, before memory is allocated for their messages. TW_ERR_FORMAT: a
 *  length is above the maximum. */
static tw_status_t check_lengths(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    tw_hpz_sync_t kind = hpz->units[transfer->unit].sync.kind;
    for (int n = 0; n < hpz->n_nodes; n++) {
        TW_FAIL_IF(transfer->bytes[n] > tw_hpz_message_bytes(hpz, transfer->unit, transfer->slice, kind, n),
                   TW_ERR_FORMAT, "rank %d: unit %d: node %d announces %" PRIu64 " bytes of changes",
                   hpz->rank, transfer->unit, n, transfer->bytes[n]);
    }
    return TW_OK;
}

static tw_status_t post_payload(tw_hpz_t *hpz, tw_hpz_transfer_t *transfer)
{
    tw_status_t status = check_lengths(hpz, transfer);
    size_t others = 0;
    for (int n = 0; n < hpz->n_nodes; n++) {
        others += n == hpz->node ? 0 : sync_aligned((size_t)transfer->bytes[n]);
    }
    if (status == TW_OK && !transfer->others) {
        transfer->others = tw_buffer_alloc(others);
        if (!transfer->others) {
            tw_error("rank %d: unit %d: out of memory for %zu bytes of changes", hpz->rank, transfer->unit,
                     others);
            status = TW_ERR_NO_MEMORY;
        }
    }
    if (status == TW_OK) {
        tw_coll_args_t args = payload_args(hpz, transfer, hpz->segments);
        status = post_counted(hpz, hpz->rail, &args, &transfer->payload);
    }
    return status;
}

/** Receive the lengths of a transfer. With wait 0: return TW_IN_PROGRESS if they have not arrived. */
static tw_status_t look_for_lengths(tw_hpz_transfer_t *transfer, int wait)
{
    if (!transfer->lengths) {
        return TW_OK;
    }
    tw_status_t status = wait ? tw_coll_wait(transfer->lengths) : tw_coll_test(transfer->lengths);
    if (status != TW_IN_PROGRESS) {
        transfer->lengths = NULL;
    }
    return status;
}

/** Post the messages of the first transfer in the queue. With wait 0: return TW_IN_PROGRESS if its lengths
 *  have not arrived. A transfer that fails stays in the queue, so that later calls fail again. */
static tw_status_t sync_advance(tw_hpz_t *hpz, int wait)
{
    tw_hpz_transfer_t *transfer = STAILQ_FIRST(&hpz->queue);
    tw_status_t status = look_for_lengths(transfer, wait);
    status = status == TW_OK ? post_payload(hpz, transfer) : status;
    if (status == TW_OK) {
        STAILQ_REMOVE_HEAD(&hpz->queue, in_queue);
    }
    return status;
}

tw_status_t tw_hpz_progress(tw_hpz_t *hpz)
{
    tw_status_t status = TW_OK;
    while (!STAILQ_EMPTY(&hpz->queue) && status == TW_OK) {
        status = sync_advance(hpz, 0);
    }
    return status == TW_IN_PROGRESS ? TW_OK : status;
}

/* ---- beginning a sync ---------------------------------------------------------------------------------- */

static tw_status_t check_begin(const tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, uint64_t version)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    const char *wrong = NULL;
    if (!own->replica) {
        wrong = "there are no replicas";
    } else if (hpz->params.fp32_replicas) {
        wrong = "replicas of fp32 are filled by gathers alone";
    } else if ((unsigned)kind >= TW_HPZ_SYNC_COUNT) {
        wrong = "of no kind";
    } else if (own->sync.active) {
        wrong = "one is under way";
    } else if (version == 0) {
        wrong = "to version 0";
    } else if (kind == TW_HPZ_QUANTIZED && !hpz->quant) {
        wrong = "no codec was given";
    } else if (kind == TW_HPZ_LOSSLESS && !hpz->params.lossless_delta) {
        wrong = "without memory for lossless deltas";
    } else if (hpz->is_elsewhere && !hpz->params.lossless_delta) {
        wrong = "replicas elsewhere have room for none without lossless deltas";
    }
    TW_FAIL_IF(wrong, TW_ERR_INVALID, "rank %d: unit %d: %s sync: %s", hpz->rank, unit,
               tw_hpz_sync_name(kind), wrong);
    TW_FAIL_IF(kind != TW_HPZ_FULL && own->version == 0, TW_ERR_STALE,
               "rank %d: unit %d: %s sync of a replica that holds nothing: a full one first", hpz->rank, unit,
               tw_hpz_sync_name(kind));
    return TW_OK;
}

/** Set the lengths of all messages, or upper bounds of them. If lengths vary, post their exchange. */
static tw_status_t settle_lengths(tw_hpz_t *hpz, tw_hpz_transfer_t *transfer, size_t own_bytes)
{
    tw_hpz_sync_t kind = hpz->units[transfer->unit].sync.kind;
    tw_coll_segment_t segment;
    for (int n = 0; n < hpz->n_nodes; n++) {
        transfer->bytes[n] =
            n == hpz->node ? own_bytes : tw_hpz_message_bytes(hpz, transfer->unit, transfer->slice, kind, n);
    }
    if (!tw_hpz_message_varies(hpz, kind)) {
        return TW_OK;
    }
    tw_coll_args_t args = lengths_args(hpz, transfer, &segment);
    return post_counted(hpz, hpz->rail_lengths, &args, &transfer->lengths);
}

static void count_slice(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, size_t bytes)
{
    tw_hpz_sync_t kind = hpz->units[transfer->unit].sync.kind;
    if (kind != TW_HPZ_FULL) {
        hpz->counters.delta_bytes += bytes + (tw_hpz_message_varies(hpz, kind) ? sizeof(uint64_t) : 0);
        hpz->counters.delta_elems +=
            tw_hpz_message_elems(hpz, transfer->unit, transfer->slice, kind, hpz->node);
    }
}

static int has_room(const tw_hpz_t *hpz, int unit)
{
    size_t most = hpz->params.sync_elems;
    size_t all = tw_hpz_secondary_elems(hpz->layout, unit, hpz->local);
    /* a unit that goes in slices needs room for its largest slice */
    size_t slice = slice_most(hpz, unit) * (size_t)hpz->n_nodes, next = slice < all ? slice : all;
    return most == 0 || hpz->under_way == 0 || hpz->under_way + next <= most;
}

/** Free the new values if nothing needs them. On a device, the next transfer uses their buffer instead. */
static void let_fresh_go(const tw_hpz_t *hpz, tw_hpz_transfer_t *transfer)
{
    if (!tw_hpz_keeps_fresh(hpz, hpz->units[transfer->unit].sync.kind)) {
        tw_buffer_free(hpz->is_elsewhere ? NULL : transfer->fresh);
        transfer->fresh = NULL;
    }
}

static tw_status_t begin_slice(tw_hpz_t *hpz, int unit)
{
    tw_hpz_under_way_t *sync = &hpz->units[unit].sync;
    tw_hpz_transfer_t *transfer;
    size_t bytes;
    TW_TRY(transfer_create(hpz, unit, tw_hpz_sync_slice(hpz, unit, sync->begun), &transfer));
    tw_status_t status = tw_hpz_settle(hpz, tw_hpz_message_encode(hpz, transfer, &bytes));
    status = status == TW_OK ? settle_lengths(hpz, transfer, bytes) : status;
    if (status != TW_OK) {
        transfer_free(hpz, transfer);
        return status;
    }
    let_fresh_go(hpz, transfer);
    count_slice(hpz, transfer, bytes);
    sync->begun = transfer->slice.end;
    hpz->partial = sync->begun < unit_end(hpz, unit) ? unit : TW_HPZ_NO_UNIT;
    hpz->under_way += transfer->n_elems;
    STAILQ_INSERT_TAIL(&sync->transfers, transfer, in_unit);
    STAILQ_INSERT_TAIL(&hpz->queue, transfer, in_queue);
    return TW_OK;
}

/** Return 1 if the next slice of a unit may begin. It always may if no slice of the unit is under way. */
static int may_begin_slice(const tw_hpz_t *hpz, int unit)
{
    return STAILQ_EMPTY(&hpz->units[unit].sync.transfers) || has_room(hpz, unit);
}

/** Begin as many slices of hpz->partial, the unit with slices left, as there is room for. */
static tw_status_t begin_more(tw_hpz_t *hpz)
{
    tw_status_t status = TW_OK;
    while (hpz->partial != TW_HPZ_NO_UNIT && may_begin_slice(hpz, hpz->partial) && status == TW_OK) {
        status = begin_slice(hpz, hpz->partial);
    }
    return status;
}

tw_status_t tw_hpz_sync_begin(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, const float *master,
                              uint64_t version)
{
    TW_TRY(check_begin(hpz, unit, kind, version));
    if (hpz->partial != TW_HPZ_NO_UNIT || !has_room(hpz, unit)) {
        return TW_IN_PROGRESS;
    }
    tw_hpz_unit_t *own = &hpz->units[unit];
    own->sync = (tw_hpz_under_way_t){.active = 1, .kind = kind, .version = version, .master = master};
    STAILQ_INIT(&own->sync.transfers);
    tw_hpz_lag_begin(own);
    own->version = 0;
    tw_status_t status = begin_slice(hpz, unit);
    if (status != TW_OK) {
        own->sync.active = 0;
        return status;
    }
    hpz->counters.syncs[kind]++;
    status = begin_more(hpz);
    return status == TW_OK ? tw_hpz_progress(hpz) : status;
}

/* ---- finishing a sync ---------------------------------------------------------------------------------- */

/** Apply the messages of all nodes, in node order. */
static tw_status_t apply_all(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    const uint8_t *at = transfer->others;
    tw_status_t status = TW_OK;
    for (int n = 0; n < hpz->n_nodes && status == TW_OK; n++) {
        const uint8_t *message = n == hpz->node ? transfer->message : at;
        status = tw_hpz_message_apply(hpz, transfer, n, message, (size_t)transfer->bytes[n]);
        at += n == hpz->node ? 0 : sync_aligned((size_t)transfer->bytes[n]);
        if (status == TW_ERR_FORMAT || status == TW_ERR_TRUNCATED || status == TW_ERR_MISMATCH) {
            tw_error("rank %d: unit %d: the changes of node %d do not fit the replica: it needs a full sync",
                     hpz->rank, transfer->unit, n);
            status = TW_ERR_FORMAT;
        }
    }
    return status;
}

/** Receive the messages of all nodes. With wait 0: return TW_IN_PROGRESS if they have not arrived. */
static tw_status_t sync_exchange(tw_hpz_t *hpz, tw_hpz_transfer_t *transfer, int wait)
{
    tw_status_t status = TW_OK;
    while (!transfer->payload && status == TW_OK) {
        status = sync_advance(hpz, wait);
    }
    if (status == TW_OK) {
        status = wait ? tw_coll_wait(transfer->payload) : tw_coll_test(transfer->payload);
        transfer->payload = status == TW_IN_PROGRESS ? transfer->payload : NULL;
    }
    return status == TW_OK ? tw_hpz_progress(hpz) : status;
}

/** Clear the previous changes of a slice, because a full sync restarts lossless deltas. */
static tw_status_t forget_states(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first);
    for (size_t i = 0; i < n_tensors * (size_t)hpz->n_nodes; i++) {
        size_t t = first + i / (size_t)hpz->n_nodes;
        int node = (int)(i % (size_t)hpz->n_nodes);
        tw_hpz_piece_t piece = tw_hpz_slice_piece(hpz->layout, t, node, hpz->local, transfer->slice);
        TW_TRY(memory->zero(memory->ctx, own->states + tw_hpz_replica_offset(hpz, t, piece), piece.n_elems));
    }
    return TW_OK;
}

static tw_status_t apply(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    TW_TRY(own->sync.kind == TW_HPZ_FULL && own->states ? forget_states(hpz, transfer) : TW_OK);
    TW_TRY(apply_all(hpz, transfer));
    return tw_hpz_lag_measure(hpz, transfer);
}

/** Finish the first unfinished slice of a unit. Even if a message does not fit the replica, the unit's other
 *  slices are still exchanged, since the other nodes wait for them. */
static tw_status_t finish_slice(tw_hpz_t *hpz, tw_hpz_under_way_t *sync, int wait)
{
    tw_hpz_transfer_t *transfer = STAILQ_FIRST(&sync->transfers);
    /* After an error the communicator may still write to the transfer, which is then freed with the hpz. */
    TW_TRY(sync_exchange(hpz, transfer, wait));
    tw_status_t status = tw_hpz_settle(hpz, apply(hpz, transfer));
    sync->spoilt = sync->spoilt == TW_OK ? status : sync->spoilt;
    STAILQ_REMOVE_HEAD(&sync->transfers, in_unit);
    hpz->under_way -= transfer->n_elems;
    transfer_free(hpz, transfer);
    return begin_more(hpz);
}

static tw_status_t sync_end(tw_hpz_unit_t *own)
{
    own->sync.active = 0;
    if (own->sync.spoilt == TW_OK) {
        own->version = own->sync.version;
        tw_hpz_lag_end(own);
    }
    return own->sync.spoilt;
}

static tw_status_t sync_finish(tw_hpz_t *hpz, int unit, int wait)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    tw_status_t status = own->sync.failed;
    TW_FAIL_IF(!own->sync.active, TW_ERR_INVALID, "rank %d: unit %d: no sync is under way", hpz->rank, unit);
    while (!STAILQ_EMPTY(&own->sync.transfers) && status == TW_OK) {
        status = finish_slice(hpz, &own->sync, wait);
    }
    if (status != TW_IN_PROGRESS) {
        own->sync.failed = status;
    }
    return status == TW_OK ? sync_end(own) : status;
}

tw_status_t tw_hpz_sync_finish(tw_hpz_t *hpz, int unit)
{
    return sync_finish(hpz, unit, 1);
}

tw_status_t tw_hpz_sync_test(tw_hpz_t *hpz, int unit)
{
    return sync_finish(hpz, unit, 0);
}

/* ---- planning ------------------------------------------------------------------------------------------ */

static uint64_t expected_bytes(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, tw_hpz_sync_t kind,
                               double bits, int node)
{
    if (kind != TW_HPZ_LOSSLESS) {
        return tw_hpz_message_bytes(hpz, transfer->unit, transfer->slice, kind, node);
    }
    size_t n_elems = tw_hpz_message_elems(hpz, transfer->unit, transfer->slice, kind, node);
    return (uint64_t)((double)n_elems * bits / 8);
}

static uint64_t planned_slice_bytes(tw_hpz_t *hpz, tw_hpz_transfer_t *transfer, tw_hpz_sync_t kind,
                                    double bits)
{
    tw_coll_segment_t segment;
    uint64_t payload = 0, lengths = 0;
    for (int n = 0; n < hpz->n_nodes; n++) {
        transfer->bytes[n] = expected_bytes(hpz, transfer, kind, bits, n);
    }
    /* Nothing is written there, but the addresses must not be NULL. */
    transfer->message = transfer->others = (uint8_t *)transfer->bytes;
    tw_coll_args_t args = payload_args(hpz, transfer, hpz->segments);
    transfer->message = transfer->others = NULL;
    (void)tw_coll_planned_inter_node_bytes(hpz->rail, &args, &payload);
    if (tw_hpz_message_varies(hpz, kind)) {
        args = lengths_args(hpz, transfer, &segment);
        (void)tw_coll_planned_inter_node_bytes(hpz->rail_lengths, &args, &lengths);
    }
    return payload + lengths;
}

uint64_t tw_hpz_planned_sync_bytes(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, double bits)
{
    tw_hpz_slice_t slice = tw_hpz_sync_slice(hpz, unit, 0);
    uint64_t bytes = 0;
    for (;;) {
        tw_hpz_transfer_t *transfer = transfer_alloc(hpz, unit, slice);
        bytes += transfer ? planned_slice_bytes(hpz, transfer, kind, bits) : 0;
        transfer_free(hpz, transfer);
        if (slice.end == unit_end(hpz, unit)) {
            return bytes;
        }
        slice = tw_hpz_sync_slice(hpz, unit, slice.end);
    }
}
