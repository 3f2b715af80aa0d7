/** Encodes a rank's message to its rail in a sync of a slice, and applies the messages of other ranks. In
 *  this file, "piece" means only those elements of a piece (hpz.h) that lie in the slice.
 *
 *  FULL       all pieces in bf16, in the order of the tensors
 *  QUANTIZED  the encoded pieces of quantized tensors, each at a multiple of 16 bytes; then the pieces of the
 *             other tensors in bf16; then, with params.lag_plain, the late blocks (lag.c)
 *  LOSSLESS   one message of tw_quant_delta_encode with all pieces; nothing for an empty part. If some pieces
 *             are fp8: u32 length of the message with the other pieces; that message; then one message of
 *             tw_quant_delta8_encode with the codes of the fp8 pieces. Old codes are recomputed with the new
 *             exponent, which all ranks know, so a new exponent alone changes hardly any code
 *
 *  Frozen tensors are only in FULL. */
#include <string.h>

#include "hpz/state.h"
#include "quant/e4m3.h"

int tw_hpz_message_varies(const tw_hpz_t *hpz, tw_hpz_sync_t kind)
{
    return kind == TW_HPZ_LOSSLESS || (kind == TW_HPZ_QUANTIZED && hpz->params.lag_plain);
}

int tw_hpz_keeps_fresh(const tw_hpz_t *hpz, tw_hpz_sync_t kind)
{
    int has_lags = kind == TW_HPZ_QUANTIZED && hpz->params.lag_bound > 0;
    return !hpz->is_elsewhere && (kind == TW_HPZ_LOSSLESS || has_lags);
}

/* ---- lengths ------------------------------------------------------------------------------------------- */

static int message_is_plain(const tw_hpz_t *hpz, tw_hpz_sync_t kind, size_t tensor)
{
    return kind == TW_HPZ_FULL || hpz->params.tensors[tensor].unquantized;
}

/** Return 1 if this kind of message leaves the tensor out: deltas have no frozen tensors. */
static int is_left_out(const tw_hpz_t *hpz, tw_hpz_sync_t kind, size_t tensor)
{
    return kind != TW_HPZ_FULL && hpz->params.tensors[tensor].frozen;
}

static size_t piece_bytes(const tw_hpz_t *hpz, tw_hpz_sync_t kind, size_t tensor, size_t n_elems)
{
    if (is_left_out(hpz, kind, tensor)) {
        return 0;
    }
    return message_is_plain(hpz, kind, tensor) ? n_elems * sizeof(uint16_t)
                                               : tw_quant_encoded_bytes(&hpz->params.delta, n_elems);
}

static tw_hpz_piece_t piece_of(const tw_hpz_t *hpz, tw_hpz_slice_t slice, size_t tensor, int node)
{
    return tw_hpz_slice_piece(hpz->layout, tensor, node, hpz->local, slice);
}

/** Return the bytes of all pieces in a node's message, without late blocks. */
static size_t pieces_bytes(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_hpz_sync_t kind, int node)
{
    size_t first, n = tw_hpz_layout_tensors(hpz->layout, unit, &first), bytes = 0;
    for (size_t t = first; t < first + n; t++) {
        bytes += piece_bytes(hpz, kind, t, piece_of(hpz, slice, t, node).n_elems);
    }
    return bytes;
}

size_t tw_hpz_message_elems(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_hpz_sync_t kind, int node)
{
    size_t first, n = tw_hpz_layout_tensors(hpz->layout, unit, &first), n_elems = 0;
    for (size_t t = first; t < first + n; t++) {
        n_elems += is_left_out(hpz, kind, t) ? 0 : piece_of(hpz, slice, t, node).n_elems;
    }
    return n_elems;
}

static int is_fp8(const tw_hpz_t *hpz, size_t tensor)
{
    return hpz->exponents && hpz->exponents[tensor] != TW_HPZ_BF16;
}

/** Return how many elements of a node's lossless message are fp8. */
static size_t fp8_elems(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, int node)
{
    size_t first, n = tw_hpz_layout_tensors(hpz->layout, unit, &first), n_elems = 0;
    for (size_t t = first; t < first + n && hpz->exponents; t++) {
        int is_in = is_fp8(hpz, t) && !is_left_out(hpz, TW_HPZ_LOSSLESS, t);
        n_elems += is_in ? piece_of(hpz, slice, t, node).n_elems : 0;
    }
    return n_elems;
}

