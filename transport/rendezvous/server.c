/** The rendezvous on rank 0: one poll loop over the listener, strangers, and ranks that have joined, so that
 *  no connection can make the others wait. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "transport/control/socket.h"
#include "transport/control/strangers.h"
#include "transport/rendezvous/rendezvous.h"

/** Most strangers at one time. A further one replaces the oldest. */
#define STRANGERS_MAX 128
/** Most connections to accept before other connections get their turn. */
#define ACCEPTS_AT_ONCE 64
#define FAREWELL_SEC 1.0
#define LISTEN_RETRY_MS 100
/** Time between two heartbeats to ranks that have joined and wait for the others. */
#define HEARTBEAT_NS 100000000u

typedef struct stranger {
    tw_connection_t connection;
    int said_hello;
    uint64_t deadline_ns;
} stranger_t;

typedef struct server {
    tw_rendezvous_t *rendezvous;
    const tw_transport_options_t *options;
    const tw_token_key_t *key;
    int listener;
    int n_joined; /**< ranks that have joined, including rank 0 */
    uint64_t deadline_ns, next_heartbeat_ns;
    uint8_t (*instances)[TW_MSG_INSTANCE_BYTES]; /**< [world], each rank's instance */
    stranger_t strangers[STRANGERS_MAX];         /**< oldest first */
    int n_strangers;
    tw_strangers_log_t log;
    int n_unproven; /**< strangers that sent valid messages without the token; `unproven`: the last's name */
    char unproven[TW_CONNECTION_NAME_BYTES];
    struct pollfd *pollfds; /**< [1 + STRANGERS_MAX + world] */
    char refusal[TW_MSG_TEXT_BYTES];
} server_t;

/* ---- ending for everyone ------------------------------------------------------------------------------- */

/** Reject all ranks that have joined, and wait briefly until the messages are sent. */
static void reject_all(tw_rendezvous_t *rendezvous, tw_status_t why, const char *text)
{
    tw_msg_writer_t notice = {0};
    const uint64_t deadline_ns = tw_connection_deadline(FAREWELL_SEC);
    tw_msg_notice_write(why, text, &notice);
    for (int r = 1; r < rendezvous->world && !notice.failed; r++) {
        if (tw_connection_is_open(&rendezvous->connections[r])) {
            (void)tw_connection_send(&rendezvous->connections[r], TW_MSG_REJECT, notice.data, notice.bytes);
        }
    }
    for (int r = 1; r < rendezvous->world; r++) {
        if (tw_connection_is_open(&rendezvous->connections[r])) {
            (void)tw_connection_drain(&rendezvous->connections[r], deadline_ns);
        }
    }
    tw_msg_writer_cleanup(&notice);
}

static tw_status_t contradiction(server_t *server, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static tw_status_t contradiction(server_t *server, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(server->refusal, sizeof(server->refusal), format, args);
    va_end(args);
    return TW_ERR_CONFIG;
}

/** Write the ranks without a connection, as "1, 3-5, 9". */
static void list_missing(const tw_rendezvous_t *rendezvous, char *text, size_t text_bytes)
{
    size_t used = 0;
    int n_left = 0;
    text[0] = '\0';
    for (int r = 1, last; r < rendezvous->world; r = last + 1) {
        for (last = r; last < rendezvous->world && !tw_connection_is_open(&rendezvous->connections[last]);
             last++) {
            ;
        }
        if (last == r) {
            continue;
        }
        char item[32];
        const int bytes = last - r > 1
                              ? snprintf(item, sizeof(item), "%s%d-%d", used ? ", " : "", r, last - 1)
                              : snprintf(item, sizeof(item), "%s%d", used ? ", " : "", r);
        if (n_left || used + (size_t)bytes + 24 > text_bytes) {
            n_left += last - r;
            continue;
        }
        memcpy(text + used, item, (size_t)bytes + 1);
        used += (size_t)bytes;
    }
    if (n_left) {
        snprintf(text + used, text_bytes - used, " and %d more", n_left);
    }
}

/* ---- strangers ----------------------------------------------------------------------------------------- */

static void stranger_remove(server_t *server, int index)
{
    server->n_strangers--;
    memmove(&server->strangers[index], &server->strangers[index + 1],
            (size_t)(server->n_strangers - index) * sizeof(server->strangers[0]));
}

static void stranger_drop(server_t *server, int index, const char *why)
{
    char more[TW_STRANGERS_MORE_BYTES];
    if (tw_strangers_may_log(&server->log, tw_time_ns(), more)) {
        tw_info("rank 0: dropping the connection from %s: %s%s", server->strangers[index].connection.name,
                why, more);
    }
    tw_connection_cleanup(&server->strangers[index].connection);
    stranger_remove(server, index);
}

static void note_unproven(server_t *server, const stranger_t *stranger, tw_status_t status)
{
    if (status == TW_ERR_AUTH) {
        server->n_unproven++;
        memcpy(server->unproven, stranger->connection.name, sizeof(server->unproven));
    }
}

static void accept_some(server_t *server)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        const int fd = tw_socket_accept(server->listener);
        if (fd < 0) {
            return;
        }
        if (server->n_strangers == STRANGERS_MAX) {
            stranger_drop(server, 0, "too many connections that have not proven anything yet");
        }
        stranger_t *stranger = &server->strangers[server->n_strangers++];
        *stranger = (stranger_t){.deadline_ns = tw_connection_deadline(server->options->handshake_timeout)};
        tw_connection_init(&stranger->connection, fd);
    }
}

