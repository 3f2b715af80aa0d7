/** The replicas of a node: filled from a whole unit, gathered into one. */
#include <inttypes.h>
#include <string.h>

#include "hpz/state.h"

const uint16_t *tw_hpz_replica(const tw_hpz_t *hpz, int unit)
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

size_t tw_hpz_replica_offset(const tw_hpz_t *hpz, size_t tensor, tw_hpz_piece_t piece)
{
    tw_hpz_piece_t outer = tw_hpz_secondary_piece(hpz->layout, tensor, hpz->local);
    return outer.offset + (piece.first - outer.first);
}

tw_status_t tw_hpz_store(tw_hpz_t *hpz, int unit, const uint16_t *full, uint64_t version)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first);

    if (!own->replica || own->sync.active || version == 0) {
        tw_error("rank %d: unit %d: a replica cannot be stored at version %" PRIu64 "%s", hpz->rank, unit,
                 version,
                 !own->replica      ? ": there are none"
                 : own->sync.active ? ": a sync is under way"
                                    : "");
        return TW_ERR_INVALID;
    }
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_hpz_piece_t piece = tw_hpz_secondary_piece(hpz->layout, t, hpz->local);
        memcpy(own->replica + piece.offset, full + tw_hpz_full_piece(hpz->layout, t).offset + piece.first,
               piece.n_elems * sizeof(*full));
    }
    if (own->states) {
        memset(own->states, 0, tw_hpz_secondary_elems(hpz->layout, unit, hpz->local));
    }
    own->version = version;
    return TW_OK;
}

tw_status_t tw_hpz_gather_post(tw_hpz_t *hpz, int unit, uint64_t version, uint16_t *full,
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
        hpz->segments[i] = (tw_coll_segment_t){
            .src = own->replica + piece.offset, .dst = full + whole.offset, .n_elems = whole.n_elems};
    }
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BF16, .segments = hpz->segments, .n_segments = n_tensors};
    return tw_coll_post(hpz->in_node, &args, request);
}