size_t tw_hpz_message_bytes(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_hpz_sync_t kind, int node)
{
    if (kind == TW_HPZ_LOSSLESS) {
        size_t n_fp8 = fp8_elems(hpz, unit, slice, node);
        size_t n_elems = tw_hpz_message_elems(hpz, unit, slice, kind, node) - n_fp8;
        return (n_elems > 0 ? tw_quant_delta_bound_bytes(n_elems) : 0) +
               (n_fp8 > 0 ? sizeof(uint32_t) + tw_quant_delta8_bound_bytes(n_fp8) : 0);
    }
    size_t late = tw_hpz_message_varies(hpz, kind) ? tw_hpz_late_bytes_max(hpz, unit, slice, node) : 0;
    return pieces_bytes(hpz, unit, slice, kind, node) + late;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static tw_quant_args_t args_of(const tw_hpz_t *hpz, int unit)
{
    return (tw_quant_args_t){.type = TW_TYPE_BF16,
                             .seed = hpz->params.seed,
                             .step = (uint32_t)hpz->units[unit].sync.version,
                             .factor = 1};
}

/** Return the new values of one of this rank's pieces. */
static const uint16_t *fresh_of(const tw_hpz_transfer_t *transfer, tw_hpz_piece_t piece)
{
    return transfer->fresh + (piece.offset - transfer->own_first);
}

/** Write the changes of the quantized tensors from *at on, and move *at to their end. */
static tw_status_t write_deltas(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, uint8_t **at)
{
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first), n = 0;
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, hpz->node);
        if (message_is_plain(hpz, TW_HPZ_QUANTIZED, t) || is_left_out(hpz, TW_HPZ_QUANTIZED, t)) {
            continue;
        }
        hpz->pieces[n++] = (tw_quant_segment_t){.src = own->sync.master + piece.offset,
                                                .base = own->replica + tw_hpz_replica_offset(hpz, t, piece),
                                                .dst = *at,
                                                .n_elems = piece.n_elems,
                                                .tensor = (uint32_t)t,
                                                .first_elem = piece.first};
        *at += piece_bytes(hpz, TW_HPZ_QUANTIZED, t, piece.n_elems);
    }
    tw_quant_args_t args = args_of(hpz, transfer->unit);
    return n > 0 ? tw_quant_encode_delta(hpz->quant, &args, hpz->pieces, n) : TW_OK;
}

static tw_status_t write_plain(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, uint8_t **at)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    tw_hpz_sync_t kind = hpz->units[transfer->unit].sync.kind;
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first);
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, hpz->node);
        if (message_is_plain(hpz, kind, t) && !is_left_out(hpz, kind, t)) {
            TW_TRY(memory->copy(memory->ctx, *at, fresh_of(transfer, piece),
                                piece.n_elems * sizeof(*transfer->fresh)));
            *at += piece.n_elems * sizeof(*transfer->fresh);
        }
    }
    return TW_OK;
}

/** Make this rank's new values of a slice: bf16, of which those of fp8 tensors are rounded further. */
static tw_status_t make_fresh(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    const float *master = hpz->units[transfer->unit].sync.master;
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first);
    if (!hpz->exponents) {
        return memory->narrow(memory->ctx, master + transfer->own_first, transfer->fresh, transfer->n_own);
    }
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, hpz->node);
        if (piece.n_elems == 0) {
            continue;
        }
        uint16_t *fresh = transfer->fresh + (piece.offset - transfer->own_first);
        if (is_fp8(hpz, t)) {
            tw_quant_e4m3_round(master + piece.offset, hpz->exponents[t], fresh, piece.n_elems);
        } else {
            TW_TRY(memory->narrow(memory->ctx, master + piece.offset, fresh, piece.n_elems));
        }
    }
    return TW_OK;
}

/** List a node's fp8 pieces as segments of codes. The other pieces are listed by delta_pieces. */
static size_t code_pieces(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node, int has_fresh)
{
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first), n = 0;
    uint8_t *at = hpz->codes;
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, node);
        if (piece.n_elems == 0 || !is_fp8(hpz, t) || is_left_out(hpz, TW_HPZ_LOSSLESS, t)) {
            continue;
        }
        uint8_t *fresh = has_fresh ? at + piece.n_elems : NULL;
        tw_quant_e4m3_codes(own->replica + tw_hpz_replica_offset(hpz, t, piece), hpz->exponents[t], at,
                            piece.n_elems);
        if (fresh) {
            tw_quant_e4m3_codes(fresh_of(transfer, piece), hpz->exponents[t], fresh, piece.n_elems);
        }
        hpz->delta_pieces[n++] =
            (tw_quant_delta_segment_t){.base = at, .src = fresh, .dst = at, .n_elems = piece.n_elems};
        at += piece.n_elems * (has_fresh ? 2 : 1);
    }
    return n;
}