/** Answer HELLO with CHALLENGE. Seal the connection if both ends encrypt. */
static tw_status_t hello(server_t *server, stranger_t *stranger, const tw_connection_message_t *message)
{
    uint8_t challenge[TW_MSG_NONCE_BYTES + TW_MSG_SHARE_BYTES],
        theirs[TW_MSG_NONCE_BYTES + TW_MSG_SHARE_BYTES];
    tw_connection_t *connection = &stranger->connection;
    tw_token_share_t share;
    if (message->bytes != TW_MSG_NONCE_BYTES && message->bytes != sizeof(theirs)) {
        return TW_ERR_FORMAT;
    }
    const int seals = server->options->net_encrypt && message->bytes == sizeof(theirs);
    memcpy(theirs, message->payload, message->bytes);
    tw_token_random(challenge, TW_MSG_NONCE_BYTES);
    tw_token_share_make(&share);
    memcpy(challenge + TW_MSG_NONCE_BYTES, share.open, sizeof(share.open));
    stranger->said_hello = 1;
    tw_status_t status = tw_connection_send(connection, TW_MSG_CHALLENGE, challenge,
                                            seals ? sizeof(challenge) : TW_MSG_NONCE_BYTES);
    if (!status) {
        tw_token_session_init(&connection->session, server->key, TW_TOKEN_SERVER, theirs, challenge);
    }
    if (!status && seals) {
        status =
            tw_token_session_seal(&connection->session, TW_TOKEN_SERVER, &share, theirs + TW_MSG_NONCE_BYTES);
    }
    sodium_memzero(&share, sizeof(share));
    return status;
}

static const char *or_older(const char *version)
{
    return version[0] ? version : "of an older version";
}

static tw_status_t version_check(server_t *server, const tw_msg_join_t *join, const char *name)
{
    if (!strcmp(join->version, TW_VERSION)) {
        return TW_OK;
    }
    return contradiction(server, "rank %u (%s) has Thinwire %s, rank 0 has %s", join->rank, name,
                         or_older(join->version), TW_VERSION);
}

/** Compare UCX's versions, because ranks that share memory must lay it out in the same way. A rank that is
 *  alone on its node needs no UCX. */
static tw_status_t ucx_check(server_t *server, const tw_msg_join_t *join, const char *name)
{
    const tw_rendezvous_t *rendezvous = server->rendezvous;
    for (int r = 0; r < rendezvous->world; r++) {
        const tw_msg_member_t *member = &rendezvous->members[r];
        const int is_here = r == 0 || tw_connection_is_open(&rendezvous->connections[r]);
        if (!is_here || member->shm_id != join->who.shm_id) {
            continue;
        }
        if (join->who.node_tls[0] && strcmp(member->node_tls, join->who.node_tls) != 0) {
            return contradiction(server,
                                 "ranks %d and %u (%s) are on one node, and have TW_NODE_TLS=%s and %s", r,
                                 join->rank, name, member->node_tls, join->who.node_tls);
        }
        if (strcmp(member->ucx, join->who.ucx) != 0 && member->local_world != join->who.local_world) {
            return contradiction(server,
                                 "ranks %d and %u (%s) are on one node, and their launcher says that it has "
                                 "%d and %d ranks (LOCAL_WORLD_SIZE)",
                                 r, join->rank, name, member->local_world, join->who.local_world);
        }
        if (strcmp(member->ucx, join->who.ucx) != 0) {
            return contradiction(server, "ranks %d and %u (%s) are on one node, and have UCX %s and %s", r,
                                 join->rank, name, or_older(member->ucx), or_older(join->who.ucx));
        }
    }
    return TW_OK;
}

