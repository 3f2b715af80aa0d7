/** The monitor on rank 0, which listens to all ranks, decides who has failed, and tells all ranks. */
#include "transport/monitor/state.h"

#include <stdlib.h>
#include <string.h>

/** A suspected rank may just be leaving. Its goodbye may take this share of the timeout to arrive. */
#define SUSPICION_SHARE 0.25

static void tell_all(tw_monitor_t *monitor, tw_msg_type_t type, int number, const char *text)
{
    for (int r = 1; r < monitor->world; r++) {
        tw_monitor_send_notice(&monitor->connections[r], type, number, text);
    }
}

/** Declare a rank failed. Tells the others first, as this process may end as soon as its owner knows. */
static void server_fail(tw_monitor_t *monitor, int rank, const char *reason)
{
    if (tw_monitor_has_verdict(monitor)) {
        return;
    }
    tell_all(monitor, TW_MSG_FAILED, rank, reason);
    tw_monitor_publish(monitor, rank, reason);
}

/** Tell all ranks, also `rank` itself, that `rank` has said goodbye. When all have, they close. */
static void rank_goodbye(tw_monitor_t *monitor, int rank, const uint64_t *counts)
{
    tw_monitor_mark_gone(monitor, rank, counts[0]);
    for (int r = 1; r < monitor->world; r++) {
        tw_msg_writer_t gone = {0};
        tw_msg_gone_write((uint32_t)rank, counts[r], &gone);
        (void)tw_connection_send_written(&monitor->connections[r], TW_MSG_GONE, &gone);
    }
}

static tw_status_t read_goodbye(tw_monitor_t *monitor, int rank, const tw_connection_message_t *message)
{
    uint64_t *counts = calloc((size_t)monitor->world, sizeof(*counts));
    if (!counts) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status =
        tw_msg_goodbye_parse(message->payload, message->bytes, (uint32_t)monitor->world, counts);
    if (!status) {
        rank_goodbye(monitor, rank, counts);
    }
    free(counts);
    return status;
}

static void note_suspicion(tw_monitor_t *monitor, int by, int rank, const char *why)
{
    tw_suspicion_t *suspicion = &monitor->suspicions[rank];
    if (!suspicion->until_ns && !tw_monitor_is_gone(monitor, rank)) {
        const double patience_sec = monitor->peer_timeout_sec * SUSPICION_SHARE;
        *suspicion = (tw_suspicion_t){.until_ns = tw_connection_deadline(patience_sec), .by = by};
        snprintf(suspicion->why, sizeof(suspicion->why), "%s", why);
    }
}

static void suspect(tw_monitor_t *monitor, int rank, const char *why)
{
    note_suspicion(monitor, 0, rank, why);
}

/** Handle the report of `rank` that it cannot reach rank 0. If its own link is to blame, that rank has
 *  failed; otherwise rank 0 has. */
static void read_complaint(tw_monitor_t *monitor, int rank, const char *text)
{
    if (tw_monitor_is_gone(monitor, rank)) {
        return;
    }
    const int blamed = tw_outages_blame_complaint(&monitor->outages, rank, tw_time_ns());
    server_fail(monitor, blamed, blamed ? "it was cut off from rank 0" : text);
}

static tw_status_t read_notice(tw_monitor_t *monitor, int rank, const tw_connection_message_t *message)
{
    tw_msg_notice_t notice;
    TW_TRY(tw_msg_notice_parse(message->payload, message->bytes, &notice));
    if (notice.number < 0 || notice.number >= monitor->world) {
        return TW_ERR_FORMAT;
    }
    if (message->type == TW_MSG_LOST) {
        read_complaint(monitor, rank, notice.text);
    } else if (message->type == TW_MSG_ABORT) {
        server_fail(monitor, notice.number, notice.text);
    } else if (notice.number) {
        note_suspicion(monitor, rank, notice.number, notice.text);
    } else { /* the suspect is rank 0, which lives, so suspect the rank that reports it */
        note_suspicion(monitor, 0, rank, notice.text);
    }
    return TW_OK;
}

/* ---- the exchange -------------------------------------------------------------------------------------- */

