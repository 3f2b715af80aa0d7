/** Blocks of the lossy delta that lag behind their master: measured against what an exact sync would have made of them, in
 *  units of the master's last update; on request sent as they are with the next delta.
 *
 *  Late blocks in a message: for each u32 tensor (in the unit), u32 block, then the block's new values in bf16. */
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

/* ---- measuring --------------------------------------------------------------------------------------------- */

static float widen(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

/* Infinite where a block lags though its master has not moved. */
static double block_lag(const uint16_t *fresh, const uint16_t *replica, const float *master,
                        const float *last, size_t n)
{
    float lag = 0, update = 0;

    for (size_t i = 0; i < n; i++) {
        lag = fmaxf(lag, fabsf(widen(fresh[i]) - widen(replica[i])));
        update = fmaxf(update, fabsf(master[i] - last[i]));
    }
    return lag == 0 ? 0 : (double)lag / (double)update;
}

static tw_status_t note_late(tw_hpz_t *hpz, int unit, uint32_t tensor, size_t block)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    tw_hpz_late_t *late = realloc(own->late, (own->n_late + 1) * sizeof(*late));

    if (late == NULL) {
        tw_error("rank %d: out of memory for %zu blocks that lag", hpz->rank, own->n_late + 1);
        return TW_ERR_NO_MEMORY;
    }
    own->late = late;
    late[own->n_late++] = (tw_hpz_late_t){.tensor = tensor, .block = (uint32_t)block};
    return TW_OK;
}

static tw_status_t measure_piece(tw_hpz_t *hpz, int unit, uint32_t tensor)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    size_t t;
    tw_hpz_piece_t piece = piece_in_unit(hpz, unit, tensor, hpz->node, &t);
    const uint16_t *replica = own->replica + tw_hpz_replica_offset(hpz, t, piece);
    tw_status_t status = TW_OK;

    for (size_t b = 0; b < block_count(hpz, piece) && status == TW_OK; b++) {
        size_t at = b * (size_t)hpz->params.delta.block, from = piece.offset + at;
        double lag = block_lag(own->job.fresh + from, replica + at, own->job.master + from, own->last + from,
                               block_elems(hpz, piece, b));
        if (lag > own->lag_max) {
            own->lag_max = lag;
            own->lag_tensor = t;
        }
        if (lag > hpz->params.lag_bound) {
            hpz->counters.lag_blocks++;
            status = note_late(hpz, unit, tensor, b);
        }
    }
    return status;
}

tw_status_t tw_hpz_lag_measure(tw_hpz_t *hpz, int unit)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first);
    tw_status_t status = TW_OK;

    own->n_late = 0;
    own->lag_max = 0;
    if (own->last == NULL) {
        return TW_OK;
    }
    for (size_t i = 0; i < n_tensors && own->job.kind == TW_HPZ_DELTA && status == TW_OK; i++) {
        if (!hpz->params.tensors[first + i].exact) {
            status = measure_piece(hpz, unit, (uint32_t)i);
        }
    }
    size_t n_elems = tw_hpz_primary_elems(hpz->layout, unit, hpz->node, hpz->local);
    if (n_elems > 0) { /* of none there may be no master */
        memcpy(own->last, own->job.master, n_elems * sizeof(float));
    }
    return status;
}

/* ---- in a message ------------------------------------------------------------------------------------------ */

static size_t late_elems(const tw_hpz_t *hpz, int unit, tw_hpz_late_t late)
{
    size_t t;
    return block_elems(hpz, piece_in_unit(hpz, unit, late.tensor, hpz->node, &t), late.block);
}

size_t tw_hpz_late_bytes(const tw_hpz_t *hpz, int unit)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t bytes = 0;

    for (size_t i = 0; i < own->n_late; i++) {
        bytes += HEADER_BYTES + late_elems(hpz, unit, own->late[i]) * sizeof(uint16_t);
    }
    return bytes;
}

size_t tw_hpz_late_bytes_max(const tw_hpz_t *hpz, int unit, int node)
{
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), bytes = 0;

    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_primary_piece(hpz->layout, t, node, hpz->local);
        if (!hpz->params.tensors[t].exact) {
            bytes += block_count(hpz, piece) * HEADER_BYTES + piece.n_elems * sizeof(uint16_t);
        }
    }
    return bytes;
}

void tw_hpz_late_write(const tw_hpz_t *hpz, int unit, uint8_t *at)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];

    for (size_t i = 0; i < own->n_late; i++) {
        uint32_t header[2] = {own->late[i].tensor, own->late[i].block};
        size_t t, n = late_elems(hpz, unit, own->late[i]);
        tw_hpz_piece_t piece = piece_in_unit(hpz, unit, header[0], hpz->node, &t);
        memcpy(at, header, HEADER_BYTES);
        memcpy(at + HEADER_BYTES,
               own->job.fresh + piece.offset + (size_t)header[1] * (size_t)hpz->params.delta.block,
               n * sizeof(uint16_t));
        at += HEADER_BYTES + n * sizeof(uint16_t);
    }
}

/* One block; its bytes, or 0 if no rank writes such a one. */
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
    if (hpz->params.tensors[t].exact || header[1] >= block_count(hpz, piece)) {
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
        if (taken == 0) {
            tw_error("rank %d: unit %d: a late block from node %d is none of its pieces'", hpz->rank, unit,
                     node);
            return TW_ERR_FORMAT;
        }
        at += taken;
        bytes -= taken;
    }
    return TW_OK;
}
