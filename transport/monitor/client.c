/** The monitor on ranks other than 0. Its only connection is to rank 0. */
#include "transport/monitor/state.h"

/** Declare rank 0 failed, unless all ranks have left. Tell rank 0, too: if it lives, it judges which has
 *  failed. */
static void lose_rank_0(tw_monitor_t *monitor, const char *reason)
{
    if (tw_monitor_everyone_is_gone(monitor) || tw_monitor_has_verdict(monitor)) {
        return;
    }
    tw_monitor_send_notice(monitor->connections, TW_MSG_LOST, 0, reason);
    tw_monitor_publish(monitor, 0, reason);
}

static tw_status_t read_gone(tw_monitor_t *monitor, const tw_connection_message_t *message)
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

static tw_status_t read_failed(tw_monitor_t *monitor, const tw_connection_message_t *message)
{
    tw_msg_notice_t notice;
    tw_status_t status = tw_msg_notice_parse(message->payload, message->bytes, &notice);
    if (!status && (notice.number < 0 || notice.number >= monitor->world)) {
        status = TW_ERR_FORMAT;
    }
    if (!status && !tw_monitor_has_verdict(monitor)) {
        tw_monitor_publish(monitor, notice.number, notice.text);
    }
    return status;
}

static tw_status_t read_one(tw_monitor_t *monitor)
{
    static const unsigned accepted =
        TW_CONNECTION_ACCEPTS(TW_MSG_HEARTBEAT) | TW_CONNECTION_ACCEPTS(TW_MSG_GONE) |
        TW_CONNECTION_ACCEPTS(TW_MSG_FAILED) | TW_CONNECTION_ACCEPTS(TW_MSG_ADDRESSES);
    tw_connection_message_t message;
    tw_status_t status = tw_connection_receive(monitor->connections, accepted, &message);
    if (status || message.type == TW_MSG_HEARTBEAT) {
        return status;
    }
    if (message.type == TW_MSG_ADDRESSES) {
        return atomic_load(&monitor->has_gathered)
                   ? TW_ERR_FORMAT
                   : tw_monitor_gathered(monitor, message.payload, message.bytes);
    }
    return message.type == TW_MSG_GONE ? read_gone(monitor, &message) : read_failed(monitor, &message);
}

static void client_receive(tw_monitor_t *monitor)
{
    tw_connection_t *connection = monitor->connections;
    tw_status_t status = TW_OK;
    while (status == TW_OK && tw_connection_is_open(connection)) {
        status = read_one(monitor);
    }
    if (status >= 0) {
        return;
    }
    lose_rank_0(monitor, tw_monitor_why(connection, status));
    tw_connection_cleanup(connection);
}

static void client_hear(tw_monitor_t *monitor, int rank, uint64_t now)
{
    if (rank == 0) {
        monitor->connections->heard_ns = now;
    }
    if ((uint32_t)rank / 8 < monitor->heard_bytes) {
        monitor->heard_bits[rank / 8] |= (uint8_t)(1 << rank % 8);
    }
}

static void client_judge(tw_monitor_t *monitor, uint64_t now)
{
    const tw_connection_t *connection = monitor->connections;
    char reason[TW_MSG_TEXT_BYTES];
    if (!tw_connection_is_open(connection) || now < connection->heard_ns ||
        now - connection->heard_ns <= tw_monitor_patience_ns(monitor, 0, now)) {
        return;
    }
    snprintf(reason, sizeof(reason), "no sign of life for %.1f s",
             (double)(now - connection->heard_ns) * 1e-9);
    lose_rank_0(monitor, reason);
}

static void client_suspect(tw_monitor_t *monitor, int rank, const char *why)
{
    if (tw_monitor_is_gone(monitor, rank)) {
        return;
    }
    tw_monitor_send_notice(monitor->connections, TW_MSG_REPORT, rank, why);
}

/** Ask rank 0 to fail a rank. Rank 0 then sends the verdict, or is lost itself. */
static void client_blame(tw_monitor_t *monitor, int rank, const char *reason)
{
    if (tw_connection_is_open(monitor->connections)) {
        tw_monitor_send_notice(monitor->connections, TW_MSG_ABORT, rank, reason);
    } else { /* all other ranks have left */
        tw_monitor_publish(monitor, rank, reason);
    }
}

static void client_exchange(tw_monitor_t *monitor, const tw_msg_blob_t *own)
{
    if (tw_connection_is_open(monitor->connections)) {
        (void)tw_connection_send(monitor->connections, TW_MSG_ADDRESS, own->data, own->bytes);
    }
}

static void client_goodbye(tw_monitor_t *monitor, const uint64_t *counts)
{
    tw_msg_writer_t goodbye = {0};
    tw_msg_goodbye_write(counts, (uint32_t)monitor->world, &goodbye);
    (void)tw_connection_send_written(monitor->connections, TW_MSG_GOODBYE, &goodbye);
}

const tw_monitor_role_t tw_monitor_client = {
    .receive = client_receive,
    .hear = client_hear,
    .judge = client_judge,
    .suspect = client_suspect,
    .blame = client_blame,
    .goodbye = client_goodbye,
    .exchange = client_exchange,
};
