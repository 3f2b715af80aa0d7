/** Meets peers by a handle: listen, accept, dial. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "transport/control/socket.h"
#include "transport/devices.h"
#include "transport/p2p/handshake.h"
#include "transport/p2p/tcp.h"

/** Most handshakes at one time; if more come, the oldest are dropped. */
#define PENDING_MAX 64
#define SECRET_BYTES 32
#define MAGIC "TP2I"
#define MAGIC_BYTES 4
#define VERSION_BYTES 8

/** A handle's contents, on little-endian machines only, like UCX. The members before `version` are the same
 *  in all versions, so that an error can name another version. */
typedef struct handle {
    char magic[MAGIC_BYTES];
    uint32_t port;
    uint8_t address[16];
    uint8_t secret[SECRET_BYTES]; /**< random; the key is made of it and the token, if any */
    /** Thinwire's version, padded with zeros; empty in handles of the first versions */
    char version[VERSION_BYTES];
} handle_t;

static_assert(sizeof(handle_t) == TW_P2P_HANDLE_BYTES, "a handle has no holes");
static_assert(sizeof(TW_VERSION) <= VERSION_BYTES, "the version fits into a handle");

/** Delay before a dial tries again, after a busy listener has dropped it. */
#define REDIAL_NS 50000000u

struct tw_p2p_listener {
    TAILQ_ENTRY(tw_p2p_listener) entry;
    tw_p2p_t *p2p;
    int fd;
    int error; /**< errno that has ended the listener; 0: none */
    tw_token_key_t key;
    tw_handshake_t pending[PENDING_MAX]; /**< oldest first */
    int n_pending;
};

struct tw_p2p_dial {
    TAILQ_ENTRY(tw_p2p_dial) entry;
    tw_p2p_t *p2p;
    handle_t handle;
    tw_token_key_t key;
    tw_handshake_t handshake;
    tw_status_t status; /**< TW_OK: the peer can be taken */
    uint64_t retry_ns;  /**< time of the next attempt; 0: an attempt is under way */
};

static unsigned meetings_progress(tw_p2p_t *p2p);

static tw_status_t key_init(tw_token_key_t *key, const handle_t *handle, const char *token)
{
    char hex[2 * SECRET_BYTES + 1];
    for (int i = 0; i < SECRET_BYTES; i++) {
        snprintf(hex + 2 * (size_t)i, 3, "%02x", handle->secret[i]);
    }
    const size_t bytes = sizeof(hex) + (token ? strlen(token) : 0);
    char *text = malloc(bytes);
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (text) {
        snprintf(text, bytes, "%s%s", hex, token ? token : "");
        status = tw_token_key_init(key, text);
        sodium_memzero(text, bytes);
    }
    sodium_memzero(hex, sizeof(hex));
    free(text);
    return status;
}

/* ---- listening ----------------------------------------------------------------------------------------- */

static tw_status_t listener_open(tw_p2p_listener_t *listener, handle_t *handle, const char *token)
{
    char host[TW_DEVICES_ADDRESS_BYTES];
    tw_token_random(handle->secret, sizeof(handle->secret));
    TW_TRY(key_init(&listener->key, handle, token));
    listener->fd = tw_socket_listen(tw_devices_address_text(handle->address, host), 0);
    TW_FAIL_IF(listener->fd < 0, TW_ERR_IO, "%s: cannot listen for peers: %s", listener->p2p->name,
               strerror(errno));
    handle->port = (uint32_t)tw_socket_port(listener->fd);
    return TW_OK;
}

tw_status_t tw_p2p_listen(tw_p2p_t *p2p, const uint8_t address[16], const char *token,
                          uint8_t out_handle[TW_P2P_HANDLE_BYTES], tw_p2p_listener_t **out)
{
    handle_t handle = {.version = TW_VERSION};
    tw_p2p_listener_t *listener = calloc(1, sizeof(*listener));
    TW_FAIL_IF(!listener, TW_ERR_NO_MEMORY, "%s: out of memory for a listener", p2p->name);
    listener->p2p = p2p;
    listener->fd = -1;
    TAILQ_INSERT_TAIL(&p2p->listeners, listener, entry);
    p2p->meet = meetings_progress;
    memcpy(handle.magic, MAGIC, sizeof(handle.magic));
    memcpy(handle.address, address, sizeof(handle.address));
    tw_status_t status = listener_open(listener, &handle, token);
    if (status) {
        tw_p2p_listener_destroy(listener);
        return status;
    }
    memcpy(out_handle, &handle, sizeof(handle));
    *out = listener;
    return TW_OK;
}

static void send_away(tw_p2p_listener_t *listener, int i)
{
    tw_handshake_cleanup(&listener->pending[i]);
    listener->n_pending--;
    memmove(&listener->pending[i], &listener->pending[i + 1],
            (size_t)(listener->n_pending - i) * sizeof(listener->pending[0]));
}

