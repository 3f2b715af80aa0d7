/** The monitor on rank 0: hears everyone, judges, tells everyone. */
#include "transport/monitor/state.h"

#include <stdlib.h>
#include <string.h>

/** A suspected rank may be one that is just leaving; its goodbye has this share of the timeout to arrive. */
#define SUSPICION_SHARE 0.25

static void tell_all(tw_monitor_t *monitor, tw_msg_type_t type, int number, const char *text)
{
    for (int r = 1; r < monitor->world; r++) {
        tw_monitor_send_notice(&monitor->channels[r], type, number, text);
    }
}

static void server_fail(tw_monitor_t *monitor, int rank, const char *reason)
{
    if (tw_monitor_verdict(monitor, rank, reason)) {
        tell_all(monitor, TW_MSG_FAILED, rank, reason);
    }
}

static void tell_gone(tw_monitor_t *monitor, int to, int rank, uint64_t count)
{
    tw_msg_writer_t gone = {0};
    if (!tw_channel_is_open(&monitor->channels[to])) {
        return;
    }
    tw_msg_gone_write((uint32_t)rank, count, &gone);
    if (!gone.failed) {
        (void)tw_channel_send(&monitor->channels[to], TW_MSG_GONE, gone.data, gone.bytes);
    }
    tw_msg_writer_cleanup(&gone);
}

/** Everyone hears that `rank` leaves, also `rank` itself: then it may close. */
static void rank_goodbye(tw_monitor_t *monitor, int rank, const uint64_t *counts)
{
    tw_monitor_mark_gone(monitor, rank, counts[0]);
    for (int r = 1; r < monitor->world; r++) {
        tell_gone(monitor, r, rank, counts[r]);
    }
}

static tw_status_t read_goodbye(tw_monitor_t *monitor, int rank, const tw_channel_message_t *message)
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

static void suspect(tw_monitor_t *monitor, int rank)
{
    if (!monitor->suspect_until_ns[rank] && !tw_monitor_is_gone(monitor, rank)) {
        monitor->suspect_until_ns[rank] =
            tw_time_ns() + (uint64_t)(monitor->peer_timeout_sec * 1e9 * SUSPICION_SHARE);
    }
}

static tw_status_t read_notice(tw_monitor_t *monitor, int rank, const tw_channel_message_t *message)
{
    tw_msg_notice_t notice;
    tw_status_t status = tw_msg_notice_parse(message->payload, message->bytes, &notice);
    if (status) {
        return status;
    }
    if (notice.number < 0 || notice.number >= monitor->world) {
        return TW_ERR_FORMAT;
    }
    if (message->type == TW_MSG_ABORT) {
        server_fail(monitor, notice.number, notice.text);
    } else { /* a rank that cannot reach this one: that this one is there is certain */
        suspect(monitor, notice.number ? notice.number : rank);
    }
    return TW_OK;
}

static tw_status_t read_one(tw_monitor_t *monitor, int rank)
{
    static const unsigned accepted = TW_CHANNEL_ACCEPTS(TW_MSG_HEARTBEAT) |
                                     TW_CHANNEL_ACCEPTS(TW_MSG_GOODBYE) | TW_CHANNEL_ACCEPTS(TW_MSG_REPORT) |
                                     TW_CHANNEL_ACCEPTS(TW_MSG_ABORT);
    tw_channel_message_t message;
    tw_status_t status = tw_channel_receive(&monitor->channels[rank], accepted, &message);
    if (status || message.type == TW_MSG_HEARTBEAT) {
        return status;
    }
    if (message.type == TW_MSG_GOODBYE) {
        return read_goodbye(monitor, rank, &message);
    }
    return read_notice(monitor, rank, &message);
}

static void server_receive(tw_monitor_t *monitor)
{
    for (int r = 1; r < monitor->world; r++) {
        tw_channel_t *channel = &monitor->channels[r];
        tw_status_t status = TW_OK;
        while (status == TW_OK && tw_channel_is_open(channel)) {
            status = read_one(monitor, r);
        }
        if (status >= 0) {
            continue;
        }
        if (!tw_monitor_is_gone(monitor, r)) {
            server_fail(monitor, r, tw_monitor_why(channel, status));
        }
        tw_channel_cleanup(channel);
    }
}

/** Silent for longer than `ns`, and not gone. */
static int is_silent(const tw_monitor_t *monitor, int rank, uint64_t now, uint64_t ns)
{
    const tw_channel_t *channel = &monitor->channels[rank];
    return tw_channel_is_open(channel) && !tw_monitor_is_gone(monitor, rank) && now > channel->heard_ns &&
           now - channel->heard_ns > ns;
}

static void server_judge(tw_monitor_t *monitor, uint64_t now)
{
    char reason[TW_MSG_TEXT_BYTES];
    if (tw_monitor_failed_rank(monitor) >= 0) {
        return;
    }
    for (int r = 1; r < monitor->world; r++) {
        if (monitor->suspect_until_ns[r] && now > monitor->suspect_until_ns[r] &&
            !tw_monitor_is_gone(monitor, r)) {
            server_fail(monitor, r, "another rank has lost its data connection to it");
        }
        if (!is_silent(monitor, r, now, monitor->silence_ns)) {
            continue;
        }
        /* Several may have lost the same link, each up to a heartbeat and a half apart: name the lowest. */
        int lowest = 1;
        while (!is_silent(monitor, lowest, now, monitor->silence_ns - monitor->heartbeat_ns * 3 / 2)) {
            lowest++;
        }
        snprintf(reason, sizeof(reason), "no sign of life for %.1f s",
                 (double)(now - monitor->channels[lowest].heard_ns) * 1e-9);
        server_fail(monitor, lowest, reason);
        return;
    }
}

static void server_spread(tw_monitor_t *monitor)
{
    tell_all(monitor, TW_MSG_FAILED, tw_monitor_failed_rank(monitor), monitor->reason);
}

static void server_goodbye(tw_monitor_t *monitor, const uint64_t *counts)
{
    rank_goodbye(monitor, 0, counts);
}

const tw_monitor_role_t tw_monitor_server = {
    .receive = server_receive,
    .judge = server_judge,
    .suspect = suspect,
    .spread = server_spread,
    .goodbye = server_goodbye,
};