/** Check that what a rank with the token says is consistent with the job. */
static tw_status_t join_check(server_t *server, const tw_msg_join_t *join, const tw_connection_t *connection)
{
    const char *name = connection->name;
    const tw_rendezvous_t *rendezvous = server->rendezvous;
    const uint32_t world = (uint32_t)rendezvous->world;
    if (join->world != world) {
        return contradiction(server, "rank %u (%s) takes part in a world of %u, rank 0 in one of %u",
                             join->rank, name, join->world, world);
    }
    if (join->rank >= world) {
        return contradiction(server, "%s claims rank %u in a world of %u", name, join->rank, world);
    }
    if (join->rank == 0) {
        return contradiction(server, "%s claims rank 0, as this process does", name);
    }
    const tw_connection_t *taken = &rendezvous->connections[join->rank];
    if (tw_connection_is_open(taken) &&
        memcmp(server->instances[join->rank], join->instance, sizeof(join->instance)) != 0) {
        return contradiction(server, "two processes claim rank %u: %s and %s", join->rank, taken->name, name);
    }
    TW_TRY(version_check(server, join, name));
    if (server->options->net_encrypt && !connection->session.seal[0]) {
        return contradiction(server, "rank %u (%s) lacks TW_NET_ENCRYPT=y, which rank 0 has", join->rank,
                             name);
    }
    if (join->who.net_tls[0] && strcmp(join->who.net_tls, rendezvous->members[0].net_tls) != 0) {
        return contradiction(server, "TW_NET_TLS is %s on rank %u (%s), and %s on rank 0", join->who.net_tls,
                             join->rank, name, rendezvous->members[0].net_tls);
    }
    return ucx_check(server, join, name);
}

static tw_status_t admit(server_t *server, stranger_t *stranger, const tw_msg_join_t *join)
{
    tw_rendezvous_t *rendezvous = server->rendezvous;
    tw_connection_t *connection = &rendezvous->connections[join->rank];
    if (tw_connection_is_open(connection)) {
        tw_connection_cleanup(connection); /* the same process has tried again */
    } else {
        server->n_joined++;
    }
    *connection = stranger->connection;
    memcpy(server->instances[join->rank], join->instance, sizeof(join->instance));
    rendezvous->members[join->rank] = join->who;
    tw_debug("rank 0: rank %u has joined from %s", join->rank, connection->name);
    /* a broken connection is noticed when it is read */
    (void)tw_connection_send(connection, TW_MSG_ACCEPT, NULL, 0);
    return TW_OK;
}

/** End the join: a rank with the token refuses to go on, because this rank 0 does not encrypt. */
static tw_status_t declined(server_t *server, const stranger_t *stranger,
                            const tw_connection_message_t *message)
{
    tw_msg_notice_t notice;
    TW_TRY(tw_msg_notice_parse(message->payload, message->bytes, &notice));
    return contradiction(server, "rank %d (%s) has TW_NET_ENCRYPT=y, which rank 0 lacks", notice.number,
                         stranger->connection.name);
}

/** Handle a stranger's next message. TW_OK: it has become a rank; TW_IN_PROGRESS; TW_ERR_CONFIG: it
 *  contradicts the job; any other error: drop it. */
static tw_status_t stranger_step(server_t *server, stranger_t *stranger)
{
    const unsigned answers = TW_CONNECTION_ACCEPTS(TW_MSG_JOIN) | TW_CONNECTION_ACCEPTS(TW_MSG_REJECT);
    tw_connection_message_t message;
    tw_msg_join_t join;
    if (!stranger->said_hello) {
        TW_TRY(tw_connection_receive(&stranger->connection, TW_CONNECTION_ACCEPTS(TW_MSG_HELLO), &message));
        TW_TRY(hello(server, stranger, &message));
    }
    TW_TRY(tw_connection_receive(&stranger->connection, answers, &message));
    if (message.type == TW_MSG_REJECT) {
        return declined(server, stranger, &message);
    }
    TW_TRY(tw_msg_join_parse(message.payload, message.bytes, &join));
    TW_TRY(join_check(server, &join, &stranger->connection));
    return admit(server, stranger, &join);
}

