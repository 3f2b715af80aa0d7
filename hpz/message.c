/** What a rank sends to its rail in a sync of a unit, and what becomes of it there.
 *
 *  FULL    its pieces in bf16, in the order of the tensors
 *  DELTA   pieces of quantized tensors, encoded, each from a multiple of 16 bytes on; then those of exact ones in bf16; then,
 *          with params.lag_exact, the late blocks (lag.c)
 *  EXACT   all pieces as one message of tw_quant_exact_encode; nothing for an empty part */
#include <string.h>

#include "hpz/state.h"

int tw_hpz_message_varies(const tw_hpz_t *hpz, tw_hpz_sync_t kind)
{
    return kind == TW_HPZ_EXACT || (kind == TW_HPZ_DELTA && hpz->params.lag_exact);
}

/* ---- lengths ----------------------------------------------------------------------------------------------- */

static int is_plain(const tw_hpz_t *hpz, tw_hpz_sync_t kind, size_t tensor)
{
    return kind == TW_HPZ_FULL || hpz->params.tensors[tensor].exact;
}

static size_t piece_bytes(const tw_hpz_t *hpz, tw_hpz_sync_t kind, size_t tensor, size_t n_elems)
{
    return is_plain(hpz, kind, tensor) ? n_elems * sizeof(uint16_t)
                                       : tw_quant_encoded_bytes(&hpz->params.delta, n_elems);
}

/* All pieces of a node, without late blocks. */
static size_t pieces_bytes(const tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, int node)
{
    size_t first, n = tw_hpz_layout_tensors(hpz->layout, unit, &first), bytes = 0;

    for (size_t t = first; t < first + n; t++) {
        bytes += piece_bytes(hpz, kind, t, tw_hpz_primary_piece(hpz->layout, t, node, hpz->local).n_elems);
    }
    return bytes;
}

size_t tw_hpz_message_bytes(const tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, int node)
{
    if (kind == TW_HPZ_EXACT) {
        size_t n_elems = tw_hpz_primary_elems(hpz->layout, unit, node, hpz->local);
        return n_elems > 0 ? tw_quant_exact_bound_bytes(n_elems) : 0;
    }
    size_t late = tw_hpz_message_varies(hpz, kind) ? tw_hpz_late_bytes_max(hpz, unit, node) : 0;
    return pieces_bytes(hpz, unit, kind, node) + late;
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static tw_quant_args_t args_of(const tw_hpz_t *hpz, const tw_hpz_job_t *job)
{
    return (tw_quant_args_t){
        .type = TW_TYPE_BF16, .seed = hpz->params.seed, .step = (uint32_t)job->version, .factor = 1};
}

/* Changes of the quantized tensors from `at` on; returns where they end. */
static tw_status_t write_deltas(tw_hpz_t *hpz, int unit, uint8_t **at)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), n = 0;

    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, t, hpz->node, hpz->local);
        if (is_plain(hpz, TW_HPZ_DELTA, t)) {
            continue;
        }
        hpz->pieces[n++] = (tw_quant_segment_t){.src = own->job.master + piece.offset,
                                                .base = own->replica + tw_hpz_replica_offset(hpz, t, piece),
                                                .dst = *at,
                                                .n_elems = piece.n_elems,
                                                .tensor = (uint32_t)t,
                                                .first_elem = piece.first};
        *at += piece_bytes(hpz, TW_HPZ_DELTA, t, piece.n_elems);
    }
    tw_quant_args_t args = args_of(hpz, &own->job);
    return n > 0 ? tw_quant_delta_encode(hpz->quant, &args, hpz->pieces, n) : TW_OK;
}

static void write_plain(const tw_hpz_t *hpz, int unit, uint8_t **at)
{
    const tw_hpz_job_t *job = &hpz->units[unit].job;
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first);

    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, t, hpz->node, hpz->local);
        if (is_plain(hpz, job->kind, t)) {
            memcpy(*at, job->fresh + piece.offset, piece.n_elems * sizeof(*job->fresh));
            *at += piece.n_elems * sizeof(*job->fresh);
        }
    }
}

/* A node's pieces as the exact codec takes them; fresh: of the own part, or NULL where they are to be decoded in place. */
static size_t exact_pieces(tw_hpz_t *hpz, int unit, int node, const uint16_t *fresh)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), n = 0;

    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, t, node, hpz->local);
        size_t at = tw_hpz_replica_offset(hpz, t, piece);
        if (piece.n_elems > 0) {
            hpz->exact_pieces[n++] =
                (tw_quant_exact_segment_t){.base = own->replica + at,
                                           .src = fresh != NULL ? fresh + piece.offset : NULL,
                                           .dst = own->replica + at,
                                           .state = own->states + at,
                                           .n_elems = piece.n_elems};
        }
    }
    return n;
}