/** List a node's pieces, except fp8 ones, as segments of a lossless delta. has_fresh 1: this rank's pieces,
 *  to encode their new values; 0: pieces to be decoded in place. */
static size_t delta_pieces(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node, int has_fresh)
{
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first), n = 0;
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, node);
        size_t at = tw_hpz_replica_offset(hpz, t, piece);
        if (piece.n_elems > 0 && !is_fp8(hpz, t) && !is_left_out(hpz, TW_HPZ_LOSSLESS, t)) {
            hpz->delta_pieces[n++] =
                (tw_quant_delta_segment_t){.base = own->replica + at,
                                           .src = has_fresh ? fresh_of(transfer, piece) : NULL,
                                           .dst = own->replica + at,
                                           .state = own->states + at,
                                           .n_elems = piece.n_elems};
        }
    }
    return n;
}

/** Update this rank's own replica after a lossless delta, by copying the new values. Encoding has already
 *  updated the states. */
static tw_status_t apply_own_lossless(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first);
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, hpz->node);
        if (!is_left_out(hpz, TW_HPZ_LOSSLESS, t)) {
            TW_TRY(memory->copy(memory->ctx, own->replica + tw_hpz_replica_offset(hpz, t, piece),
                                fresh_of(transfer, piece), piece.n_elems * sizeof(*own->replica)));
        }
    }
    return TW_OK;
}

/** Encode a lossless delta. Memory other than the host's has only one buffer of new values, which the next
 *  transfer overwrites, so there the replica is updated at once. */
static tw_status_t write_lossless(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, size_t *bytes)
{
    int has_codes = fp8_elems(hpz, transfer->unit, transfer->slice, hpz->node) > 0;
    size_t n = delta_pieces(hpz, transfer, hpz->node, 1), first = has_codes ? sizeof(uint32_t) : 0, more = 0;
    size_t room = tw_hpz_message_bytes(hpz, transfer->unit, transfer->slice, TW_HPZ_LOSSLESS, hpz->node);
    *bytes = 0;
    if (n > 0) {
        TW_TRY(hpz->memory.encode(hpz->memory.ctx, hpz->delta_pieces, n, transfer->message + first,
                                  room - first, bytes));
    }
    if (has_codes) {
        const uint32_t length = (uint32_t)*bytes;
        memcpy(transfer->message, &length, sizeof(length));
        n = code_pieces(hpz, transfer, hpz->node, 1);
        *bytes += first;
        TW_TRY(tw_quant_delta8_encode(hpz->delta, hpz->delta_pieces, n, transfer->message + *bytes,
                                      room - *bytes, &more));
        *bytes += more;
    }
    return hpz->is_elsewhere ? apply_own_lossless(hpz, transfer) : TW_OK;
}

tw_status_t tw_hpz_message_encode(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, size_t *bytes)
{
    const tw_hpz_under_way_t *sync = &hpz->units[transfer->unit].sync;
    uint8_t *at = transfer->message;
    TW_TRY(make_fresh(hpz, transfer));
    if (sync->kind == TW_HPZ_LOSSLESS) {
        return write_lossless(hpz, transfer, bytes);
    }
    TW_TRY(sync->kind == TW_HPZ_QUANTIZED ? write_deltas(hpz, transfer, &at) : TW_OK);
    TW_TRY(write_plain(hpz, transfer, &at));
    if (tw_hpz_message_varies(hpz, sync->kind)) {
        tw_hpz_late_write(hpz, transfer, at);
        at += tw_hpz_late_bytes(hpz, transfer);
    }
    *bytes = (size_t)(at - transfer->message);
    return TW_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static tw_status_t apply_deltas(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node,
                                const uint8_t **at)
{
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first), n = 0;
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, node);
        if (message_is_plain(hpz, TW_HPZ_QUANTIZED, t) || is_left_out(hpz, TW_HPZ_QUANTIZED, t)) {
            continue;
        }
        hpz->pieces[n++] = (tw_quant_segment_t){.src = *at,
                                                .dst = own->replica + tw_hpz_replica_offset(hpz, t, piece),
                                                .n_elems = piece.n_elems,
                                                .tensor = (uint32_t)t,
                                                .first_elem = piece.first};
        *at += piece_bytes(hpz, TW_HPZ_QUANTIZED, t, piece.n_elems);
    }
    tw_quant_args_t args = args_of(hpz, transfer->unit);
    return n > 0 ? tw_quant_decode_apply(hpz->quant, &args, hpz->pieces, n) : TW_OK;
}