/** Choose a handshake to drop: the oldest unproven one; if all are proven, the oldest. */
static int whom_to_send_away(const tw_p2p_listener_t *listener)
{
    for (int i = 0; i < listener->n_pending; i++) {
        if (listener->pending[i].until_ns && listener->pending[i].stage < TW_HANDSHAKE_OPENING) {
            return i;
        }
    }
    return 0;
}

static void accept_pending(tw_p2p_listener_t *listener)
{
    int fd;
    while ((fd = tw_socket_accept(listener->fd)) >= 0 || errno == ECONNABORTED || errno == EINTR) {
        if (fd < 0) {
            continue;
        }
        if (listener->n_pending == PENDING_MAX) {
            send_away(listener, whom_to_send_away(listener));
        }
        tw_handshake_init(&listener->pending[listener->n_pending++], listener->p2p, fd, TW_TOKEN_SERVER,
                          &listener->key);
    }
    listener->error = errno == EAGAIN ? 0 : errno;
}

/** Make progress. Returns the number of handshakes that have moved. */
static unsigned listener_progress(tw_p2p_listener_t *listener)
{
    unsigned n = 0;
    accept_pending(listener);
    for (int i = 0; i < listener->n_pending; i++) {
        tw_handshake_t *handshake = &listener->pending[i];
        const tw_handshake_stage_t before = handshake->stage;
        const tw_status_t status = tw_handshake_step(handshake);
        n += handshake->stage != before;
        if (status < 0) {
            char more[TW_STRANGERS_MORE_BYTES];
            if (tw_strangers_may_log(&listener->p2p->strangers, tw_time_ns(), more)) {
                tw_debug("%s: %s: not let in: %s%s", listener->p2p->name, handshake->connection.name,
                         tw_status_string(status), more);
            }
            send_away(listener, i--);
        }
    }
    return n;
}

tw_status_t tw_p2p_accept(tw_p2p_listener_t *listener, tw_p2p_peer_t **out)
{
    (void)tw_p2p_progress(listener->p2p);
    for (int i = 0; i < listener->n_pending; i++) {
        if (listener->pending[i].stage == TW_HANDSHAKE_DONE) {
            *out = tw_handshake_take(&listener->pending[i]);
            send_away(listener, i);
            return TW_OK;
        }
    }
    TW_FAIL_IF(listener->error, tw_status_from_errno(listener->error), "%s: cannot take a connection: %s",
               listener->p2p->name, strerror(listener->error));
    return TW_IN_PROGRESS;
}

void tw_p2p_listener_destroy(tw_p2p_listener_t *listener)
{
    if (!listener) {
        return;
    }
    while (listener->n_pending) {
        send_away(listener, listener->n_pending - 1);
    }
    if (listener->fd >= 0) {
        close(listener->fd);
    }
    TAILQ_REMOVE(&listener->p2p->listeners, listener, entry);
    tw_token_key_cleanup(&listener->key);
    free(listener);
}

/* ---- dialing ------------------------------------------------------------------------------------------- */

void tw_p2p_dial_cancel(tw_p2p_dial_t *dial)
{
    if (dial) {
        TAILQ_REMOVE(&dial->p2p->dials, dial, entry);
        tw_handshake_cleanup(&dial->handshake);
        tw_token_key_cleanup(&dial->key);
        free(dial);
    }
}

static void cannot_meet(const tw_p2p_t *p2p, const handle_t *handle, const char *why)
{
    char host[TW_DEVICES_ADDRESS_BYTES];
    tw_error("%s: %s port %u: cannot meet it: %s", p2p->name, tw_devices_address_text(handle->address, host),
             handle->port, why);
}

static tw_status_t dial_open(tw_p2p_dial_t *dial)
{
    const tw_tcp_device_t *device = dial->p2p->workers[TW_P2P_FIRST_NET_WORKER].tcp;
    const int fd = tw_socket_begin(dial->handle.address, (int)dial->handle.port, device ? device->index : 0);
    if (fd < 0) {
        cannot_meet(dial->p2p, &dial->handle, strerror(errno));
        return TW_ERR_IO;
    }
    tw_handshake_init(&dial->handshake, dial->p2p, fd, TW_TOKEN_CLIENT, &dial->key);
    return TW_OK;
}

/** Refuse a handle of another version, because other versions use other messages. */
static tw_status_t version_check(const tw_p2p_t *p2p, const handle_t *handle)
{
    char theirs[VERSION_BYTES + 1] = "", why[80];
    memcpy(theirs, handle->version, VERSION_BYTES);
    if (!strcmp(theirs, TW_VERSION)) {
        return TW_OK;
    }
    for (char *c = theirs; *c; c++) {
        *c = isprint((unsigned char)*c) ? *c : '?';
    }
    snprintf(why, sizeof(why), "it has Thinwire %s, this end has " TW_VERSION,
             theirs[0] ? theirs : "of an older version");
    cannot_meet(p2p, handle, why);
    return TW_ERR_CONFIG;
}