static tw_status_t send_lists(tw_monitor_t *monitor)
{
    tw_msg_writer_t all = {0};
    tw_msg_blobs_write(monitor->lists, (uint32_t)monitor->world, &all);
    tw_status_t status = all.failed ? TW_ERR_NO_MEMORY : TW_OK;
    for (int r = 1; r < monitor->world && !status; r++) {
        if (tw_connection_is_open(&monitor->connections[r])) {
            (void)tw_connection_send(&monitor->connections[r], TW_MSG_ADDRESSES, all.data, all.bytes);
        }
    }
    tw_monitor_lists_forget(monitor); /* the next exchange's lists may come as soon as a rank has these */
    status = status ? status : tw_monitor_gathered(monitor, all.data, all.bytes);
    tw_msg_writer_cleanup(&all);
    return status;
}

static tw_status_t take_list(tw_monitor_t *monitor, int rank, const void *data, uint32_t bytes)
{
    uint8_t *copy = monitor->lists[rank].data ? NULL : malloc(bytes + 1);
    if (!copy) {
        return monitor->lists[rank].data ? TW_ERR_FORMAT : TW_ERR_NO_MEMORY;
    }
    memcpy(copy, data, bytes);
    monitor->lists[rank] = (tw_msg_blob_t){copy, bytes};
    if (!monitor->lists_by_ns) {
        monitor->lists_by_ns = tw_connection_deadline(monitor->join_timeout_sec);
    }
    return ++monitor->n_lists == monitor->world ? send_lists(monitor) : TW_OK;
}

static void server_exchange(tw_monitor_t *monitor, const tw_msg_blob_t *own)
{
    tw_status_t status = take_list(monitor, 0, own->data, own->bytes);
    if (status) {
        server_fail(monitor, 0, tw_status_string(status));
    }
}

/** When the time limit of an exchange has passed, fail a rank that has not sent its list. */
static void judge_exchange(tw_monitor_t *monitor, uint64_t now)
{
    int r = 0;
    if (!monitor->lists_by_ns || now < monitor->lists_by_ns) {
        return;
    }
    while (monitor->lists[r].data) {
        r++;
    }
    server_fail(monitor, r, "it did not say in time where it can be reached");
}

/* ---- receiving and judging ----------------------------------------------------------------------------- */

/** Note that a rank is alive, because data from it has arrived at this rank or another one. */
static void server_hear(tw_monitor_t *monitor, int rank, uint64_t now)
{
    tw_connection_t *connection = &monitor->connections[rank];
    if (rank > 0 && tw_connection_is_open(connection)) {
        connection->heard_ns = now;
        tw_outages_hear(&monitor->outages, rank, now);
    }
}

static tw_status_t read_heartbeat(tw_monitor_t *monitor, int rank, const tw_connection_message_t *message)
{
    tw_msg_heartbeat_t heartbeat;
    const uint64_t now = tw_time_ns();
    TW_TRY(tw_msg_heartbeat_parse(message->payload, message->bytes, &heartbeat));
    tw_outages_late(&monitor->outages, rank, heartbeat.late_ms * 1000000ull);
    for (int r = 0; r < monitor->world && (uint32_t)r / 8 < heartbeat.heard_bytes; r++) {
        if (heartbeat.heard[r / 8] >> r % 8 & 1) {
            server_hear(monitor, r, now);
        }
    }
    return TW_OK;
}

static tw_status_t read_one(tw_monitor_t *monitor, int rank)
{
    static const unsigned accepted =
        TW_CONNECTION_ACCEPTS(TW_MSG_HEARTBEAT) | TW_CONNECTION_ACCEPTS(TW_MSG_GOODBYE) |
        TW_CONNECTION_ACCEPTS(TW_MSG_REPORT) | TW_CONNECTION_ACCEPTS(TW_MSG_ABORT) |
        TW_CONNECTION_ACCEPTS(TW_MSG_ADDRESS) | TW_CONNECTION_ACCEPTS(TW_MSG_LOST);
    tw_connection_message_t message;
    tw_status_t status = tw_connection_receive(&monitor->connections[rank], accepted, &message);
    if (!status && message.type == TW_MSG_HEARTBEAT) {
        status = read_heartbeat(monitor, rank, &message);
    }
    if (!status) {
        tw_outages_hear(&monitor->outages, rank, tw_time_ns());
    }
    if (status || message.type == TW_MSG_HEARTBEAT) {
        return status;
    }
    if (message.type == TW_MSG_GOODBYE) {
        return read_goodbye(monitor, rank, &message);
    }
    if (message.type == TW_MSG_ADDRESS) {
        return take_list(monitor, rank, message.payload, message.bytes);
    }
    return read_notice(monitor, rank, &message);
}

