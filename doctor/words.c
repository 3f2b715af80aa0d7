/* Messages between ranks: small ones, over the transport, which notices if a rank fails. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "doctor/state.h"

#define PINGS 20
#define SLEEP_SEC 0.05

static tw_status_t doctor_no_memory(const tw_doctor_rank_t *rank)
{
    return tw_fail(TW_ERR_NO_MEMORY, "rank %d: no memory for what ranks tell each other", rank->rank);
}

static tw_status_t doctor_finish(const tw_doctor_rank_t *rank, tw_transport_request_t *request, size_t *bytes)
{
    tw_status_t status;
    while ((status = tw_transport_test_bytes(rank->transport, request, bytes)) == TW_IN_PROGRESS) {
        const tw_status_t moved = tw_transport_progress(rank->transport);
        if (moved == TW_IN_PROGRESS) {
            (void)tw_transport_sleep(rank->transport, SLEEP_SEC);
        }
    }
    return status;
}

static tw_status_t doctor_tell(const tw_doctor_rank_t *rank, int peer, const void *data, size_t bytes)
{
    tw_transport_request_t *request;
    size_t sent;
    TW_TRY(tw_transport_send_post(rank->transport, peer, rank->tag, data, bytes, &request));
    return doctor_finish(rank, request, &sent);
}

static tw_status_t doctor_hear(const tw_doctor_rank_t *rank, int peer, void *data, size_t bytes)
{
    tw_transport_request_t *request;
    size_t heard;
    TW_TRY(tw_transport_recv_post(rank->transport, peer, rank->tag, data, bytes, &request));
    return doctor_finish(rank, request, &heard);
}

/** The parent of a rank in the tree of ranks. The children of rank r are r + 1, r + 2, r + 4 and so on, below
 *  r plus its lowest set bit. So of a thousand ranks none has more than ten children. */
static int parent_of(int rank)
{
    return rank & (rank - 1);
}

/** Returns a power of two that is larger than the distances to all children of this rank. */
static int end_of_children(const tw_doctor_rank_t *rank)
{
    const int lowest = rank->rank & -rank->rank;
    int end = 1;
    while (end < rank->world && (lowest == 0 || end < lowest)) {
        end *= 2;
    }
    return end;
}

/** Send to all children, first to the one with the most ranks below it. */
static tw_status_t tell_children(const tw_doctor_rank_t *rank, const void *data, size_t bytes)
{
    for (int step = end_of_children(rank) / 2; step > 0; step /= 2) {
        if (rank->rank + step < rank->world) {
            TW_TRY(doctor_tell(rank, rank->rank + step, data, bytes));
        }
    }
    return TW_OK;
}

tw_status_t tw_doctor_share(tw_doctor_rank_t *rank, void *data, size_t bytes)
{
    rank->tag++;
    if (rank->rank > 0) {
        TW_TRY(doctor_hear(rank, parent_of(rank->rank), data, bytes));
    }
    return tell_children(rank, data, bytes);
}

/** Wait for a message from each child, send one to the parent, and wait until rank 0 says that all came. */
tw_status_t tw_doctor_meet(tw_doctor_rank_t *rank)
{
    char come = 0;
    rank->tag++;
    for (int step = 1; step < end_of_children(rank); step *= 2) {
        if (rank->rank + step < rank->world) {
            TW_TRY(doctor_hear(rank, rank->rank + step, &come, 1));
        }
    }
    if (rank->rank > 0) {
        TW_TRY(doctor_tell(rank, parent_of(rank->rank), "", 1));
    }
    return tw_doctor_share(rank, &come, 1);
}

tw_status_t tw_doctor_collect(tw_doctor_rank_t *rank, const void *own, size_t bytes, void *all)
{
    tw_status_t status = TW_OK;
    rank->tag++;
    if (rank->rank > 0) {
        return doctor_tell(rank, 0, own, bytes);
    }
    memcpy(all, own, bytes);
    for (int peer = 1; peer < rank->world && status == TW_OK; peer++) {
        status = doctor_hear(rank, peer, (char *)all + (size_t)peer * bytes, bytes);
    }
    return status;
}

static tw_status_t hear_node(const tw_doctor_rank_t *rank, int peer, void *data, size_t room, size_t *bytes)
{
    const tw_transport_message_t message = {
        .peer = peer, .tag = rank->tag, .buffer = data, .bytes = room, .may_be_shorter = 1};
    tw_transport_request_t *request;
    TW_TRY(tw_transport_message_recv(rank->transport, &message, &request));
    return doctor_finish(rank, request, bytes);
}

/** On rank 0: receive the words of each node's first rank, and pass them to words->take. */
static tw_status_t hear_nodes(const tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                              const tw_doctor_words_t *words)
{
    void *theirs = malloc(words->most_bytes + 1);
    tw_status_t status = theirs ? TW_OK : doctor_no_memory(rank);
    for (int node = 0; node < result->n_nodes && status == TW_OK; node++) {
        size_t bytes = 0;
        if (result->leader[node] == 0) {
            continue;
        }
        status = hear_node(rank, result->leader[node], theirs, words->most_bytes, &bytes);
        status = status == TW_OK ? words->take(words->ctx, node, theirs, bytes) : status;
    }
    free(theirs);
    return status;
}

tw_status_t tw_doctor_collect_nodes(tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                                    const tw_doctor_words_t *words)
{
    const int node = tw_transport_node_of(rank->transport, rank->rank);
    rank->tag++;
    if (rank->rank == 0) {
        TW_TRY(words->take(words->ctx, node, words->own, words->bytes));
        return hear_nodes(rank, result, words);
    }
    return result->leader[node] == rank->rank ? doctor_tell(rank, 0, words->own, words->bytes) : TW_OK;
}

static double wall_sec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/** Ask rank 0 for its clock several times. The answer with the shortest round trip has the smallest error. */
static tw_status_t ask_clock(const tw_doctor_rank_t *rank, tw_doctor_facts_t *facts)
{
    facts->clock_uncertain_sec = 1e9;
    for (int i = 0; i < PINGS; i++) {
        double theirs;
        const double before = wall_sec();
        TW_TRY(doctor_tell(rank, 0, &before, sizeof(before)));
        TW_TRY(doctor_hear(rank, 0, &theirs, sizeof(theirs)));
        const double after = wall_sec();
        if ((after - before) / 2 < facts->clock_uncertain_sec) {
            facts->clock_uncertain_sec = (after - before) / 2;
            facts->clock_sec = (before + after) / 2 - theirs;
        }
    }
    return TW_OK;
}

tw_status_t tw_doctor_compare_clocks(tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                                     tw_doctor_facts_t *facts)
{
    rank->tag++;
    if (rank->rank > 0) {
        const int leader = result->leader[tw_transport_node_of(rank->transport, rank->rank)];
        return leader == rank->rank ? ask_clock(rank, facts) : TW_OK;
    }
    for (int node = 0; node < result->n_nodes; node++) {
        const int peer = result->leader[node];
        for (int i = 0; i < PINGS && peer > 0; i++) {
            double theirs;
            TW_TRY(doctor_hear(rank, peer, &theirs, sizeof(theirs)));
            const double now = wall_sec();
            TW_TRY(doctor_tell(rank, peer, &now, sizeof(now)));
        }
    }
    return TW_OK;
}
