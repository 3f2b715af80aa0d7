/** Checks that all replicas have one version, and are equal along each rail. */
#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

#include "hpz/state.h"

/* Bytes of a replica to copy to host memory at a time. */
#define PART_BYTES ((size_t)1 << 20)

typedef struct {
    uint64_t version, hash;
} stamp_t;

static size_t n_stamps(const tw_hpz_t *hpz)
{
    return hpz->params.n_tensors;
}

/** Hash a replica that is not in host memory, part by part. */
static tw_status_t hash_parts(const tw_hpz_t *hpz, const char *at, size_t n_bytes, uint64_t seed,
                              uint64_t *hash)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    char *part = tw_buffer_alloc(n_bytes < PART_BYTES ? n_bytes : PART_BYTES);
    XXH64_state_t *state = XXH64_createState();
    tw_status_t status = part && state && XXH64_reset(state, seed) == XXH_OK ? TW_OK : TW_ERR_NO_MEMORY;

    if (status != TW_OK) {
        tw_error("rank %d: out of memory for a check of replicas", hpz->rank);
    }
    for (size_t n; n_bytes > 0 && status == TW_OK; at += n, n_bytes -= n) {
        n = n_bytes < PART_BYTES ? n_bytes : PART_BYTES;
        status = tw_hpz_settle(hpz, memory->copy(memory->ctx, part, at, n));
        if (status == TW_OK) {
            (void)XXH64_update(state, part, n);
        }
    }
    *hash = status == TW_OK ? XXH64_digest(state) : 0;
    (void)XXH64_freeState(state);
    tw_buffer_free(part);
    return status;
}

static tw_status_t stamp(const tw_hpz_t *hpz, size_t tensor, stamp_t *out)
{
    int unit = hpz->params.tensors[tensor].unit;
    tw_hpz_piece_t piece = tw_hpz_secondary_piece(hpz->layout, tensor, hpz->local);
    const void *at = tw_hpz_replica_at(hpz, unit, piece.offset);
    size_t n_bytes = piece.n_elems * tw_hpz_replica_elem_bytes(hpz);
    out->version = hpz->units[unit].version;
    if (hpz->is_elsewhere) {
        return hash_parts(hpz, at, n_bytes, tensor, &out->hash);
    }
    out->hash = XXH64(at, n_bytes, tensor);
    return TW_OK;
}

/** Gather the stamps of all ranks into [world][n_tensors], where this rank's own stamps are already. */
static tw_status_t gather_stamps(tw_hpz_t *hpz, stamp_t *stamps)
{
    size_t n_bytes = (size_t)hpz->world * n_stamps(hpz) * sizeof(*stamps);
    tw_coll_segment_t segment = {.dst = stamps, .n_elems = n_bytes};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(hpz->params.coll, &args);
}

static int first_of_rail(const tw_hpz_t *hpz, int rank)
{
    int local = tw_coll_local_of(hpz->params.coll, rank), first = 0;
    while (tw_coll_local_of(hpz->params.coll, first) != local) {
        first++;
    }
    return first;
}

static const char *name_of(const tw_hpz_t *hpz, size_t tensor, char number[32])
{
    snprintf(number, 32, "tensor %zu", tensor);
    return hpz->params.names ? hpz->params.names[tensor] : number;
}

/** Compare one rank's stamp with that of the first rank of its rail. */
static tw_status_t compare_one(const tw_hpz_t *hpz, const stamp_t *stamps, uint64_t version, int rank,
                               size_t tensor)
{
    char number[32];
    int first = first_of_rail(hpz, rank), unit = hpz->params.tensors[tensor].unit;
    const stamp_t *own = &stamps[(size_t)rank * n_stamps(hpz) + tensor];
    TW_FAIL_IF(own->version != version, TW_ERR_MISMATCH,
               "rank %d: unit %d: the replica of rank %d is at version %" PRIu64 " instead of %" PRIu64,
               hpz->rank, unit, rank, own->version, version);
    TW_FAIL_IF(own->hash != stamps[(size_t)first * n_stamps(hpz) + tensor].hash, TW_ERR_MISMATCH,
               "rank %d: unit %d: the replica of rank %d is not that of rank %d, in %s", hpz->rank, unit,
               rank, first, name_of(hpz, tensor, number));
    return TW_OK;
}

static tw_status_t check_compare(const tw_hpz_t *hpz, const stamp_t *stamps, uint64_t version)
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
    tw_status_t status = stamps ? TW_OK : TW_ERR_NO_MEMORY;
    if (!stamps) {
        tw_error("rank %d: out of memory for a check of replicas", hpz->rank);
    }
    for (size_t t = 0; t < n_stamps(hpz) && status == TW_OK; t++) {
        status = stamp(hpz, t, &stamps[(size_t)hpz->rank * n_stamps(hpz) + t]);
    }
    if (status != TW_OK) {
        tw_coll_abort(hpz->params.coll); /* the other ranks wait for this rank's stamps */
    }
    status = status == TW_OK ? gather_stamps(hpz, stamps) : status;
    status = status == TW_OK ? check_compare(hpz, stamps, version) : status;
    free(stamps);
    return status;
}

int tw_hpz_check_due(const tw_hpz_t *hpz, uint64_t version)
{
    uint64_t steps = (uint64_t)hpz->options.check_steps;
    return steps > 0 && version % steps == 0;
}
