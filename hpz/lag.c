/** Measures how far blocks lag behind their masters after a quantized delta, in units of the master's last
 *  update. A block with lag 0 has the values that a full sync would give it. With params.lag_plain, the next
 *  delta sends late blocks as bf16. (A late block has a lag beyond lag_bound.)
 *
 *  Late blocks in a message: for each block, u32 tensor (index in the unit), u32 block (index in the piece),
 *  and its new values in bf16. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hpz/state.h"

#define HEADER_BYTES (2 * sizeof(uint32_t))

static size_t block_elems(const tw_hpz_t *hpz, tw_hpz_piece_t piece, size_t block)
{
    size_t whole = (size_t)hpz->params.delta.block, left = piece.n_elems - block * whole;
    return left < whole ? left : whole;
}

static size_t block_count(const tw_hpz_t *hpz, tw_hpz_piece_t piece)
{
    size_t whole = (size_t)hpz->params.delta.block;
    return (piece.n_elems + whole - 1) / whole;
}

static tw_hpz_piece_t piece_in_unit(const tw_hpz_t *hpz, int unit, uint32_t tensor, int node, size_t *in_list)
{
    size_t first;
    (void)tw_hpz_layout_tensors(hpz->layout, unit, &first);
    *in_list = first + tensor;
    return tw_hpz_primary_piece(hpz->layout, *in_list, node, hpz->local);
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

static float lag_widen(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

/** Return the lag of a block. It is infinite if the replica differs although the master has not moved, or if
 *  the difference is no number. */
static double block_lag(const uint16_t *fresh, const uint16_t *replica, const float *master,
                        const float *last, size_t n)
{
    float lag = 0, update = 0;
    for (size_t i = 0; i < n; i++) {
        float off = fresh[i] == replica[i] ? 0 : fabsf(lag_widen(fresh[i]) - lag_widen(replica[i]));
        lag = fmaxf(lag, isnan(off) ? INFINITY : off); /* fmaxf ignores NaN */
        update = fmaxf(update, fabsf(master[i] - last[i]));
    }
    return lag == 0 || isinf(lag) ? (double)lag : (double)lag / (double)update;
}

static tw_status_t note_late(const tw_hpz_t *hpz, tw_hpz_lag_t *lag, uint32_t tensor, size_t block)
{
    tw_hpz_late_t *late = realloc(lag->late, (lag->n_late + 1) * sizeof(*late));
    TW_FAIL_IF(!late, TW_ERR_NO_MEMORY, "rank %d: out of memory for %zu blocks that lag", hpz->rank,
               lag->n_late + 1);
    lag->late = late;
    late[lag->n_late++] = (tw_hpz_late_t){.tensor = tensor, .block = (uint32_t)block};
    return TW_OK;
}

/* The blocks of a node's piece that are in a slice. A slice never ends inside a block. */
typedef struct {
    size_t first, end;
} blocks_t;

static blocks_t blocks_in(const tw_hpz_t *hpz, size_t tensor, int node, tw_hpz_slice_t slice)
{
    size_t whole = (size_t)hpz->params.delta.block;
    tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, tensor, node, hpz->local);
    tw_hpz_piece_t part = tw_hpz_slice_piece(hpz->layout, tensor, node, hpz->local, slice);
    size_t first = part.first - piece.first;
    return (blocks_t){(first + whole - 1) / whole, (first + part.n_elems + whole - 1) / whole};
}

static tw_status_t measure_piece(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, uint32_t tensor)
{
    tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t t;
    tw_hpz_piece_t piece = piece_in_unit(hpz, transfer->unit, tensor, hpz->node, &t);
    const uint16_t *replica = own->replica + tw_hpz_replica_offset(hpz, t, piece);
    blocks_t blocks = blocks_in(hpz, t, hpz->node, transfer->slice);
    tw_status_t status = TW_OK;
    for (size_t b = blocks.first; b < blocks.end && status == TW_OK; b++) {
        size_t at = b * (size_t)hpz->params.delta.block, from = piece.offset + at;
        double lag = block_lag(transfer->fresh + (from - transfer->own_first), replica + at,
                               own->sync.master + from, own->last + from, block_elems(hpz, piece, b));
        if (lag > own->now.max) {
            own->now.max = lag;
            own->now.tensor = t;
        }
        if (lag > hpz->params.lag_bound) {
            hpz->counters.lag_blocks++;
            status = note_late(hpz, &own->now, tensor, b);
        }
    }
    return status;
}

tw_status_t tw_hpz_lag_measure(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    const tw_hpz_unit_t *own = &hpz->units[transfer->unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, transfer->unit, &first);
    tw_status_t status = TW_OK;
    if (!own->last) {
        return TW_OK;
    }
    for (size_t i = 0; i < n_tensors && own->sync.kind == TW_HPZ_QUANTIZED && status == TW_OK; i++) {
        if (!hpz->params.tensors[first + i].unquantized) {
            status = measure_piece(hpz, transfer, (uint32_t)i);
        }
    }
    if (transfer->n_own > 0) { /* if n_own is 0, the master may be NULL */
        memcpy(own->last + transfer->own_first, own->sync.master + transfer->own_first,
               transfer->n_own * sizeof(float));
    }
    return status;
}

