/** Gathers of kept units. Any thread may post a gather and then encodes it. The keeper's thread executes
 *  gathers in the order of posting. Records, messages and traffic inside the node have separate
 *  communicators. So the records of a gather may be posted before the messages of earlier gathers, but all
 *  ranks use each communicator in the same order. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "hpz/keep_state.h"

#define ALIGN_BYTES ((size_t)64)

/* ---- one gather's memory ------------------------------------------------------------------------------- */

void tw_hpz_gather_free(tw_hpz_gather_t *gather)
{
    if (gather) {
        tw_hpz_bytes_cleanup(&gather->message);
        tw_hpz_bytes_cleanup(&gather->others);
        free(gather->records);
        free(gather->counts);
        free(gather);
    }
}

static tw_hpz_gather_t *gather_alloc(const tw_hpz_keeper_t *keeper)
{
    size_t nodes = (size_t)keeper->n_nodes;
    tw_hpz_gather_t *gather = calloc(1, sizeof(*gather));
    if (gather) {
        gather->records = calloc(nodes, sizeof(*gather->records));
        gather->counts = calloc(nodes * nodes, sizeof(*gather->counts));
    }
    if (!gather || !gather->records || !gather->counts) {
        tw_error("rank %d: out of memory for a gather", keeper->rank);
        tw_hpz_gather_free(gather);
        return NULL;
    }
    return gather;
}

static tw_hpz_gather_t *take_gather(tw_hpz_keeper_t *keeper)
{
    pthread_mutex_lock(&keeper->lock);
    /* a failed gather's memory is not used again: its requests may still write to it */
    tw_hpz_gather_t *gather = keeper->failed == TW_OK ? STAILQ_FIRST(&keeper->spare) : NULL;
    if (gather) {
        STAILQ_REMOVE_HEAD(&keeper->spare, link);
    }
    pthread_mutex_unlock(&keeper->lock);
    return gather ? gather : gather_alloc(keeper);
}

/* ---- posting ------------------------------------------------------------------------------------------- */

static tw_status_t post_counted(tw_coll_t *coll, const tw_coll_args_t *args, tw_hpz_gather_t *gather,
                                tw_coll_request_t **request)
{
    uint64_t bytes;
    TW_TRY(tw_coll_planned_inter_node_bytes(coll, args, &bytes));
    gather->done.inter_node_bytes += bytes;
    return tw_coll_post(coll, args, request);
}