static tw_status_t dial_begin(tw_p2p_dial_t *dial, const char *token)
{
    TW_FAIL_IF(memcmp(dial->handle.magic, MAGIC, MAGIC_BYTES) != 0 || !dial->handle.port ||
                   dial->handle.port > UINT16_MAX,
               TW_ERR_FORMAT, "%s: that is no handle", dial->p2p->name);
    TW_TRY(version_check(dial->p2p, &dial->handle));
    TW_TRY(key_init(&dial->key, &dial->handle, token));
    return dial_open(dial);
}

tw_status_t tw_p2p_dial_start(tw_p2p_t *p2p, const uint8_t handle[TW_P2P_HANDLE_BYTES], const char *token,
                              tw_p2p_dial_t **out)
{
    tw_p2p_dial_t *dial = calloc(1, sizeof(*dial));
    TW_FAIL_IF(!dial, TW_ERR_NO_MEMORY, "%s: out of memory to meet a peer", p2p->name);
    dial->p2p = p2p;
    dial->status = TW_IN_PROGRESS;
    memcpy(&dial->handle, handle, sizeof(dial->handle));
    dial->handshake.connection.fd = -1;
    TAILQ_INSERT_TAIL(&p2p->dials, dial, entry);
    p2p->meet = meetings_progress;
    tw_status_t status = dial_begin(dial, token);
    if (status) {
        tw_p2p_dial_cancel(dial);
        return status;
    }
    *out = dial;
    return TW_OK;
}

/** Return 1 if this end was stopped or busy for longer than the listener waits for a stranger. */
static int was_late(const tw_handshake_t *handshake)
{
    const tw_p2p_t *p2p = handshake->p2p;
    return tw_time_ns() - handshake->hello_ns > (uint64_t)(p2p->params.timeout_sec * 1e9);
}

/** Return the status of a lost connection: TW_ERR_AUTH if the other end closed without an answer, as it does
 *  when the proof is wrong. */
static tw_status_t dial_status(const tw_handshake_t *handshake, tw_status_t status)
{
    const int is_told = handshake->stage == TW_HANDSHAKE_TELLING && !was_late(handshake);
    return status == TW_ERR_IO && is_told ? TW_ERR_AUTH : status;
}

/** Return 1 if a dial should try again: the listener dropped its connection before it was proven, because it
 *  was busy, had too many handshakes, or took this late end for a stranger. */
static int is_worth_another_try(const tw_p2p_dial_t *dial)
{
    const tw_handshake_stage_t stage = dial->handshake.stage;
    return dial->status == TW_ERR_IO && (stage == TW_HANDSHAKE_PROVING || stage == TW_HANDSHAKE_TELLING);
}

static unsigned dial_progress(tw_p2p_dial_t *dial)
{
    if (dial->status != TW_IN_PROGRESS || tw_time_ns() < dial->retry_ns) {
        return 0;
    }
    if (dial->retry_ns) {
        dial->retry_ns = 0;
        dial->status = dial_open(dial);
        dial->status = dial->status ? dial->status : TW_IN_PROGRESS;
        return 1;
    }
    const tw_handshake_stage_t before = dial->handshake.stage;
    dial->status = dial_status(&dial->handshake, tw_handshake_step(&dial->handshake));
    if (is_worth_another_try(dial)) {
        tw_handshake_cleanup(&dial->handshake);
        dial->status = TW_IN_PROGRESS;
        dial->retry_ns = tw_time_ns() + REDIAL_NS;
    } else if (dial->status < 0) {
        const int error = dial->handshake.connection.error;
        cannot_meet(dial->p2p, &dial->handle,
                    dial->status == TW_ERR_IO && error ? strerror(error) : tw_status_string(dial->status));
    }
    return dial->handshake.stage != before;
}

tw_status_t tw_p2p_dial_test(tw_p2p_dial_t *dial, tw_p2p_peer_t **out)
{
    (void)tw_p2p_progress(dial->p2p);
    const tw_status_t status = dial->status;
    if (!status) {
        *out = tw_handshake_take(&dial->handshake);
    }
    if (status != TW_IN_PROGRESS) {
        tw_p2p_dial_cancel(dial);
    }
    return status;
}

/* ---- progress ------------------------------------------------------------------------------------------ */

static unsigned meetings_progress(tw_p2p_t *p2p)
{
    tw_p2p_listener_t *listener;
    tw_p2p_dial_t *dial;
    unsigned n = 0;
    TAILQ_FOREACH(listener, &p2p->listeners, entry)
    {
        n += listener_progress(listener);
    }
    TAILQ_FOREACH(dial, &p2p->dials, entry)
    {
        n += dial_progress(dial);
    }
    return n;
}
