/** The monitor on ranks other than 0: hears rank 0 alone. */
#include "transport/monitor/state.h"

#include <string.h>

/** Rank 0 itself is lost; should it be alive after all, it learns that it is out. */
static void lose_rank_0(tw_monitor_t *monitor, const char *reason)
{
    if (tw_monitor_is_gone(monitor, 0) || !tw_monitor_verdict(monitor, 0, reason)) {
        return;
    }
    tw_monitor_send_notice(monitor->channels, TW_MSG_ABORT, 0, reason);
}

static tw_status_t read_gone(tw_monitor_t *monitor, const tw_channel_message_t *message)
{
    uint32_t rank;
    uint64_t count;
    tw_status_t status = tw_msg_gone_parse(message->payload, message->bytes, &rank, &count);
    if (!status && (rank >= (uint32_t)monitor->world || count == TW_MONITOR_STILL_HERE)) {
        status = TW_ERR_FORMAT;
    }
    if (!status) {
        tw_monitor_mark_gone(monitor, (int)rank, count);
    }
    return status;
}

static tw_status_t read_failed(tw_monitor_t *monitor, const tw_channel_message_t *message)
{
    tw_msg_notice_t notice;
    tw_status_t status = tw_msg_notice_parse(message->payload, message->bytes, &notice);
    if (!status && (notice.number < 0 || notice.number >= monitor->world)) {
        status = TW_ERR_FORMAT;
    }
    if (!status) {
        (void)tw_monitor_verdict(monitor, notice.number, notice.text);
    }
    return status;
}

static tw_status_t read_one(tw_monitor_t *monitor)
{
    static const unsigned accepted = TW_CHANNEL_ACCEPTS(TW_MSG_HEARTBEAT) | TW_CHANNEL_ACCEPTS(TW_MSG_GONE) |
                                     TW_CHANNEL_ACCEPTS(TW_MSG_FAILED);
    tw_channel_message_t message;
    tw_status_t status = tw_channel_receive(monitor->channels, accepted, &message);
    if (status || message.type == TW_MSG_HEARTBEAT) {
        return status;
    }
    return message.type == TW_MSG_GONE ? read_gone(monitor, &message) : read_failed(monitor, &message);
}

static void client_receive(tw_monitor_t *monitor)
{
    tw_channel_t *channel = monitor->channels;
    tw_status_t status = TW_OK;
    while (status == TW_OK && tw_channel_is_open(channel)) {
        status = read_one(monitor);
    }
    if (status >= 0) {
        return;
    }
    lose_rank_0(monitor, tw_monitor_why(channel, status));
    tw_channel_cleanup(channel);
}

static void client_judge(tw_monitor_t *monitor, uint64_t now)
{
    const tw_channel_t *channel = monitor->channels;
    char reason[TW_MSG_TEXT_BYTES];
    if (!tw_channel_is_open(channel) || now < channel->heard_ns ||
        now - channel->heard_ns <= monitor->silence_ns) {
        return;
    }
    snprintf(reason, sizeof(reason), "no sign of life for %.1f s", (double)(now - channel->heard_ns) * 1e-9);
    lose_rank_0(monitor, reason);
}

static void client_suspect(tw_monitor_t *monitor, int rank)
{
    if (tw_monitor_is_gone(monitor, rank)) {
        return;
    }
    if (tw_channel_is_open(monitor->channels)) {
        tw_monitor_send_notice(monitor->channels, TW_MSG_REPORT, rank, "lost its data connection");
    } else { /* rank 0 has left; nobody else can say whether that was a goodbye */
        tw_monitor_mark_gone(monitor, rank, 0);
    }
}

static void client_spread(tw_monitor_t *monitor)
{
    tw_monitor_send_notice(monitor->channels, TW_MSG_ABORT, tw_monitor_failed_rank(monitor), monitor->reason);
}

static void client_goodbye(tw_monitor_t *monitor, const uint64_t *counts)
{
    tw_msg_writer_t goodbye = {0};
    tw_msg_goodbye_write(counts, (uint32_t)monitor->world, &goodbye);
    if (!goodbye.failed && tw_channel_is_open(monitor->channels)) {
        (void)tw_channel_send(monitor->channels, TW_MSG_GOODBYE, goodbye.data, goodbye.bytes);
    }
    tw_msg_writer_cleanup(&goodbye);
}

const tw_monitor_role_t tw_monitor_client = {
    .receive = client_receive,
    .judge = client_judge,
    .suspect = client_suspect,
    .spread = client_spread,
    .goodbye = client_goodbye,
};
