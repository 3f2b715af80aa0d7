/** Fills the replicas of a node from a whole unit, and gathers a whole unit from them. */
#include <inttypes.h>

#include "hpz/state.h"

const void *tw_hpz_replica(const tw_hpz_t *hpz, int unit)
{
    return hpz->units[unit].replica;
}

const uint8_t *tw_hpz_states(const tw_hpz_t *hpz, int unit)
{
    return hpz->units[unit].states;
}

uint64_t tw_hpz_version(const tw_hpz_t *hpz, int unit)
{
    return hpz->units[unit].version;
}

static tw_type_t type_of(const tw_hpz_t *hpz)
{
    return hpz->params.fp32_replicas ? TW_TYPE_FP32 : TW_TYPE_BF16;
}

size_t tw_hpz_replica_elem_bytes(const tw_hpz_t *hpz)
{
    return tw_type_bytes(type_of(hpz));
}

void *tw_hpz_replica_at(const tw_hpz_t *hpz, int unit, size_t offset)
{
    return (char *)hpz->units[unit].replica + offset * tw_hpz_replica_elem_bytes(hpz);
}

size_t tw_hpz_replica_offset(const tw_hpz_t *hpz, size_t tensor, tw_hpz_piece_t piece)
{
    tw_hpz_piece_t outer = tw_hpz_secondary_piece(hpz->layout, tensor, hpz->local);
    return outer.offset + (piece.first - outer.first);
}

tw_status_t tw_hpz_settle(const tw_hpz_t *hpz, tw_status_t status)
{
    tw_status_t waited = hpz->memory.wait(hpz->memory.ctx);
    return status == TW_OK ? waited : status;
}

/** Copy this rank's part of a whole unit to the replica, and clear the previous changes. */
static tw_status_t take_part(tw_hpz_t *hpz, int unit, const void *full)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first);
    size_t elem_bytes = tw_hpz_replica_elem_bytes(hpz);
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_secondary_piece(hpz->layout, t, hpz->local);
        size_t from = tw_hpz_full_piece(hpz->layout, t).offset + piece.first;
        TW_TRY(memory->copy(memory->ctx, tw_hpz_replica_at(hpz, unit, piece.offset),
                            (const char *)full + from * elem_bytes, piece.n_elems * elem_bytes));
    }
    return own->states
               ? memory->zero(memory->ctx, own->states, tw_hpz_secondary_elems(hpz->layout, unit, hpz->local))
               : TW_OK;
}

tw_status_t tw_hpz_store(tw_hpz_t *hpz, int unit, const void *full, uint64_t version)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    TW_FAIL_IF(!own->replica || own->sync.active || version == 0, TW_ERR_INVALID,
               "rank %d: unit %d: a replica cannot be stored at version %" PRIu64 "%s", hpz->rank, unit,
               version,
               !own->replica      ? ": there are none"
               : own->sync.active ? ": a sync is under way"
                                  : "");
    own->version = 0;
    TW_TRY(tw_hpz_settle(hpz, take_part(hpz, unit, full)));
    own->version = version;
    return TW_OK;
}

tw_status_t tw_hpz_gather_post(tw_hpz_t *hpz, int unit, uint64_t version, void *full,
                               tw_coll_request_t **request)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first);
    if (version == 0 || own->version != version) {
        tw_error("rank %d: unit %d: its replica holds version %" PRIu64 ", asked for is %" PRIu64, hpz->rank,
                 unit, own->version, version);
        tw_coll_abort(hpz->in_node);
        return TW_ERR_STALE;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        tw_hpz_piece_t whole = tw_hpz_full_piece(hpz->layout, first + i);
        tw_hpz_piece_t piece = tw_hpz_secondary_piece(hpz->layout, first + i, hpz->local);
        hpz->segments[i] =
            (tw_coll_segment_t){.src = tw_hpz_replica_at(hpz, unit, piece.offset),
                                .dst = (char *)full + whole.offset * tw_hpz_replica_elem_bytes(hpz),
                                .n_elems = whole.n_elems};
    }
    tw_coll_args_t args = {.op = TW_COLL_ALLGATHER,
                           .type = type_of(hpz),
                           .segments = hpz->segments,
                           .n_segments = n_tensors,
                           .stream = hpz->stream};
    return tw_coll_post(hpz->in_node, &args, request);
}
