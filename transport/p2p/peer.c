/** Peers, the cards that describe them, and the streams to them. */
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "transport/control/messages.h"
#include "transport/control/socket.h"
#include "transport/p2p/state.h"
#include "transport/p2p/tcp.h"

/** Bytes of a chunk in shared memory. One stream suffices; chunks let several messages progress together. */
#define SHM_CHUNK_BYTES ((size_t)4 << 20)
/** Bytes of a chunk over the network if one stream carries all data. */
#define LONG_CHUNK_BYTES ((size_t)8 << 20)

/* ---- failing ------------------------------------------------------------------------------------------- */

/** Fail a peer. Without hooks, this is logged once. If memory runs out here, the peer's timeout ends the
 *  requests that wait for it. */
void tw_p2p_peer_fail(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const char *why)
{
    if (p2p->params.hooks) {
        p2p->params.hooks->failed(p2p->params.arg, peer ? peer->id : -1, why);
        return;
    }
    if (peer && !peer->has_failed) {
        peer->has_failed = 1;
        p2p->n_events++;
        tw_error("%s: peer %d%s: failed: %s", p2p->name, peer->id, peer->where, why);
    } else if (!peer) {
        tw_error("%s: %s", p2p->name, why);
    }
}

void tw_p2p_stream_break(tw_p2p_stream_t *stream, const char *why)
{
    tw_p2p_peer_t *peer = stream->peer;
    tw_p2p_t *p2p = peer->p2p;
    if (stream->broken) {
        return;
    }
    stream->broken = 1;
    p2p->n_events++;
    tw_debug("%s: peer %d: connection lost: %s", p2p->name, peer->id, why);
    if (p2p->params.hooks) {
        p2p->params.hooks->lost(p2p->params.arg, peer->id, why);
    } else if (!stream->is_ended && !peer->is_closing) {
        char text[128];
        snprintf(text, sizeof(text), "connection lost: %s", why);
        tw_p2p_peer_fail(p2p, peer, text);
    }
}

/* ---- cards --------------------------------------------------------------------------------------------- */

/** Return 1 if all workers take GPU memory, because a message in it may be for any peer. */
int tw_p2p_takes_cuda(const tw_p2p_t *p2p)
{
    int n = 0, n_taking = 0;
    for (int i = 0; i < p2p->n_workers; i++) {
        n += p2p->workers[i].carrier != NULL;
        n_taking += p2p->workers[i].takes_cuda;
    }
    return n > 0 && n_taking == n;
}

/** The first part of a card: what an end says about itself. */
typedef struct about {
    uint8_t takes_cuda, seals, has_aes, sends_on_credit;
    uint32_t streams; /**< streams per device, over TCP */
} about_t;

/** Make this end's card: an about_t, then the addresses of its workers. */
tw_status_t tw_p2p_card(const tw_p2p_t *p2p, void **card, size_t *bytes)
{
    const about_t about = {.takes_cuda = (uint8_t)tw_p2p_takes_cuda(p2p),
                           .seals = (uint8_t)p2p->params.encrypt,
                           .has_aes = (uint8_t)tw_seal_has_aes(),
                           .sends_on_credit = p2p->params.sends_on_credit != 0,
                           .streams = (uint32_t)p2p->params.streams};
    tw_msg_blob_t own[1 + TW_P2P_WORKERS_MAX] = {{(const uint8_t *)&about, sizeof(about)}};
    tw_msg_writer_t list = {0};
    for (int i = 0; i < p2p->n_workers; i++) {
        const tw_p2p_worker_t *worker = &p2p->workers[i];
        own[1 + i] = (tw_msg_blob_t){worker->address, (uint32_t)worker->address_bytes};
    }
    tw_msg_blobs_write(own, 1 + (uint32_t)p2p->n_workers, &list);
    if (list.failed) {
        tw_error("%s: out of memory for its addresses", p2p->name);
        tw_msg_writer_cleanup(&list);
        return TW_ERR_NO_MEMORY;
    }
    *card = list.data;
    *bytes = list.bytes;
    return TW_OK;
}

static tw_status_t card_parse(const tw_p2p_peer_params_t *params, const uint8_t *bytes, tw_msg_blob_t *card,
                              about_t *about, uint32_t *n_addresses)
{
    uint32_t n = 0;
    TW_TRY(tw_msg_blobs_parse(bytes, params->card_bytes, 1 + TW_P2P_WORKERS_MAX, card, &n));
    if (!n || card[0].bytes != sizeof(*about)) {
        return TW_ERR_FORMAT;
    }
    memcpy(about, card[0].data, sizeof(*about));
    *n_addresses = n - 1;
    return about->takes_cuda > 1 || about->seals > 1 || about->has_aes > 1 || about->sends_on_credit > 1
               ? TW_ERR_FORMAT
               : TW_OK;
}