static tw_status_t post_record(tw_hpz_keeper_t *keeper, tw_hpz_gather_t *gather)
{
    tw_coll_segment_t segment = {.dst = gather->records,
                                 .n_elems = (size_t)keeper->n_nodes * sizeof(*gather->records)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return post_counted(keeper->rail_records, &args, gather, &gather->meeting);
}

/** Return 1 if this gather, which makes version + 1, checks the replicas. If nothing has changed, the version
 *  stays, and the next gather does not check again. */
static int is_check_due(const tw_hpz_kept_t *kept)
{
    uint64_t steps = kept->keeper->check_steps, next = kept->version + 1;
    return steps > 0 && next % steps == 0 && kept->seen != next;
}

static uint64_t check_of(const uint8_t *run, const tw_hpz_kept_t *kept)
{
    return XXH64(run, kept->form.run_bytes, 0) | 1; /* 0 would mean: no check */
}

/** Prepare the first gather of a unit, which sends the run as it is. */
static void gather_begin(tw_hpz_kept_t *kept, uint8_t *run, const uint8_t *fresh, size_t *bytes,
                         size_t *changed)
{
    *bytes = *changed = kept->form.run_bytes;
    memcpy(run, fresh, *bytes);
    if (kept->round) {
        tw_hpz_round_begin(kept->round, fresh);
    }
}

/** Encode what has changed since the last gather, rounded parts first. */
static tw_status_t change(tw_hpz_gather_t *gather, uint8_t *run, uint8_t *fresh, int lossless, size_t *bytes,
                          size_t *changed)
{
    tw_hpz_kept_t *kept = gather->kept;
    tw_hpz_keeper_t *keeper = kept->keeper;
    size_t at = 0, rounded = 0;
    TW_TRY(tw_hpz_bytes_need(&gather->message, tw_hpz_kept_bound_bytes(kept)));
    if (kept->round) {
        TW_TRY(tw_hpz_round_encode(kept->round, run, fresh, lossless, gather->message.data, &at, &rounded));
    }
    TW_TRY(tw_hpz_change_encode(keeper->encoder, &kept->form, run, tw_hpz_kept_states(kept, keeper->node),
                                fresh, gather->message.data + at, bytes, changed));
    *bytes += *bytes > 0 || rounded > 0 ? at : 0;
    *changed += rounded;
    gather->done.rounded_bytes = rounded;
    return TW_OK;
}

/** Encode this rank's message, apply it to this rank's own replica, and fill in the record. */
static tw_status_t gather_encode(tw_hpz_gather_t *gather, int lossless)
{
    tw_hpz_kept_t *kept = gather->kept;
    tw_hpz_keeper_t *keeper = kept->keeper;
    uint8_t *fresh = gather->whole + (size_t)keeper->rank * kept->form.run_bytes;
    uint8_t *run = tw_hpz_kept_run(kept, keeper->node);
    size_t bytes, changed;
    if (kept->version == 0) {
        gather_begin(kept, run, fresh, &bytes, &changed);
    } else {
        TW_TRY(change(gather, run, fresh, lossless, &bytes, &changed));
    }
    gather->done.changed_bytes = changed;
    gather->records[keeper->node] = (tw_hpz_record_t){.unit = kept->id,
                                                      .gather = ++kept->gathers,
                                                      .version = kept->version,
                                                      .bytes = bytes,
                                                      .check = is_check_due(kept) ? check_of(run, kept) : 0};
    kept->seen = kept->version + 1;
    return TW_OK;
}

/** Wait until the unit's last gather is done. Returns the error that has ended the keeper, or TW_OK. */
static tw_status_t await_turn(tw_hpz_kept_t *kept)
{
    tw_hpz_keeper_t *keeper = kept->keeper;
    pthread_mutex_lock(&keeper->lock);
    while (kept->busy) {
        pthread_cond_wait(&keeper->changed, &keeper->lock);
    }
    tw_status_t status = keeper->failed;
    pthread_mutex_unlock(&keeper->lock);
    return status;
}

static void enqueue(tw_hpz_gather_t *gather)
{
    tw_hpz_keeper_t *keeper = gather->kept->keeper;
    pthread_mutex_lock(&keeper->lock);
    gather->kept->busy = 1;
    STAILQ_INSERT_TAIL(&keeper->queue, gather, link);
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
}

/** End the keeper with an error, on all ranks. */
static void gather_give_up(tw_hpz_keeper_t *keeper, tw_status_t status)
{
    pthread_mutex_lock(&keeper->lock);
    keeper->failed = keeper->failed != TW_OK ? keeper->failed : status;
    pthread_mutex_unlock(&keeper->lock);
    tw_coll_abort(keeper->all_ranks);
}

static tw_status_t gather_failed(tw_hpz_keeper_t *keeper)
{
    pthread_mutex_lock(&keeper->lock);
    tw_status_t status = keeper->failed;
    pthread_mutex_unlock(&keeper->lock);
    return status;
}

static tw_status_t gather_post(tw_hpz_kept_t *kept, void *whole, int lossless)
{
    tw_hpz_keeper_t *keeper = kept->keeper;
    double begin = tw_time_sec();
    TW_TRY(await_turn(kept));
    tw_hpz_gather_t *gather = take_gather(keeper);
    if (!gather) {
        return TW_ERR_NO_MEMORY;
    }
    gather->kept = kept;
    gather->whole = whole;
    gather->begin_sec = begin;
    gather->done = (tw_hpz_gathered_t){0};
    tw_status_t status = gather_encode(gather, lossless);
    status = status == TW_OK ? post_record(keeper, gather) : status;
    if (status != TW_OK) {
        tw_hpz_gather_free(gather);
        return status;
    }
    enqueue(gather);
    return TW_OK;
}

tw_status_t tw_hpz_kept_gather_post(tw_hpz_kept_t *kept, void *whole, int lossless)
{
    tw_hpz_keeper_t *keeper = kept->keeper;
    pthread_mutex_lock(&keeper->posting);
    tw_status_t status = gather_post(kept, whole, lossless);
    if (status != TW_OK) {
        gather_give_up(keeper, status); /* the other ranks wait for this rank's record */
    }
    pthread_mutex_unlock(&keeper->posting);
    return status;
}

static tw_status_t gather_look(tw_hpz_kept_t *kept, int wait, tw_hpz_gathered_t *out)
{
    tw_hpz_keeper_t *keeper = kept->keeper;
    pthread_mutex_lock(&keeper->lock);
    while (kept->busy && wait) {
        pthread_cond_wait(&keeper->changed, &keeper->lock);
    }
    tw_status_t status = kept->busy ? TW_IN_PROGRESS : kept->status;
    if (out) {
        *out = kept->last;
    }
    pthread_mutex_unlock(&keeper->lock);
    return status;
}

tw_status_t tw_hpz_kept_test(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out)
{
    return gather_look(kept, 0, out);
}

tw_status_t tw_hpz_kept_wait(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out)
{
    return gather_look(kept, 1, out);
}

/* ---- messages along the rail --------------------------------------------------------------------------- */

static tw_status_t check_record(const tw_hpz_kept_t *kept, const tw_hpz_record_t *own,
                                const tw_hpz_record_t *other, int rank)
{
    const tw_hpz_keeper_t *keeper = kept->keeper;
    TW_FAIL_IF(other->unit != own->unit, TW_ERR_MISMATCH,
               "rank %d: unit %s: rank %d gathers another unit: it has skipped a gather, or its order is "
               "another",
               keeper->rank, kept->name, rank);
    TW_FAIL_IF(other->gather != own->gather || other->version != own->version, TW_ERR_MISMATCH,
               "rank %d: unit %s: gather %" PRIu64 " of a replica at version %" PRIu64
               ", but rank %d is at gather %" PRIu64 " and version %" PRIu64,
               keeper->rank, kept->name, own->gather, own->version, rank, other->gather, other->version);
    size_t most = own->version > 0 ? tw_hpz_kept_bound_bytes(kept) : kept->form.run_bytes;
    TW_FAIL_IF(other->bytes > most || (own->version == 0 && other->bytes < most), TW_ERR_FORMAT,
               "rank %d: unit %s: rank %d announces %" PRIu64 " bytes of changes", keeper->rank, kept->name,
               rank, other->bytes);
    return TW_OK;
}

static tw_status_t check_records(const tw_hpz_gather_t *gather)
{
    const tw_hpz_keeper_t *keeper = gather->kept->keeper;
    for (int n = 0; n < keeper->n_nodes; n++) {
        TW_TRY(check_record(gather->kept, &gather->records[keeper->node], &gather->records[n],
                            keeper->rail_ranks[n]));
    }
    return TW_OK;
}

static size_t gather_aligned(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/** Return where to receive a node's message: in a first gather, directly in the replica. */
static uint8_t *gather_place_of(const tw_hpz_gather_t *gather, int node, size_t at)
{
    const tw_hpz_keeper_t *keeper = gather->kept->keeper;
    if (gather->records[node].version == 0) {
        return tw_hpz_kept_run(gather->kept, node);
    }
    return node == keeper->node ? gather->message.data : gather->others.data + at;
}

static tw_status_t exchange_messages(tw_hpz_gather_t *gather)
{
    tw_hpz_keeper_t *keeper = gather->kept->keeper;
    size_t nodes = (size_t)keeper->n_nodes, at = 0;
    tw_coll_request_t *request;
    for (size_t n = 0; n < nodes; n++) {
        size_t *counts = gather->counts + n * nodes;
        counts[n] = (size_t)gather->records[n].bytes;
        keeper->segments[n] = (tw_coll_segment_t){
            .dst = gather_place_of(gather, (int)n, at), .n_elems = counts[n], .counts = counts};
        at += (int)n == keeper->node ? 0 : gather_aligned(counts[n]);
    }
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = keeper->segments, .n_segments = nodes};
    TW_TRY(post_counted(keeper->rail, &args, gather, &request));
    return tw_coll_wait(request);
}

/** Apply a node's message to this rank's replica of that node's run. */
static tw_status_t follow_one(tw_hpz_kept_t *kept, int node, const uint8_t *message, size_t bytes)
{
    uint8_t *run = tw_hpz_kept_run(kept, node);
    size_t used = 0;
    if (kept->round) {
        TW_TRY(tw_hpz_round_decode(kept->round, run, message, bytes, &used));
    }
    return used == bytes ? TW_OK
                         : tw_hpz_change_decode(kept->keeper->decoder, &kept->form, run,
                                                tw_hpz_kept_states(kept, node), message + used, bytes - used);
}

static tw_status_t gather_follow(const tw_hpz_gather_t *gather)
{
    tw_hpz_kept_t *kept = gather->kept;
    tw_hpz_keeper_t *keeper = kept->keeper;
    const uint8_t *at = gather->others.data;
    for (int n = 0; n < keeper->n_nodes; n++) {
        size_t bytes = (size_t)gather->records[n].bytes;
        if (n == keeper->node || bytes == 0) {
            continue;
        }
        tw_status_t status = follow_one(kept, n, at, bytes);
        TW_FAIL_IF(status != TW_OK, status, "rank %d: unit %s: the changes of rank %d do not fit the replica",
                   keeper->rank, kept->name, keeper->rail_ranks[n]);
        at += gather_aligned(bytes);
    }
    return TW_OK;
}

static tw_status_t check_replicas(const tw_hpz_gather_t *gather)
{
    const tw_hpz_kept_t *kept = gather->kept;
    const tw_hpz_keeper_t *keeper = kept->keeper;
    for (int n = 0; n < keeper->n_nodes; n++) {
        uint64_t check = gather->records[n].check;
        TW_FAIL_IF(n != keeper->node && check != 0 && check_of(tw_hpz_kept_run(kept, n), kept) != check,
                   TW_ERR_MISMATCH,
                   "rank %d: unit %s: the replica is not what rank %d has, at gather %" PRIu64, keeper->rank,
                   kept->name, keeper->rail_ranks[n], gather->records[n].gather);
    }
    return TW_OK;
}

/** Return the bytes of other nodes' messages. *any is 1 if any message, also this rank's, is not empty. */
static size_t others_bytes(const tw_hpz_gather_t *gather, int *any)
{
    const tw_hpz_keeper_t *keeper = gather->kept->keeper;
    size_t bytes = 0;
    *any = 0;
    for (int n = 0; n < keeper->n_nodes; n++) {
        *any |= gather->records[n].bytes > 0;
        bytes += n == keeper->node ? 0 : gather_aligned((size_t)gather->records[n].bytes);
    }
    return bytes;
}

/** Receive the changes of the rail, and apply them to the replicas. */
static tw_status_t gather_update(tw_hpz_gather_t *gather)
{
    tw_hpz_kept_t *kept = gather->kept;
    int any;
    TW_TRY(tw_coll_wait(gather->meeting));
    TW_TRY(check_records(gather));
    size_t bytes = others_bytes(gather, &any);
    if (any && kept->version > 0) {
        TW_TRY(tw_hpz_bytes_need(&gather->others, bytes));
    }
    if (any) {
        TW_TRY(exchange_messages(gather));
    }
    if (any && kept->version > 0) {
        TW_TRY(gather_follow(gather));
    }
    TW_TRY(check_replicas(gather));
    kept->version += (uint64_t)any;
    return TW_OK;
}

/* ---- the gather in the node ---------------------------------------------------------------------------- */

/** Set the counts of the exchange in the node: all bytes of a run are at the local rank on its rail. */
static void count_runs(tw_hpz_keeper_t *keeper, size_t run_bytes)
{
    size_t ranks = (size_t)tw_coll_size(keeper->in_node);
    if (keeper->in_node_run_bytes != run_bytes) {
        for (int r = 0; r < keeper->world; r++) {
            size_t *counts = keeper->in_node_counts + (size_t)r * ranks;
            counts[tw_coll_local_of(keeper->all_ranks, r)] = run_bytes;
        }
        keeper->in_node_run_bytes = run_bytes;
    }
}

/** Run the exchange in the node, which gathers the whole unit from the node's replicas. */
static tw_status_t gather_in_node(tw_hpz_gather_t *gather)
{
    tw_hpz_kept_t *kept = gather->kept;
    tw_hpz_keeper_t *keeper = kept->keeper;
    size_t run_bytes = kept->form.run_bytes, ranks = (size_t)tw_coll_size(keeper->in_node);
    for (int n = 0; n < keeper->n_nodes; n++) {
        uint8_t *place = gather->whole + (size_t)keeper->rail_ranks[n] * run_bytes;
        if (n != keeper->node) {
            memcpy(place, tw_hpz_kept_run(kept, n), run_bytes);
        }
    }
    if (ranks == 1) {
        return TW_OK;
    }
    count_runs(keeper, run_bytes);
    for (int r = 0; r < keeper->world; r++) {
        keeper->segments[r] = (tw_coll_segment_t){.dst = gather->whole + (size_t)r * run_bytes,
                                                  .n_elems = run_bytes,
                                                  .counts = keeper->in_node_counts + (size_t)r * ranks};
    }
    tw_coll_args_t args = {.op = TW_COLL_ALLGATHER,
                           .type = TW_TYPE_BYTE,
                           .segments = keeper->segments,
                           .n_segments = (size_t)keeper->world};
    return tw_coll_run(keeper->in_node, &args);
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void gather_settle(tw_hpz_gather_t *gather, tw_status_t status)
{
    tw_hpz_kept_t *kept = gather->kept;
    tw_hpz_keeper_t *keeper = kept->keeper;
    gather->done.elapsed_sec = tw_time_sec() - gather->begin_sec;
    pthread_mutex_lock(&keeper->lock);
    kept->status = status;
    kept->last = gather->done;
    kept->busy = 0;
    STAILQ_INSERT_HEAD(&keeper->spare, gather, link);
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
}

/** Continue a gather. If it fails, its memory is kept until the communicators have ended, because a request
 *  may still write to it. */
static void move_on(tw_hpz_keeper_t *keeper, tw_hpz_gather_t *gather)
{
    tw_status_t status = gather_failed(keeper);
    if (status == TW_OK) {
        status = gather_update(gather);
        status = status == TW_OK ? gather_in_node(gather) : status;
    }
    if (status != TW_OK) {
        gather_give_up(keeper, status);
    }
    gather_settle(gather, status);
}

/** Wait for the next posted gather. Returns NULL when the keeper ends. */
static tw_hpz_gather_t *next(tw_hpz_keeper_t *keeper)
{
    pthread_mutex_lock(&keeper->lock);
    while (STAILQ_EMPTY(&keeper->queue) && !keeper->is_stopping) {
        pthread_cond_wait(&keeper->changed, &keeper->lock);
    }
    tw_hpz_gather_t *gather = STAILQ_FIRST(&keeper->queue);
    if (gather) {
        STAILQ_REMOVE_HEAD(&keeper->queue, link);
    }
    pthread_mutex_unlock(&keeper->lock);
    return gather;
}

void *tw_hpz_keeper_run(void *arg)
{
    tw_hpz_keeper_t *keeper = arg;
    tw_hpz_gather_t *gather;
    while ((gather = next(keeper))) {
        move_on(keeper, gather);
    }
    return NULL;
}
