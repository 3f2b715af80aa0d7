/* Ranks tell each other what they know: small messages over the transport, which says when a rank has
 * failed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/doctor/doctor.h"

#define PINGS 20
#define SLEEP_SEC 0.05

static tw_status_t no_memory(const doctor_rank_t *rank)
{
    tw_error("rank %d: no memory for what ranks tell each other", rank->rank);
    return TW_ERR_NO_MEMORY;
}

static tw_status_t finish(const doctor_rank_t *rank, tw_transport_request_t *request)
{
    tw_status_t status;
    while ((status = tw_transport_test(rank->transport, request)) == TW_IN_PROGRESS) {
        const tw_status_t moved = tw_transport_progress(rank->transport);
        if (moved == TW_IN_PROGRESS) {
            (void)tw_transport_sleep(rank->transport, SLEEP_SEC);
        }
    }
    return status;
}

static tw_status_t tell(const doctor_rank_t *rank, int peer, const void *data, size_t bytes)
{
    tw_transport_request_t *request;
    TW_TRY(tw_transport_send_post(rank->transport, peer, rank->tag, data, bytes, &request));
    return finish(rank, request);
}

static tw_status_t hear(const doctor_rank_t *rank, int peer, void *data, size_t bytes)
{
    tw_transport_request_t *request;
    TW_TRY(tw_transport_recv_post(rank->transport, peer, rank->tag, data, bytes, &request));
    return finish(rank, request);
}

tw_status_t doctor_share(doctor_rank_t *rank, void *data, size_t bytes)
{
    tw_status_t status = TW_OK;
    rank->tag++;
    if (rank->rank > 0) {
        return hear(rank, 0, data, bytes);
    }
    for (int peer = 1; peer < rank->world && status == TW_OK; peer++) {
        status = tell(rank, peer, data, bytes);
    }
    return status;
}

tw_status_t doctor_collect(doctor_rank_t *rank, const void *own, size_t bytes, void *all)
{
    tw_status_t status = TW_OK;
    rank->tag++;
    if (rank->rank > 0) {
        return tell(rank, 0, own, bytes);
    }
    memcpy(all, own, bytes);
    for (int peer = 1; peer < rank->world && status == TW_OK; peer++) {
        status = hear(rank, peer, (char *)all + (size_t)peer * bytes, bytes);
    }
    return status;
}

tw_status_t doctor_collect_nodes(doctor_rank_t *rank, const doctor_result_t *result, const void *own,
                                 size_t bytes, doctor_take_t take, void *ctx)
{
    rank->tag++;
    if (rank->rank > 0) {
        const int is_first = result->leader[result->facts[rank->rank].node] == rank->rank;
        return is_first ? tell(rank, 0, own, bytes) : TW_OK;
    }
    void *theirs = malloc(bytes + 1);
    tw_status_t status = theirs ? TW_OK : no_memory(rank);
    for (int node = 0; node < result->n_nodes && status == TW_OK; node++) {
        if (result->leader[node] == 0) {
            take(ctx, node, own);
            continue;
        }
        status = hear(rank, result->leader[node], theirs, bytes);
        if (status == TW_OK) {
            take(ctx, node, theirs);
        }
    }
    free(theirs);
    return status;
}

tw_status_t doctor_meet(doctor_rank_t *rank)
{
    char own = 0, *all = malloc((size_t)rank->world);
    tw_status_t status = all ? TW_OK : no_memory(rank);
    if (status == TW_OK) {
        status = doctor_collect(rank, &own, 1, all);
    }
    if (status == TW_OK) {
        status = doctor_share(rank, &own, 1);
    }
    free(all);
    return status;
}

static double wall_sec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The round trip that was shortest tells most: the answer was made between its two ends. */
static tw_status_t ask_clock(const doctor_rank_t *rank, doctor_facts_t *facts)
{
    facts->clock_uncertain_sec = 1e9;
    for (int i = 0; i < PINGS; i++) {
        double theirs;
        const double before = wall_sec();
        TW_TRY(tell(rank, 0, &before, sizeof(before)));
        TW_TRY(hear(rank, 0, &theirs, sizeof(theirs)));
        const double after = wall_sec();
        if ((after - before) / 2 < facts->clock_uncertain_sec) {
            facts->clock_uncertain_sec = (after - before) / 2;
            facts->clock_sec = (before + after) / 2 - theirs;
        }
    }
    return TW_OK;
}

tw_status_t doctor_compare_clocks(doctor_rank_t *rank, doctor_facts_t *facts)
{
    rank->tag++;
    if (rank->rank > 0) {
        return ask_clock(rank, facts);
    }
    for (int peer = 1; peer < rank->world; peer++) {
        for (int i = 0; i < PINGS; i++) {
            double theirs;
            TW_TRY(hear(rank, peer, &theirs, sizeof(theirs)));
            const double now = wall_sec();
            TW_TRY(tell(rank, peer, &now, sizeof(now)));
        }
    }
    return TW_OK;
}