/** Compare the settings that must be equal at both ends of a TCP connection. TW_ERR_CONFIG (logged). */
static tw_status_t settings_compare(const tw_p2p_peer_t *peer, const about_t *theirs)
{
    const tw_p2p_params_t *own = &peer->p2p->params;
    TW_FAIL_IF(theirs->seals != !!own->encrypt, TW_ERR_CONFIG,
               "%s: peer %d: TW_NET_ENCRYPT is %s there and %s here", peer->p2p->name, peer->id,
               theirs->seals ? "y" : "n", own->encrypt ? "y" : "n");
    TW_FAIL_IF(theirs->streams != (uint32_t)own->streams, TW_ERR_CONFIG,
               "%s: peer %d: TW_NET_STREAMS is %u there and %d here", peer->p2p->name, peer->id,
               theirs->streams, own->streams);
    TW_FAIL_IF(theirs->sends_on_credit != (own->sends_on_credit != 0), TW_ERR_CONFIG,
               "%s: peer %d: long messages go %s there and %s here", peer->p2p->name, peer->id,
               theirs->sends_on_credit ? "at once" : "when asked for",
               own->sends_on_credit ? "at once" : "when asked for");
    return TW_OK;
}

/* ---- peers --------------------------------------------------------------------------------------------- */

static void stream_init(tw_p2p_stream_t *stream, tw_p2p_peer_t *peer, int worker,
                        const tw_msg_blob_t *addresses)
{
    *stream = (tw_p2p_stream_t){.peer = peer,
                                .worker = &peer->p2p->workers[worker],
                                .address = addresses[worker].data,
                                .address_bytes = addresses[worker].bytes};
    TAILQ_INIT(&stream->waiting);
}

/** Make the streams. This end's device i connects to the peer's device i. */
static tw_status_t streams_init(tw_p2p_peer_t *peer, int is_near, int n_devices,
                                const tw_msg_blob_t *addresses)
{
    peer->n_streams = is_near ? 1 : 1 + n_devices * peer->p2p->params.streams;
    peer->streams = calloc((size_t)peer->n_streams, sizeof(*peer->streams));
    if (!peer->streams) {
        peer->n_streams = 0;
        return TW_ERR_NO_MEMORY;
    }
    for (int s = 0; s < peer->n_streams; s++) {
        const int device = s ? (s - 1) % n_devices : 0;
        stream_init(&peer->streams[s], peer, is_near ? TW_P2P_SHM_WORKER : TW_P2P_FIRST_NET_WORKER + device,
                    addresses);
    }
    return TW_OK;
}

static int addresses_are_sound(const tw_p2p_t *p2p, int n_devices, const tw_msg_blob_t *addresses)
{
    int is_sound = n_devices > 0;
    for (int i = TW_P2P_FIRST_NET_WORKER; i < TW_P2P_FIRST_NET_WORKER + n_devices; i++) {
        const tw_p2p_carrier_t *carrier = p2p->workers[i].carrier;
        is_sound &= !carrier->is_tcp || carrier->address_is_sound(addresses[i].data, addresses[i].bytes);
    }
    return is_sound;
}

/** Set the key and the cipher of the peer's TCP connections. */
static tw_status_t security_init(tw_p2p_peer_t *peer, const tw_p2p_peer_params_t *params,
                                 const about_t *about)
{
    const tw_p2p_t *p2p = peer->p2p;
    TW_FAIL_IF(!params->key && !p2p->has_key, TW_ERR_AUTH,
               "%s: peer %d: there is no secret that it could prove itself with", p2p->name, peer->id);
    TW_TRY(settings_compare(peer, about));
    peer->connects = params->connects;
    memcpy(peer->key, params->key ? params->key : p2p->key.bytes, sizeof(peer->key));
    peer->cipher = !p2p->params.encrypt                  ? TW_CIPHER_NONE
                   : about->has_aes && tw_seal_has_aes() ? TW_CIPHER_AES256_GCM
                                                         : TW_CIPHER_CHACHA20_POLY1305;
    return TW_OK;
}

/** Choose the size of chunks. Each chunk has a cost, and with one data stream there is nothing to spread. But
 *  there is a limit, because when a chunk is canceled half-way, its rest is copied. */
