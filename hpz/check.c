/** Whether all replicas are of one version, and equal along each rail. */
#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

#include "hpz/state.h"

typedef struct {
    uint64_t version, hash;
} stamp_t;

static size_t n_stamps(const tw_hpz_t *hpz)
{
    return hpz->params.n_tensors;
}

static void stamp_all(const tw_hpz_t *hpz, stamp_t *stamps)
{
    for (size_t t = 0; t < n_stamps(hpz); t++) {
        const tw_hpz_unit_t *unit = &hpz->units[hpz->params.tensors[t].unit];
        tw_hpz_piece_t piece = tw_hpz_secondary_piece(hpz->layout, t, hpz->local);
        stamps[t] = (stamp_t){.version = unit->version,
                              .hash = XXH64(tw_hpz_replica_at(hpz, hpz->params.tensors[t].unit, piece.offset),
                                            piece.n_elems * tw_hpz_replica_elem_bytes(hpz), t)};
    }
}

/* The stamps of all ranks, [world][n_tensors], the own ones in their place. */
static tw_status_t gather_stamps(tw_hpz_t *hpz, stamp_t *stamps)
{
    size_t n_bytes = (size_t)hpz->world * n_stamps(hpz) * sizeof(*stamps);
    tw_coll_segment_t segment = {.dst = stamps, .n_elems = n_bytes};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(hpz->params.world, &args);
}

/* The first rank with this place on its node. */
static int first_of_rail(const tw_hpz_t *hpz, int rank)
{
    int local = tw_coll_local_of(hpz->params.world, rank), first = 0;

    while (tw_coll_local_of(hpz->params.world, first) != local) {
        first++;
    }
    return first;
}

static const char *name_of(const tw_hpz_t *hpz, size_t tensor, char number[32])
{
    snprintf(number, 32, "tensor %zu", tensor);
    return hpz->params.names ? hpz->params.names[tensor] : number;
}

/* One rank's stamp beside that of the first of its rail. */
static tw_status_t compare_one(const tw_hpz_t *hpz, const stamp_t *stamps, uint64_t version, int rank,
                               size_t tensor)
{
    char number[32];
    int first = first_of_rail(hpz, rank), unit = hpz->params.tensors[tensor].unit;
    const stamp_t *own = &stamps[(size_t)rank * n_stamps(hpz) + tensor];

    if (own->version != version) {
        tw_error("rank %d: unit %d: the replica of rank %d is at version %" PRIu64 " instead of %" PRIu64,
                 hpz->rank, unit, rank, own->version, version);
        return TW_ERR_MISMATCH;
    }
    if (own->hash != stamps[(size_t)first * n_stamps(hpz) + tensor].hash) {
        tw_error("rank %d: unit %d: the replica of rank %d is not that of rank %d, in %s", hpz->rank, unit,
                 rank, first, name_of(hpz, tensor, number));
        return TW_ERR_MISMATCH;
    }
    return TW_OK;
}

static tw_status_t compare(const tw_hpz_t *hpz, const stamp_t *stamps, uint64_t version)
{
    tw_status_t status = TW_OK;

    for (int r = 0; r < hpz->world && status == TW_OK; r++) {
        for (size_t t = 0; t < n_stamps(hpz) && status == TW_OK; t++) {
            status = compare_one(hpz, stamps, version, r, t);
        }
    }
    return status;
}

tw_status_t tw_hpz_check(tw_hpz_t *hpz, uint64_t version)
{
    if (!hpz->params.replicas) {
        return TW_OK;
    }
    stamp_t *stamps = calloc((size_t)hpz->world * n_stamps(hpz) + 1, sizeof(*stamps));
    if (!stamps) {
        tw_error("rank %d: out of memory for a check of replicas", hpz->rank);
        return TW_ERR_NO_MEMORY;
    }
    stamp_all(hpz, stamps + (size_t)hpz->rank * n_stamps(hpz));
    tw_status_t status = gather_stamps(hpz, stamps);
    if (status == TW_OK) {
        status = compare(hpz, stamps, version);
    }
    free(stamps);
    return status;
}

int tw_hpz_check_due(const tw_hpz_t *hpz, uint64_t version)
{
    uint64_t steps = (uint64_t)hpz->options.check_steps;
    return steps > 0 && version % steps == 0;
}