void tw_hpz_lag_begin(tw_hpz_unit_t *unit)
{
    unit->now.n_late = 0;
    unit->now.max = 0;
}

void tw_hpz_lag_end(tw_hpz_unit_t *unit)
{
    tw_hpz_lag_t before = unit->lag;
    unit->lag = unit->now;
    unit->now = before; /* reuse the memory of its list */
}

/* ---- in a message -------------------------------------------------------------------------------------- */

static size_t late_elems(const tw_hpz_t *hpz, int unit, tw_hpz_late_t late)
{
    size_t t;
    return block_elems(hpz, piece_in_unit(hpz, unit, late.tensor, hpz->node, &t), late.block);
}

/** Return 1 if a block that was late after the last sync is in this slice. */
static int is_in(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, tw_hpz_late_t late)
{
    size_t t;
    (void)piece_in_unit(hpz, transfer->unit, late.tensor, hpz->node, &t);
    blocks_t blocks = blocks_in(hpz, t, hpz->node, transfer->slice);
    return late.block >= blocks.first && late.block < blocks.end;
}

size_t tw_hpz_late_bytes(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer)
{
    const tw_hpz_lag_t *lag = &hpz->units[transfer->unit].lag;
    size_t bytes = 0;
    for (size_t i = 0; i < lag->n_late; i++) {
        if (is_in(hpz, transfer, lag->late[i])) {
            bytes += HEADER_BYTES + late_elems(hpz, transfer->unit, lag->late[i]) * sizeof(uint16_t);
        }
    }
    return bytes;
}

size_t tw_hpz_late_bytes_max(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, int node)
{
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), bytes = 0;
    for (size_t t = first; t < first + n_tensors; t++) {
        blocks_t blocks = blocks_in(hpz, t, node, slice);
        size_t n_elems = tw_hpz_slice_piece(hpz->layout, t, node, hpz->local, slice).n_elems;
        if (!hpz->params.tensors[t].unquantized) {
            bytes += (blocks.end - blocks.first) * HEADER_BYTES + n_elems * sizeof(uint16_t);
        }
    }
    return bytes;
}

void tw_hpz_late_write(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, uint8_t *at)
{
    const tw_hpz_lag_t *lag = &hpz->units[transfer->unit].lag;
    for (size_t i = 0; i < lag->n_late; i++) {
        uint32_t header[2] = {lag->late[i].tensor, lag->late[i].block};
        size_t t, n = late_elems(hpz, transfer->unit, lag->late[i]);
        tw_hpz_piece_t piece = piece_in_unit(hpz, transfer->unit, header[0], hpz->node, &t);
        size_t from = piece.offset + (size_t)header[1] * (size_t)hpz->params.delta.block;
        if (is_in(hpz, transfer, lag->late[i])) {
            memcpy(at, header, HEADER_BYTES);
            memcpy(at + HEADER_BYTES, transfer->fresh + (from - transfer->own_first), n * sizeof(uint16_t));
            at += HEADER_BYTES + n * sizeof(uint16_t);
        }
    }
}

/** Apply one late block of a message. Return its bytes in the message, or 0 if the block is invalid. */
static size_t apply_late(const tw_hpz_t *hpz, int unit, int node, const uint8_t *at, size_t bytes)
{
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), t;
    uint32_t header[2];
    if (bytes < HEADER_BYTES) {
        return 0;
    }
    memcpy(header, at, HEADER_BYTES);
    if (header[0] >= n_tensors) {
        return 0;
    }
    tw_hpz_piece_t piece = piece_in_unit(hpz, unit, header[0], node, &t);
    if (hpz->params.tensors[t].unquantized || header[1] >= block_count(hpz, piece)) {
        return 0;
    }
    size_t n_bytes = block_elems(hpz, piece, header[1]) * sizeof(uint16_t);
    if (bytes < HEADER_BYTES + n_bytes) {
        return 0;
    }
    memcpy(hpz->units[unit].replica + tw_hpz_replica_offset(hpz, t, piece) +
               (size_t)header[1] * (size_t)hpz->params.delta.block,
           at + HEADER_BYTES, n_bytes);
    return HEADER_BYTES + n_bytes;
}

tw_status_t tw_hpz_late_apply(const tw_hpz_t *hpz, int unit, int node, const uint8_t *at, size_t bytes)
{
    while (bytes > 0) {
        size_t taken = apply_late(hpz, unit, node, at, bytes);
        TW_FAIL_IF(taken == 0, TW_ERR_FORMAT,
                   "rank %d: unit %d: a late block from node %d is none of its pieces'", hpz->rank, unit,
                   node);
        at += taken;
        bytes -= taken;
    }
    return TW_OK;
}