static size_t chunk_bytes(const tw_p2p_peer_t *peer, int is_near)
{
    const tw_p2p_params_t *params = &peer->p2p->params;
    if (is_near) {
        return SHM_CHUNK_BYTES;
    }
    return peer->takes_long && params->chunk_bytes < LONG_CHUNK_BYTES ? LONG_CHUNK_BYTES
                                                                      : params->chunk_bytes;
}

/** Return 1 if one stream over TCP carries all data, so that longer messages need not be spread. */
static int has_one_stream(const tw_p2p_peer_t *peer)
{
    return tw_p2p_peer_is_over_tcp(peer) && peer->n_streams == 2;
}

/** Return the length up to which a message is sent without asking. */
static size_t eager_bytes(const tw_p2p_peer_t *peer)
{
    const tw_p2p_params_t *params = &peer->p2p->params;
    size_t bytes = params->eager_bytes;
    if (peer->takes_long) {
        bytes = TW_P2P_EAGER_MAX;
    } else if (has_one_stream(peer) && bytes < params->eager_alone_bytes) {
        bytes = params->eager_alone_bytes;
    }
    return bytes < TW_P2P_EAGER_MAX ? bytes : TW_P2P_EAGER_MAX;
}

static void credit_init(tw_p2p_peer_t *peer)
{
    const tw_p2p_credit_t common = {
        .limit = TW_P2P_CREDIT_BYTES, .step = TW_P2P_CREDIT_STEP, .left = TW_P2P_CREDIT_BYTES};
    const tw_p2p_credit_t large = {
        .limit = TW_P2P_LONG_CREDIT_BYTES, .step = TW_P2P_LONG_CREDIT_STEP, .left = TW_P2P_LONG_CREDIT_BYTES};
    /* Credit for two of the longest eager messages: a receiver that is late keeps these in memory. */
    const size_t two = 2 * (peer->eager_bytes + TW_P2P_CREDIT_MESSAGE);
    const tw_p2p_credit_t little = {.limit = two, .step = peer->eager_bytes / 2, .left = two};
    const int is_alone = peer->eager_bytes > peer->p2p->params.eager_bytes;
    peer->credit[0] = common;
    peer->credit[1] = peer->takes_long ? large : is_alone ? little : common;
}

static tw_status_t peer_connect(tw_p2p_peer_t *peer, const tw_p2p_peer_params_t *params)
{
    tw_msg_blob_t card[1 + TW_P2P_WORKERS_MAX] = {{0}};
    const tw_msg_blob_t *addresses = &card[1];
    const int n_own = peer->p2p->n_workers - TW_P2P_FIRST_NET_WORKER;
    uint32_t n_addresses = 0;
    int n_devices = 0;
    about_t about;
    peer->card = malloc(params->card_bytes + 1);
    if (!peer->card) {
        return TW_ERR_NO_MEMORY;
    }
    memcpy(peer->card, params->card, params->card_bytes);
    tw_status_t status = card_parse(params, peer->card, card, &about, &n_addresses);
    while (!status && n_devices < n_own && TW_P2P_FIRST_NET_WORKER + n_devices < (int)n_addresses) {
        n_devices++;
    }
    TW_FAIL_IF(status || (params->is_near ? !addresses[TW_P2P_SHM_WORKER].bytes
                                          : !addresses_are_sound(peer->p2p, n_devices, addresses)),
               TW_ERR_FORMAT, "%s: peer %d: its list of addresses makes no sense", peer->p2p->name, peer->id);
    peer->takes_cuda = about.takes_cuda;
    if (!params->is_near && peer->p2p->workers[TW_P2P_FIRST_NET_WORKER].carrier->is_tcp) {
        TW_TRY(security_init(peer, params, &about));
    }
    TW_TRY(streams_init(peer, params->is_near, n_devices, addresses));
    peer->takes_long = peer->p2p->params.sends_on_credit && has_one_stream(peer);
    peer->chunk_bytes = chunk_bytes(peer, params->is_near);
    peer->eager_bytes = eager_bytes(peer);
    /* Messages that are sent without asking use stream 0, chunks the others. */
    peer->credit_stream = has_one_stream(peer) && peer->eager_bytes >= TW_P2P_LONG_FROM;
    credit_init(peer);
    return TW_OK;
}

/** Make `peers` long enough for this id. Returns 0 if out of memory. */
static int peers_grow(tw_p2p_t *p2p, int id)
{
    const int n = id + 1 > p2p->n_peers ? id + 1 : p2p->n_peers;
    tw_p2p_peer_t **grown = realloc(p2p->peers, (size_t)n * sizeof(tw_p2p_peer_t *));
    if (!grown) {
        return 0;
    }
    for (int i = p2p->n_peers; i < n; i++) {
        grown[i] = NULL;
    }
    p2p->peers = grown;
    p2p->n_peers = n;
    return 1;
}