static tw_status_t write_exact(tw_hpz_t *hpz, int unit, size_t *bytes)
{
    const tw_hpz_job_t *job = &hpz->units[unit].job;
    size_t n = exact_pieces(hpz, unit, hpz->node, job->fresh);

    *bytes = 0;
    return n == 0 ? TW_OK
                  : tw_quant_exact_encode(hpz->exact, hpz->exact_pieces, n, job->message,
                                          tw_hpz_message_bytes(hpz, unit, TW_HPZ_EXACT, hpz->node), bytes);
}

tw_status_t tw_hpz_message_encode(tw_hpz_t *hpz, int unit, size_t *bytes)
{
    const tw_hpz_job_t *job = &hpz->units[unit].job;
    uint8_t *at = job->message;
    tw_status_t status = TW_OK;

    tw_convert_from_fp32(TW_TYPE_BF16, job->master, 1, job->fresh,
                         tw_hpz_primary_elems(hpz->layout, unit, hpz->node, hpz->local));
    if (job->kind == TW_HPZ_EXACT) {
        return write_exact(hpz, unit, bytes);
    }
    if (job->kind == TW_HPZ_DELTA) {
        status = write_deltas(hpz, unit, &at);
    }
    write_plain(hpz, unit, &at);
    if (tw_hpz_message_varies(hpz, job->kind)) {
        tw_hpz_late_write(hpz, unit, at);
        at += tw_hpz_late_bytes(hpz, unit);
    }
    *bytes = (size_t)(at - job->message);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

static tw_status_t apply_deltas(tw_hpz_t *hpz, int unit, int node, const uint8_t **at)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), n = 0;

    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, t, node, hpz->local);
        if (is_plain(hpz, TW_HPZ_DELTA, t)) {
            continue;
        }
        hpz->pieces[n++] = (tw_quant_segment_t){.src = *at,
                                                .dst = own->replica + tw_hpz_replica_offset(hpz, t, piece),
                                                .n_elems = piece.n_elems,
                                                .tensor = (uint32_t)t,
                                                .first_elem = piece.first};
        *at += piece_bytes(hpz, TW_HPZ_DELTA, t, piece.n_elems);
    }
    tw_quant_args_t args = args_of(hpz, &own->job);
    return n > 0 ? tw_quant_decode_apply(hpz->quant, &args, hpz->pieces, n) : TW_OK;
}

static void apply_plain(const tw_hpz_t *hpz, int unit, int node, const uint8_t **at)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first);

    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, t, node, hpz->local);
        if (is_plain(hpz, own->job.kind, t)) {
            memcpy(own->replica + tw_hpz_replica_offset(hpz, t, piece), *at,
                   piece.n_elems * sizeof(*own->replica));
            *at += piece.n_elems * sizeof(*own->replica);
        }
    }
}

/* The owner's end of an exact delta: the states have moved on in encoding. */
static void apply_own_exact(const tw_hpz_t *hpz, int unit)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first);

    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, t, hpz->node, hpz->local);
        memcpy(own->replica + tw_hpz_replica_offset(hpz, t, piece), own->job.fresh + piece.offset,
               piece.n_elems * sizeof(*own->replica));
    }
}

static tw_status_t apply_exact(tw_hpz_t *hpz, int unit, int node, const uint8_t *message, size_t bytes)
{
    if (node == hpz->node) {
        apply_own_exact(hpz, unit);
        return TW_OK;
    }
    size_t n = exact_pieces(hpz, unit, node, NULL);
    return n == 0 ? TW_OK : tw_quant_exact_decode(hpz->exact, hpz->exact_pieces, n, message, bytes);
}

tw_status_t tw_hpz_message_apply(tw_hpz_t *hpz, int unit, int node, const uint8_t *message, size_t bytes)
{
    tw_hpz_sync_t kind = hpz->units[unit].job.kind;
    const uint8_t *at = message;
    tw_status_t status = TW_OK;

    if (kind == TW_HPZ_EXACT) {
        return apply_exact(hpz, unit, node, message, bytes);
    }
    if (bytes < pieces_bytes(hpz, unit, kind, node)) {
        tw_error("rank %d: unit %d: %zu bytes of changes from node %d, fewer than its pieces take", hpz->rank,
                 unit, bytes, node);
        return TW_ERR_FORMAT;
    }
    if (kind == TW_HPZ_DELTA) {
        status = apply_deltas(hpz, unit, node, &at);
    }
    if (status != TW_OK) {
        return status;
    }
    apply_plain(hpz, unit, node, &at);
    return tw_hpz_message_varies(hpz, kind)
               ? tw_hpz_late_apply(hpz, unit, node, at, bytes - (size_t)(at - message))
               : TW_OK;
}