static tw_status_t apply_plain(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node,
                               const uint8_t **at)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first);
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, node);
        if (message_is_plain(hpz, own->sync.kind, t) && !is_left_out(hpz, own->sync.kind, t)) {
            TW_TRY(memory->copy(memory->ctx, own->replica + tw_hpz_replica_offset(hpz, t, piece), *at,
                                piece.n_elems * sizeof(*own->replica)));
            *at += piece.n_elems * sizeof(*own->replica);
        }
    }
    return TW_OK;
}

/** Apply a message's changes to the codes that code_pieces has listed, and then to the replica. */
static tw_status_t apply_codes(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node,
                               const uint8_t *message, size_t bytes)
{
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first);
    size_t n = code_pieces(hpz, transfer, node, 0);
    const uint8_t *at = hpz->codes;
    TW_TRY(tw_quant_delta8_decode(hpz->delta, hpz->delta_pieces, n, message, bytes));
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = piece_of(hpz, transfer->slice, t, node);
        if (is_fp8(hpz, t) && !is_left_out(hpz, TW_HPZ_LOSSLESS, t)) {
            tw_quant_e4m3_values(at, hpz->exponents[t], own->replica + tw_hpz_replica_offset(hpz, t, piece),
                                 piece.n_elems);
            at += piece.n_elems;
        }
    }
    return TW_OK;
}

static tw_status_t apply_lossless(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node,
                                  const uint8_t *message, size_t bytes)
{
    if (node == hpz->node) {
        return hpz->is_elsewhere ? TW_OK : apply_own_lossless(hpz, transfer);
    }
    int has_codes = fp8_elems(hpz, transfer->unit, transfer->slice, node) > 0;
    size_t n = delta_pieces(hpz, transfer, node, 0);
    uint32_t length = (uint32_t)bytes;
    if (has_codes) {
        TW_FAIL_IF(bytes < sizeof(length), TW_ERR_TRUNCATED, "rank %d: unit %d: %zu bytes of changes",
                   hpz->rank, transfer->unit, bytes);
        memcpy(&length, message, sizeof(length));
        message += sizeof(length);
        bytes -= sizeof(length);
        TW_FAIL_IF(length > bytes, TW_ERR_TRUNCATED, "rank %d: unit %d: %zu bytes of changes", hpz->rank,
                   transfer->unit, bytes);
    }
    if (n > 0) {
        TW_TRY(hpz->memory.decode(hpz->memory.ctx, hpz->delta_pieces, n, message, length));
    }
    return has_codes ? apply_codes(hpz, transfer, node, message + length, bytes - length) : TW_OK;
}

tw_status_t tw_hpz_message_apply(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node,
                                 const uint8_t *message, size_t bytes)
{
    tw_hpz_sync_t kind = hpz->units[transfer->unit].sync.kind;
    const uint8_t *at = message;
    if (kind == TW_HPZ_LOSSLESS) {
        return apply_lossless(hpz, transfer, node, message, bytes);
    }
    TW_FAIL_IF(bytes < pieces_bytes(hpz, transfer->unit, transfer->slice, kind, node), TW_ERR_FORMAT,
               "rank %d: unit %d: %zu bytes of changes from node %d, fewer than its pieces take", hpz->rank,
               transfer->unit, bytes, node);
    TW_TRY(kind == TW_HPZ_QUANTIZED ? apply_deltas(hpz, transfer, node, &at) : TW_OK);
    TW_TRY(apply_plain(hpz, transfer, node, &at));
    return tw_hpz_message_varies(hpz, kind)
               ? tw_hpz_late_apply(hpz, transfer->unit, node, at, bytes - (size_t)(at - message))
               : TW_OK;
}