static void refuse_stranger(server_t *server, stranger_t *stranger)
{
    tw_msg_writer_t notice = {0};
    tw_msg_notice_write(TW_ERR_CONFIG, server->refusal, &notice);
    if (!tw_connection_send_written(&stranger->connection, TW_MSG_REJECT, &notice)) {
        (void)tw_connection_drain(&stranger->connection, tw_connection_deadline(FAREWELL_SEC));
    }
}

static tw_status_t strangers_step(server_t *server)
{
    for (int i = 0; i < server->n_strangers;) {
        stranger_t *stranger = &server->strangers[i];
        tw_status_t status = stranger_step(server, stranger);
        if (status == TW_ERR_CONFIG) {
            refuse_stranger(server, stranger);
            return status;
        }
        if (status == TW_OK) {
            stranger_remove(server, i);
        } else if (status != TW_IN_PROGRESS) {
            note_unproven(server, stranger, status);
            stranger_drop(server, i, tw_status_string(status));
        } else if (tw_time_ns() > stranger->deadline_ns) {
            stranger_drop(server, i, "it did not say who it is in time");
        } else {
            i++;
        }
    }
    return TW_OK;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

/** Drop ranks that have joined and then left. A joined rank sends nothing, so a read shows only a close. */
static void ranks_step(server_t *server)
{
    tw_rendezvous_t *rendezvous = server->rendezvous;
    tw_connection_message_t message;
    for (int r = 1; r < rendezvous->world; r++) {
        tw_connection_t *connection = &rendezvous->connections[r];
        if (!tw_connection_is_open(connection)) {
            continue;
        }
        tw_status_t status = tw_connection_flush(connection);
        if (status >= 0) {
            status = tw_connection_receive(connection, 0, &message);
        }
        if (status == TW_IN_PROGRESS) {
            continue;
        }
        tw_info("rank 0: rank %d has left again before the job began", r);
        tw_connection_cleanup(connection);
        server->n_joined--;
    }
}

static void send_heartbeats(server_t *server)
{
    tw_rendezvous_t *rendezvous = server->rendezvous;
    const uint64_t now = tw_time_ns();
    if (now < server->next_heartbeat_ns) {
        return;
    }
    server->next_heartbeat_ns = now + HEARTBEAT_NS;
    for (int r = 1; r < rendezvous->world; r++) {
        tw_connection_t *connection = &rendezvous->connections[r];
        if (tw_connection_is_open(connection) && !tw_connection_wants_write(connection)) {
            (void)tw_connection_send(connection, TW_MSG_HEARTBEAT, NULL, 0);
        }
    }
}

static void wait_for_sockets(server_t *server)
{
    const tw_rendezvous_t *rendezvous = server->rendezvous;
    const uint64_t now = tw_time_ns();
    uint64_t until =
        server->next_heartbeat_ns < server->deadline_ns ? server->next_heartbeat_ns : server->deadline_ns;
    nfds_t n = 0;
    server->pollfds[n++] = (struct pollfd){.fd = server->listener, .events = POLLIN};
    for (int i = 0; i < server->n_strangers; i++) {
        server->pollfds[n++] = (struct pollfd){.fd = server->strangers[i].connection.fd, .events = POLLIN};
        if (server->strangers[i].deadline_ns < until) {
            until = server->strangers[i].deadline_ns;
        }
    }
    for (int r = 1; r < rendezvous->world; r++) {
        if (tw_connection_is_open(&rendezvous->connections[r])) {
            server->pollfds[n++] = (struct pollfd){.fd = rendezvous->connections[r].fd, .events = POLLIN};
        }
    }
    (void)poll(server->pollfds, n, until > now ? (int)((until - now) / 1000000 + 1) : 0);
}

/** Write to `refusal` which ranks are missing, and that one of them may have another token. */
static void say_missing(server_t *server, const char *missing)
{
    const int n = snprintf(server->refusal, sizeof(server->refusal), "missing after %g s: rank %s",
                           server->options->join_timeout, missing);
    if (server->n_unproven && n > 0 && (size_t)n < sizeof(server->refusal)) {
        snprintf(server->refusal + n, sizeof(server->refusal) - (size_t)n,
                 "; whoever came from %s has another TW_JOB_TOKEN (%d %s so)", server->unproven,
                 server->n_unproven, server->n_unproven == 1 ? "connection was" : "connections were");
    }
}

static tw_status_t gather_ranks(server_t *server)
{
    tw_rendezvous_t *rendezvous = server->rendezvous;
    while (server->n_joined < rendezvous->world) {
        char missing[TW_MSG_TEXT_BYTES / 2];
        if (tw_time_ns() >= server->deadline_ns) {
            list_missing(rendezvous, missing, sizeof(missing));
            say_missing(server, missing);
            return TW_ERR_TIMEOUT;
        }
        wait_for_sockets(server);
        accept_some(server);
        TW_TRY(strangers_step(server));
        ranks_step(server);
        send_heartbeats(server);
    }
    return TW_OK;
}

/** Listen. If another job is just releasing the port, wait for it. */
static tw_status_t listen_patiently(server_t *server, const tw_job_t *job)
{
    int *const given = server->options->listener;
    if (given && *given >= 0) {
        server->listener = *given;
        *given = -1;
        return TW_OK;
    }
    for (;;) {
        server->listener = tw_socket_listen(job->master_addr, job->master_port);
        if (server->listener >= 0) {
            return TW_OK;
        }
        if (errno != EADDRINUSE || tw_time_ns() >= server->deadline_ns) {
            tw_error("rank 0: cannot listen on port %d: %s; TW_RENDEZVOUS_PORT chooses another",
                     job->master_port, strerror(errno));
            return errno == EADDRINUSE ? TW_ERR_CONFIG : TW_ERR_IO;
        }
        (void)poll(NULL, 0, LISTEN_RETRY_MS);
    }
}

/** Choose the device that leads to the first rank of another node, if there is one. */
static void choose_device(tw_rendezvous_t *rendezvous)
{
    int r = 1;
    while (r < rendezvous->world && rendezvous->members[r].node_id == rendezvous->members[0].node_id) {
        r++;
    }
    tw_socket_device(rendezvous->connections[r < rendezvous->world ? r : 1].fd, rendezvous->device,
                     sizeof(rendezvous->device));
    if (r < rendezvous->world) {
        memcpy(rendezvous->settings.device, rendezvous->device, sizeof(rendezvous->device));
    }
}

static tw_status_t send_members(tw_rendezvous_t *rendezvous)
{
    tw_msg_writer_t members = {0};
    tw_msg_members_write(&rendezvous->settings, rendezvous->members, (uint32_t)rendezvous->world, &members);
    for (int r = 1; r < rendezvous->world && !members.failed; r++) {
        (void)tw_connection_send(&rendezvous->connections[r], TW_MSG_MEMBERS, members.data, members.bytes);
    }
    const int failed = members.failed;
    tw_msg_writer_cleanup(&members);
    return failed ? TW_ERR_NO_MEMORY : TW_OK;
}

static void server_cleanup(server_t *server)
{
    if (server->listener >= 0) {
        close(server->listener);
    }
    for (int i = 0; i < server->n_strangers; i++) {
        tw_connection_cleanup(&server->strangers[i].connection);
    }
    free(server->instances);
    free(server->pollfds);
    free(server);
}

static server_t *server_create(tw_rendezvous_t *rendezvous, const tw_transport_options_t *options,
                               const tw_token_key_t *key)
{
    const size_t world = (size_t)rendezvous->world;
    server_t *server = calloc(1, sizeof(*server));
    if (!server) {
        return NULL;
    }
    server->rendezvous = rendezvous;
    server->options = options;
    server->key = key;
    server->listener = -1;
    server->n_joined = 1;
    server->deadline_ns = tw_connection_deadline(options->join_timeout);
    server->instances = calloc(world, sizeof(*server->instances));
    server->pollfds = calloc(1 + STRANGERS_MAX + world, sizeof(*server->pollfds));
    if (server->instances && server->pollfds) {
        return server;
    }
    server_cleanup(server);
    return NULL;
}

tw_status_t tw_rendezvous_serve(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                                const tw_transport_options_t *options, const tw_token_key_t *key)
{
    server_t *server = server_create(rendezvous, options, key);
    TW_FAIL_IF(!server, TW_ERR_NO_MEMORY, "rank 0: out of memory for a world of %d", rendezvous->world);
    tw_status_t status = listen_patiently(server, job);
    if (!status) {
        status = gather_ranks(server);
        if (status) {
            tw_error("rank 0: %s", server->refusal);
            reject_all(rendezvous, status, server->refusal);
        }
    }
    server_cleanup(server);
    if (status) {
        return status;
    }
    /* The port is free before any rank goes on, so that the next rendezvous can use it. */
    choose_device(rendezvous);
    return send_members(rendezvous);
}
