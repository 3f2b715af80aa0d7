/** The rendezvous on ranks other than 0: each tries until rank 0 admits it, then waits for the other
 *  ranks. */
#include <string.h>
#include <time.h>

#include <sodium.h>

#include "transport/control/socket.h"
#include "transport/rendezvous/rendezvous.h"

#define RETRY_FIRST_NS 20000000u
#define RETRY_MAX_NS 500000000u
/** Silence after which rank 0 counts as lost. Rank 0 sends a heartbeat every tenth of a second, whatever
 *  TW_PEER_TIMEOUT is. After TW_JOIN_TIMEOUT it ends the job and says which ranks are missing. */
#define SILENCE_MIN_SEC 1.0

typedef struct client {
    tw_rendezvous_t *rendezvous;
    const tw_job_t *job;
    const tw_transport_options_t *options;
    const tw_token_key_t *key;
    tw_msg_join_t join;
    uint64_t deadline_ns;
    char why[TW_MSG_TEXT_BYTES]; /**< why the last attempt failed */
} client_t;

static void client_note(client_t *client, const char *step, tw_status_t status)
{
    const tw_connection_t *connection = client->rendezvous->connections;
    const char *what = status == TW_ERR_IO && !connection->error ? "connection closed"
                       : status == TW_ERR_IO                     ? strerror(connection->error)
                                                                 : tw_status_string(status);
    const int refused = status == TW_ERR_IO || status == TW_ERR_AUTH;
    snprintf(client->why, sizeof(client->why), "%s, %s: %s%s", connection->name, step, what,
             refused ? " (is TW_JOB_TOKEN the same on all ranks?)" : "");
}

/** Add to `why` which variable the user should check: MASTER_ADDR overrides the launcher's value. */
static void ask_where(client_t *client)
{
    const size_t length = strlen(client->why);
    snprintf(client->why + length, sizeof(client->why) - length, " (is MASTER_ADDR rank 0's host?)");
}

static tw_status_t refused(const client_t *client, const tw_connection_message_t *message)
{
    tw_msg_notice_t notice;
    const int rank = client->job->rank;
    TW_FAIL_IF(tw_msg_notice_parse(message->payload, message->bytes, &notice), TW_ERR_FORMAT,
               "rank %d: rank 0 sent a malformed %s", rank, tw_msg_type_name(message->type));
    tw_error("rank %d: rank 0 refuses: %s", rank, notice.text);
    return notice.number < 0 ? (tw_status_t)notice.number : TW_ERR_CONFIG;
}

static tw_status_t lost_rank_0(const client_t *client, const char *step, tw_status_t status)
{
    tw_error("rank %d: peer 0 failed during the start, %s: %s", client->job->rank, step,
             tw_status_string(status));
    return status == TW_ERR_TIMEOUT ? TW_ERR_TIMEOUT : TW_ERR_PEER;
}

/* ---- one attempt --------------------------------------------------------------------------------------- */

/** Tell rank 0 that this rank refuses an unencrypted connection. Rank 0 then ends the job and tells all ranks
 *  why. */
static tw_status_t client_decline(const client_t *client)
{
    tw_msg_writer_t notice = {0};
    tw_msg_notice_write(client->job->rank, "TW_NET_ENCRYPT", &notice);
    return tw_connection_send_written(client->rendezvous->connections, TW_MSG_REJECT, &notice);
}

static tw_status_t say_who(const client_t *client)
{
    tw_msg_writer_t join = {0};
    tw_msg_join_write(&client->join, &join);
    return tw_connection_send_written(client->rendezvous->connections, TW_MSG_JOIN, &join);
}

static tw_status_t prove(client_t *client, tw_token_share_t *share, uint64_t deadline_ns)
{
    tw_connection_t *connection = client->rendezvous->connections;
    const int seals = client->options->net_encrypt;
    tw_connection_message_t message;
    uint8_t hello[TW_MSG_NONCE_BYTES + TW_MSG_SHARE_BYTES];
    tw_token_random(hello, TW_MSG_NONCE_BYTES);
    memcpy(hello + TW_MSG_NONCE_BYTES, share->open, sizeof(share->open));
    const size_t hello_bytes = seals ? sizeof(hello) : TW_MSG_NONCE_BYTES;
    TW_TRY(tw_connection_send(connection, TW_MSG_HELLO, hello, hello_bytes));
    TW_TRY(tw_connection_wait(connection, TW_CONNECTION_ACCEPTS(TW_MSG_CHALLENGE), deadline_ns, &message));
    if (message.bytes != TW_MSG_NONCE_BYTES && message.bytes != hello_bytes) {
        return TW_ERR_FORMAT;
    }
    tw_token_session_init(&connection->session, client->key, TW_TOKEN_CLIENT, hello, message.payload);
    if (!seals) {
        return say_who(client);
    }
    if (message.bytes != hello_bytes) {
        return client_decline(client);
    }
    TW_TRY(tw_token_session_seal(&connection->session, TW_TOKEN_CLIENT, share,
                                 message.payload + TW_MSG_NONCE_BYTES));
    return say_who(client);
}

