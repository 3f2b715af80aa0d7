/** Whether all replicas are of one version, and equal along each rail. */
#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

#include "hpz/state.h"

typedef struct {
    uint64_t version, hash;
} stamp_t;

static void stamp_all(const tw_hpz_t *hpz, stamp_t *stamps)
{
    for (int u = 0; u < hpz->n_units; u++) {
        size_t n = tw_hpz_secondary_elems(hpz->layout, u, hpz->local);
        stamps[u] = (stamp_t){.version = hpz->units[u].version,
                              .hash = XXH64(hpz->units[u].replica, n * sizeof(uint16_t), (uint64_t)u)};
    }
}

/* The stamps of all ranks, [world][n_units], the own ones in their place. */
static tw_status_t gather_stamps(tw_hpz_t *hpz, stamp_t *stamps)
{
    size_t n_bytes = (size_t)hpz->world * (size_t)hpz->n_units * sizeof(*stamps);
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

static tw_status_t compare(const tw_hpz_t *hpz, const stamp_t *stamps, uint64_t version)
{
    for (int r = 0; r < hpz->world; r++) {
        const stamp_t *own = stamps + (size_t)r * (size_t)hpz->n_units;
        const stamp_t *first = stamps + (size_t)first_of_rail(hpz, r) * (size_t)hpz->n_units;
        for (int u = 0; u < hpz->n_units; u++) {
            if (own[u].version != version) {
                tw_error("rank %d: unit %d: the replica of rank %d is at version %" PRIu64
                         " instead of %" PRIu64,
                         hpz->rank, u, r, own[u].version, version);
                return TW_ERR_MISMATCH;
            }
            if (own[u].hash != first[u].hash) {
                tw_error("rank %d: unit %d: the replica of rank %d is not that of rank %d", hpz->rank, u, r,
                         first_of_rail(hpz, r));
                return TW_ERR_MISMATCH;
            }
        }
    }
    return TW_OK;
}

tw_status_t tw_hpz_check(tw_hpz_t *hpz, uint64_t version)
{
    if (!hpz->params.replicas) {
        return TW_OK;
    }
    stamp_t *stamps = calloc((size_t)hpz->world * (size_t)hpz->n_units + 1, sizeof(*stamps));
    if (stamps == NULL) {
        tw_error("rank %d: out of memory for a check of replicas", hpz->rank);
        return TW_ERR_NO_MEMORY;
    }
    stamp_all(hpz, stamps + (size_t)hpz->rank * (size_t)hpz->n_units);
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
    return hpz->params.replicas && steps > 0 && version % steps == 0;
}
