/** The exchange of a unit's changes along the rail. Messages whose lengths vary are posted when all lengths are there, in the
 *  order in which syncs began: lengths and messages have a communicator each, so that this order is the same on all ranks
 *  whenever the lengths arrive. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hpz/state.h"

#define ALIGN_BYTES 16

const char *tw_hpz_sync_name(tw_hpz_sync_t kind)
{
    static const char *const names[TW_HPZ_SYNC_COUNT] = {"full", "delta", "exact"};
    return (unsigned)kind < TW_HPZ_SYNC_COUNT ? names[kind] : "?";
}

/* ---- a job's memory ----------------------------------------------------------------------------------------- */

void tw_hpz_job_cleanup(tw_hpz_job_t *job)
{
    tw_buffer_free(job->fresh);
    tw_buffer_free(job->message);
    tw_buffer_free(job->others);
    free(job->bytes);
    free(job->counts);
    *job = (tw_hpz_job_t){0};
}

static tw_status_t job_init(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, const float *master,
                            uint64_t version)
{
    size_t n = tw_hpz_primary_elems(hpz->layout, unit, hpz->node, hpz->local), nodes = (size_t)hpz->n_nodes;
    tw_hpz_job_t job = {.active = 1, .kind = kind, .version = version, .master = master};

    job.fresh = tw_buffer_alloc(n * sizeof(*job.fresh));
    job.message = tw_buffer_alloc(tw_hpz_message_bytes(hpz, unit, kind, hpz->node));
    job.bytes = calloc(nodes, sizeof(*job.bytes));
    job.counts = calloc(nodes * nodes, sizeof(*job.counts));
    if (job.fresh == NULL || job.message == NULL || job.bytes == NULL || job.counts == NULL) {
        tw_error("rank %d: unit %d: out of memory for a sync", hpz->rank, unit);
        tw_hpz_job_cleanup(&job);
        return TW_ERR_NO_MEMORY;
    }
    hpz->units[unit].job = job;
    return TW_OK;
}

/* ---- the exchange ------------------------------------------------------------------------------------------- */