static void server_receive(tw_monitor_t *monitor)
{
    for (int r = 1; r < monitor->world; r++) {
        tw_connection_t *connection = &monitor->connections[r];
        tw_status_t status = TW_OK;
        while (status == TW_OK && tw_connection_is_open(connection)) {
            status = read_one(monitor, r);
        }
        if (status >= 0) {
            continue;
        }
        if (!tw_monitor_is_gone(monitor, r)) {
            server_fail(monitor, r, tw_monitor_why(connection, status));
        }
        tw_connection_cleanup(connection);
        tw_outages_close(&monitor->outages, r);
    }
}

/** Return 1 if a rank that has not left has been silent for longer than the allowed time less nearly_ns. */
static int is_silent(const tw_monitor_t *monitor, int rank, uint64_t now, uint64_t nearly_ns)
{
    const tw_connection_t *connection = &monitor->connections[rank];
    return tw_connection_is_open(connection) && !tw_monitor_is_gone(monitor, rank) &&
           now > connection->heard_ns &&
           now - connection->heard_ns > tw_monitor_patience_ns(monitor, rank, now) - nearly_ns;
}

/** Warn once that destroying the transport takes longer on rank 0, and which ranks it waits for. */
static void say_who_stays(tw_monitor_t *monitor, uint64_t now)
{
    int n = 0, lowest = 0;
    if (!monitor->said_goodbye || monitor->said_who_stays || now < monitor->leave_by_ns) {
        return;
    }
    for (int r = monitor->world - 1; r > 0; r--) {
        if (!tw_monitor_is_gone(monitor, r)) {
            lowest = r;
            n++;
        }
    }
    monitor->said_who_stays = 1;
    if (n == 0) {
        return;
    }
    tw_warn("rank 0: it has left the job, and stays to watch over %d rank%s that %s not: rank %d%s", n,
            n == 1 ? "" : "s", n == 1 ? "has" : "have", lowest, n == 1 ? "" : " and others");
}

static void judge_suspicion(tw_monitor_t *monitor, int rank, uint64_t now)
{
    const tw_suspicion_t *suspicion = &monitor->suspicions[rank];
    if (!suspicion->until_ns || now <= suspicion->until_ns || tw_monitor_is_gone(monitor, rank)) {
        return;
    }
    const int blamed = tw_outages_blame_suspicion(&monitor->outages, suspicion->by, rank, now);
    char reason[TW_MSG_TEXT_BYTES];
    snprintf(reason, sizeof(reason), "rank %d has lost its data connection to it: %s", suspicion->by,
             suspicion->why);
    server_fail(monitor, blamed,
                blamed == rank ? reason : "it was cut off, and has lost its data connections");
}

/** Fail a silent rank. If a link has failed, all ranks behind it fall silent within a heartbeat and a half;
 *  the lowest of them is named, unless the link was rank 0's. */
static void judge_silence(tw_monitor_t *monitor, uint64_t now)
{
    char reason[TW_MSG_TEXT_BYTES];
    int lowest = 1;
    while (!is_silent(monitor, lowest, now, monitor->heartbeat_ns * 3 / 2)) {
        lowest++;
    }
    const uint64_t heard_ns = monitor->connections[lowest].heard_ns;
    const int blamed = tw_outages_blame_silent(&monitor->outages, lowest, heard_ns, now);
    snprintf(reason, sizeof(reason), "no sign of life %sfor %.1f s",
             blamed ? "" : "came to it from any other node ", (double)(now - heard_ns) * 1e-9);
    server_fail(monitor, blamed, reason);
}

static void server_judge(tw_monitor_t *monitor, uint64_t now)
{
    if (tw_monitor_has_verdict(monitor)) {
        return;
    }
    say_who_stays(monitor, now);
    judge_exchange(monitor, now);
    for (int r = 1; r < monitor->world; r++) {
        judge_suspicion(monitor, r, now);
        if (is_silent(monitor, r, now, 0)) {
            judge_silence(monitor, now);
            return;
        }
    }
}

static void server_goodbye(tw_monitor_t *monitor, const uint64_t *counts)
{
    rank_goodbye(monitor, 0, counts);
}

const tw_monitor_role_t tw_monitor_server = {
    .receive = server_receive,
    .hear = server_hear,
    .judge = server_judge,
    .suspect = suspect,
    .blame = server_fail,
    .goodbye = server_goodbye,
    .exchange = server_exchange,
};