/** Reserve an id that was never used: a late message must not be taken for another peer's. */
int tw_p2p_id_reserve(tw_p2p_t *p2p)
{
    return peers_grow(p2p, p2p->n_peers) ? p2p->n_peers - 1 : -1;
}

tw_status_t tw_p2p_peer_add(tw_p2p_t *p2p, const tw_p2p_peer_params_t *params, tw_p2p_peer_t **out)
{
    const int id = params->id < 0 ? p2p->n_peers : params->id;
    tw_p2p_peer_t *peer = calloc(1, sizeof(*peer));
    tw_status_t status = peer && peers_grow(p2p, id) ? TW_OK : TW_ERR_NO_MEMORY;
    if (!status) {
        p2p->peers[id] = peer;
        peer->p2p = p2p;
        peer->id = id;
        peer->known_as = params->known_as;
        peer->takes_cuda = tw_p2p_takes_cuda(p2p);
        TAILQ_INIT(&peer->receives);
        TAILQ_INIT(&peer->arrivals);
        TAILQ_INIT(&peer->sending);
        status = params->is_self ? TW_OK : peer_connect(peer, params);
    }
    if (!status) {
        *out = peer;
        return TW_OK;
    }
    if (status == TW_ERR_NO_MEMORY) {
        tw_error("%s: out of memory for a peer", p2p->name);
    }
    if (peer && peer->p2p) {
        tw_p2p_peer_free(peer);
    } else {
        free(peer);
    }
    return status;
}

void tw_p2p_peer_free(tw_p2p_peer_t *peer)
{
    tw_p2p_arrival_t *arrival;
    while ((arrival = TAILQ_FIRST(&peer->arrivals))) {
        TAILQ_REMOVE(&peer->arrivals, arrival, entry);
        free(arrival);
    }
    peer->p2p->peers[peer->id] = NULL;
    sodium_memzero(peer->key, sizeof(peer->key));
    free(peer->streams);
    free(peer->card);
    free(peer);
}

/* ---- queries ------------------------------------------------------------------------------------------- */

int tw_p2p_peer_id(const tw_p2p_peer_t *peer)
{
    return peer->id;
}

tw_p2p_peer_t *tw_p2p_peer_find(const tw_p2p_t *p2p, int id)
{
    return id >= 0 && id < p2p->n_peers ? p2p->peers[id] : NULL;
}

int tw_p2p_peer_has_failed(const tw_p2p_peer_t *peer)
{
    return peer->has_failed;
}

int tw_p2p_peer_takes_cuda(const tw_p2p_peer_t *peer)
{
    return peer->takes_cuda;
}

tw_p2p_counts_t tw_p2p_peer_counts(const tw_p2p_peer_t *peer)
{
    return peer->counts;
}

int tw_p2p_peer_has_closed(const tw_p2p_peer_t *peer)
{
    return peer->n_streams > 0 && peer->n_byes == peer->n_streams;
}

int tw_p2p_peer_is_over_tcp(const tw_p2p_peer_t *peer)
{
    return peer->n_streams > 0 && peer->streams[0].worker->carrier->is_tcp;
}

int tw_p2p_peer_has_left(const tw_p2p_peer_t *peer)
{
    const tw_p2p_t *p2p = peer->p2p;
    return p2p->params.hooks && p2p->params.hooks->has_left(p2p->params.arg, peer->id);
}

int tw_p2p_peer_is_open(const tw_p2p_peer_t *peer)
{
    const int is_tcp = tw_p2p_peer_is_over_tcp(peer);
    for (int s = 0; s < peer->n_streams; s++) {
        if (peer->streams[s].is_busy || (is_tcp && !peer->streams[s].is_open)) {
            return 0;
        }
    }
    return 1;
}

void tw_p2p_peer_mark(const tw_p2p_peer_t *peer, int traffic_class)
{
    for (int s = 0; s < peer->n_streams && traffic_class >= 0; s++) {
        if (peer->streams[s].link) {
            tw_socket_mark(peer->streams[s].link->fd, traffic_class);
        }
    }
}

tw_status_t tw_p2p_peer_greet(tw_p2p_peer_t *peer)
{
    tw_status_t status = TW_OK;
    for (int s = 0; s < peer->n_streams && !status && tw_p2p_peer_is_over_tcp(peer) && peer->connects; s++) {
        status = peer->streams[s].worker->carrier->connect(&peer->streams[s]);
    }
    return status;
}