static tw_coll_args_t lengths_args(const tw_hpz_t *hpz, tw_hpz_job_t *job, tw_coll_segment_t *segment)
{
    *segment = (tw_coll_segment_t){.dst = job->bytes, .n_elems = (size_t)hpz->n_nodes * sizeof(*job->bytes)};
    return (tw_coll_args_t){
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = segment, .n_segments = 1};
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* One segment a node, of its message alone: the own one stays where it is. */
static tw_coll_args_t payload_args(const tw_hpz_t *hpz, const tw_hpz_job_t *job, tw_coll_segment_t *segments)
{
    size_t at = 0;

    for (int n = 0; n < hpz->n_nodes; n++) {
        size_t *counts = job->counts + (size_t)n * (size_t)hpz->n_nodes;
        counts[n] = (size_t)job->bytes[n];
        segments[n] = (tw_coll_segment_t){.n_elems = counts[n], .counts = counts};
        if (n == hpz->node) {
            segments[n].dst = job->message;
        } else {
            segments[n].dst = job->others + at;
            at += aligned(counts[n]);
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

    if (status == TW_OK) {
        status = tw_coll_post(rail, args, request);
    }
    if (status == TW_OK) {
        hpz->counters.planned_inter_node_bytes += bytes;
    }
    return status;
}

/* What nobody sends is not waited for nor allocated: a length that no message has. */
static tw_status_t check_lengths(const tw_hpz_t *hpz, int unit)
{
    const tw_hpz_job_t *job = &hpz->units[unit].job;

    for (int n = 0; n < hpz->n_nodes; n++) {
        if (job->bytes[n] > tw_hpz_message_bytes(hpz, unit, job->kind, n)) {
            tw_error("rank %d: unit %d: node %d announces %" PRIu64 " bytes of changes", hpz->rank, unit, n,
                     job->bytes[n]);
            return TW_ERR_FORMAT;
        }
    }
    return TW_OK;
}

static tw_status_t post_payload(tw_hpz_t *hpz, int unit)
{
    tw_hpz_job_t *job = &hpz->units[unit].job;
    tw_status_t status = check_lengths(hpz, unit);
    size_t others = 0;

    for (int n = 0; n < hpz->n_nodes; n++) {
        others += n == hpz->node ? 0 : aligned((size_t)job->bytes[n]);
    }
    if (status == TW_OK && job->others == NULL) {
        job->others = tw_buffer_alloc(others);
        if (job->others == NULL) {
            tw_error("rank %d: unit %d: out of memory for %zu bytes of changes", hpz->rank, unit, others);
            status = TW_ERR_NO_MEMORY;
        }
    }
    if (status == TW_OK) {
        tw_coll_args_t args = payload_args(hpz, job, hpz->segments);
        status = post_counted(hpz, hpz->rail, &args, &job->payload);
    }
    return status;
}

/* The lengths of a job: TW_IN_PROGRESS unless they are there. */
static tw_status_t look_for_lengths(tw_hpz_job_t *job, int wait)
{
    if (job->lengths == NULL) {
        return TW_OK;
    }
    tw_status_t status = wait ? tw_coll_wait(job->lengths) : tw_coll_test(job->lengths);
    if (status != TW_IN_PROGRESS) {
        job->lengths = NULL;
    }
    return status;
}

/* Post the first of the queue; wait: for its lengths. TW_IN_PROGRESS: they are not there. What fails stays: it fails again. */
static tw_status_t advance(tw_hpz_t *hpz, int wait)
{
    int unit = hpz->queue[hpz->queue_first];
    tw_status_t status = look_for_lengths(&hpz->units[unit].job, wait);

    if (status == TW_OK) {
        status = post_payload(hpz, unit);
    }
    if (status == TW_OK) {
        hpz->queue_first = (hpz->queue_first + 1) % hpz->n_units;
        hpz->queue_length--;
    }
    return status;
}

tw_status_t tw_hpz_progress(tw_hpz_t *hpz)
{
    tw_status_t status = TW_OK;

    while (hpz->queue_length > 0 && status == TW_OK) {
        status = advance(hpz, 0);
    }
    return status == TW_IN_PROGRESS ? TW_OK : status;
}

/* ---- begin --------------------------------------------------------------------------------------------------- */

static tw_status_t check_begin(const tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, uint64_t version)
{
    const tw_hpz_unit_t *own = &hpz->units[unit];
    const char *wrong = NULL;

    if (own->replica == NULL) {
        wrong = "there are no replicas";
    } else if ((unsigned)kind >= TW_HPZ_SYNC_COUNT) {
        wrong = "of no kind";
    } else if (own->job.active) {
        wrong = "one is under way";
    } else if (version == 0) {
        wrong = "to version 0";
    } else if (kind == TW_HPZ_DELTA && hpz->quant == NULL) {
        wrong = "no codec was given";
    } else if (kind == TW_HPZ_EXACT && hpz->exact == NULL) {
        wrong = "without memory for exact deltas";
    }
    if (wrong != NULL) {
        tw_error("rank %d: unit %d: %s sync: %s", hpz->rank, unit, tw_hpz_sync_name(kind), wrong);
        return TW_ERR_INVALID;
    }
    if (kind != TW_HPZ_FULL && own->version == 0) {
        tw_error("rank %d: unit %d: %s sync of a replica that holds nothing: a full one first", hpz->rank,
                 unit, tw_hpz_sync_name(kind));
        return TW_ERR_STALE;
    }
    return TW_OK;
}

/* Lengths that all know, or the exchange of them. */
static tw_status_t settle_lengths(tw_hpz_t *hpz, int unit, size_t own_bytes)
{
    tw_hpz_job_t *job = &hpz->units[unit].job;
    tw_coll_segment_t segment;

    for (int n = 0; n < hpz->n_nodes; n++) {
        job->bytes[n] = n == hpz->node ? own_bytes : tw_hpz_message_bytes(hpz, unit, job->kind, n);
    }
    if (!tw_hpz_message_varies(hpz, job->kind)) {
        return TW_OK;
    }
    tw_coll_args_t args = lengths_args(hpz, job, &segment);
    return post_counted(hpz, hpz->rail_lengths, &args, &job->lengths);
}

static void count_sync(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, size_t bytes)
{
    hpz->counters.syncs[kind]++;
    if (kind != TW_HPZ_FULL) {
        hpz->counters.delta_bytes += bytes + (tw_hpz_message_varies(hpz, kind) ? sizeof(uint64_t) : 0);
        hpz->counters.delta_elems += tw_hpz_primary_elems(hpz->layout, unit, hpz->node, hpz->local);
    }
}

static int has_room(const tw_hpz_t *hpz, int unit)
{
    size_t most = hpz->params.sync_elems;
    size_t all = hpz->under_way + tw_hpz_secondary_elems(hpz->layout, unit, hpz->local);
    return most == 0 || hpz->under_way == 0 || all <= most;
}

tw_status_t tw_hpz_sync_begin(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, const float *master,
                              uint64_t version)
{
    size_t bytes;
    tw_status_t status = check_begin(hpz, unit, kind, version);

    if (status == TW_OK && !has_room(hpz, unit)) {
        return TW_IN_PROGRESS;
    }
    if (status == TW_OK) {
        status = job_init(hpz, unit, kind, master, version);
    }
    if (status != TW_OK) {
        return status;
    }
    hpz->units[unit].version = 0;
    status = tw_hpz_message_encode(hpz, unit, &bytes);
    if (status == TW_OK) {
        status = settle_lengths(hpz, unit, bytes);
    }
    if (status != TW_OK) {
        tw_hpz_job_cleanup(&hpz->units[unit].job);
        return status;
    }
    count_sync(hpz, unit, kind, bytes);
    hpz->under_way += tw_hpz_secondary_elems(hpz->layout, unit, hpz->local);
    hpz->queue[(hpz->queue_first + hpz->queue_length) % hpz->n_units] = unit;
    hpz->queue_length++;
    return tw_hpz_progress(hpz);
}

/* ---- finish -------------------------------------------------------------------------------------------------- */

/* In node order, which is the order of the pieces too. */
static tw_status_t apply_all(tw_hpz_t *hpz, int unit)
{
    const tw_hpz_job_t *job = &hpz->units[unit].job;
    const uint8_t *at = job->others;
    tw_status_t status = TW_OK;

    for (int n = 0; n < hpz->n_nodes && status == TW_OK; n++) {
        const uint8_t *message = n == hpz->node ? job->message : at;
        status = tw_hpz_message_apply(hpz, unit, n, message, (size_t)job->bytes[n]);
        at += n == hpz->node ? 0 : aligned((size_t)job->bytes[n]);
        if (status == TW_ERR_FORMAT || status == TW_ERR_TRUNCATED || status == TW_ERR_MISMATCH) {
            tw_error("rank %d: unit %d: the changes of node %d do not fit the replica: it needs a full sync",
                     hpz->rank, unit, n);
            status = TW_ERR_FORMAT;
        }
    }
    return status;
}

/* The messages of all nodes are there; wait: until they are. */
static tw_status_t exchange(tw_hpz_t *hpz, int unit, int wait)
{
    tw_hpz_job_t *job = &hpz->units[unit].job;
    tw_status_t status = job->failed;

    while (job->payload == NULL && status == TW_OK) {
        status = advance(hpz, wait);
    }
    if (status == TW_OK) {
        status = wait ? tw_coll_wait(job->payload) : tw_coll_test(job->payload);
        job->payload = status == TW_IN_PROGRESS ? job->payload : NULL;
    }
    if (status == TW_OK) {
        status = tw_hpz_progress(hpz);
    }
    job->failed = status == TW_IN_PROGRESS ? TW_OK : status;
    return status;
}

static tw_status_t apply_and_stamp(tw_hpz_t *hpz, int unit)
{
    tw_hpz_unit_t *own = &hpz->units[unit];
    size_t n_elems = tw_hpz_secondary_elems(hpz->layout, unit, hpz->local);

    if (own->job.kind == TW_HPZ_FULL && own->states != NULL) {
        memset(own->states, 0, n_elems);
    }
    tw_status_t status = apply_all(hpz, unit);
    if (status == TW_OK) {
        status = tw_hpz_lag_measure(hpz, unit);
    }
    if (status == TW_OK) {
        own->version = own->job.version;
    }
    tw_hpz_job_cleanup(&own->job);
    hpz->under_way -= n_elems;
    return status;
}

static tw_status_t finish(tw_hpz_t *hpz, int unit, int wait)
{
    if (!hpz->units[unit].job.active) {
        tw_error("rank %d: unit %d: no sync is under way", hpz->rank, unit);
        return TW_ERR_INVALID;
    }
    tw_status_t status = exchange(hpz, unit, wait);
    /* after an error the communicator has ended; what it still writes to is freed after it */
    return status == TW_OK ? apply_and_stamp(hpz, unit) : status;
}

tw_status_t tw_hpz_sync_finish(tw_hpz_t *hpz, int unit)
{
    return finish(hpz, unit, 1);
}

tw_status_t tw_hpz_sync_test(tw_hpz_t *hpz, int unit)
{
    return finish(hpz, unit, 0);
}

/* ---- planning ------------------------------------------------------------------------------------------------ */

static uint64_t expected_bytes(const tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, double bits, int node)
{
    if (kind != TW_HPZ_EXACT) {
        return tw_hpz_message_bytes(hpz, unit, kind, node);
    }
    return (uint64_t)((double)tw_hpz_primary_elems(hpz->layout, unit, node, hpz->local) * bits / 8);
}

uint64_t tw_hpz_planned_sync_bytes(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, double bits)
{
    tw_coll_segment_t segment;
    tw_hpz_job_t job = {.kind = kind};
    uint64_t payload = 0, lengths = 0;

    job.bytes = calloc((size_t)hpz->n_nodes, sizeof(*job.bytes));
    job.counts = calloc((size_t)hpz->n_nodes * (size_t)hpz->n_nodes, sizeof(*job.counts));
    if (job.bytes != NULL && job.counts != NULL) {
        for (int n = 0; n < hpz->n_nodes; n++) {
            job.bytes[n] = expected_bytes(hpz, unit, kind, bits, n);
        }
        job.message = job.others = (uint8_t *)job.bytes; /* nobody writes there */
        tw_coll_args_t args = payload_args(hpz, &job, hpz->segments);
        job.message = job.others = NULL;
        (void)tw_coll_planned_inter_node_bytes(hpz->rail, &args, &payload);
        args = lengths_args(hpz, &job, &segment);
        if (tw_hpz_message_varies(hpz, kind)) {
            (void)tw_coll_planned_inter_node_bytes(hpz->rail_lengths, &args, &lengths);
        }
    }
    tw_hpz_job_cleanup(&job);
    return payload + lengths;
}