/** Try to join. TW_OK: joined. TW_IN_PROGRESS: try again, `why` is the reason. Errors were logged. */
static tw_status_t attempt(client_t *client)
{
    tw_connection_t *connection = client->rendezvous->connections;
    const unsigned answers = TW_CONNECTION_ACCEPTS(TW_MSG_ACCEPT) | TW_CONNECTION_ACCEPTS(TW_MSG_REJECT);
    uint64_t deadline_ns = tw_connection_deadline(client->options->handshake_timeout);
    tw_connection_message_t message;
    tw_token_share_t share;
    int fd;
    if (deadline_ns > client->deadline_ns) {
        deadline_ns = client->deadline_ns;
    }
    tw_status_t status = tw_socket_connect(client->job->master_addr, client->job->master_port, deadline_ns,
                                           &fd, client->why, sizeof(client->why));
    if (status) {
        ask_where(client);
        return TW_IN_PROGRESS;
    }
    tw_connection_init(connection, fd);
    tw_token_share_make(&share);
    status = prove(client, &share, deadline_ns);
    sodium_memzero(&share, sizeof(share));
    status = status ? status : tw_connection_wait(connection, answers, deadline_ns, &message);
    if (!status && message.type == TW_MSG_ACCEPT) {
        return TW_OK;
    }
    if (!status) {
        return refused(client, &message);
    }
    client_note(client, "handshake", status);
    tw_connection_cleanup(connection);
    return TW_IN_PROGRESS;
}

static void pause_ns(uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    (void)nanosleep(&time, NULL);
}

static tw_status_t get_in(client_t *client)
{
    uint64_t wait_ns = RETRY_FIRST_NS;
    tw_status_t status;
    while ((status = attempt(client)) == TW_IN_PROGRESS) {
        if (tw_time_ns() + wait_ns >= client->deadline_ns) {
            return tw_fail(TW_ERR_TIMEOUT, "rank %d: could not join the job within %g s; last attempt: %s",
                           client->job->rank, client->options->join_timeout, client->why);
        }
        tw_debug("rank %d: not yet in: %s", client->job->rank, client->why);
        pause_ns(wait_ns);
        wait_ns = 2 * wait_ns < RETRY_MAX_NS ? 2 * wait_ns : RETRY_MAX_NS;
    }
    return status;
}

/* ---- inside -------------------------------------------------------------------------------------------- */

/** Wait for the next message from rank 0. Fails if rank 0 is silent for too long. */
static tw_status_t wait_next(const client_t *client, tw_connection_message_t *message)
{
    const unsigned answers = TW_CONNECTION_ACCEPTS(TW_MSG_HEARTBEAT) | TW_CONNECTION_ACCEPTS(TW_MSG_MEMBERS) |
                             TW_CONNECTION_ACCEPTS(TW_MSG_REJECT);
    const double silence_sec =
        client->options->peer_timeout > SILENCE_MIN_SEC ? client->options->peer_timeout : SILENCE_MIN_SEC;
    return tw_connection_wait(client->rendezvous->connections, answers, tw_connection_deadline(silence_sec),
                              message);
}

static tw_status_t wait_members(client_t *client)
{
    tw_rendezvous_t *rendezvous = client->rendezvous;
    tw_connection_message_t message = {.type = TW_MSG_HEARTBEAT};
    tw_status_t status = TW_OK;
    while (!status && message.type == TW_MSG_HEARTBEAT) {
        status = wait_next(client, &message);
    }
    if (status) {
        return lost_rank_0(client, "waiting for the other ranks", status);
    }
    if (message.type == TW_MSG_REJECT) {
        return refused(client, &message);
    }
    status = tw_msg_members_parse(message.payload, message.bytes, (uint32_t)rendezvous->world,
                                  &rendezvous->settings, rendezvous->members);
    return status ? lost_rank_0(client, "reading the list of ranks", status) : TW_OK;
}

tw_status_t tw_rendezvous_connect(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                                  const tw_transport_options_t *options, const tw_token_key_t *key)
{
    client_t client = {.rendezvous = rendezvous,
                       .job = job,
                       .options = options,
                       .key = key,
                       .deadline_ns = tw_connection_deadline(options->join_timeout),
                       .join = {.rank = (uint32_t)job->rank,
                                .world = (uint32_t)job->world,
                                .version = TW_VERSION,
                                .who = rendezvous->members[job->rank]}};
    tw_token_random(client.join.instance, sizeof(client.join.instance));
    TW_TRY(get_in(&client));
    tw_socket_device(rendezvous->connections->fd, rendezvous->device, sizeof(rendezvous->device));
    return wait_members(&client);
}
