/* Measuring the model: all members stream to a neighbour at once, as they do in a collective operation, so that ranks
 * that share a link or a processor are measured sharing it. The receiver acknowledges every message; the sender's
 * acknowledgement times give latency and speed. A stream's speed is that of its later part: shaped links and deep
 * queues let the first hundred kilobytes or two through faster than what follows. */
#include "collectives/measure.h"
#include "collectives/topo.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW 16 /**< most messages under way */
#define BURST_WINDOW 4
#define BURST_COUNT 24
#define BURST_WARM 8 /**< messages that only use up what the link saved while it was idle */
#define BURST_REPEATS 3
#define BURST_MIN_BYTES ((size_t)32 << 10)
#define BURST_MAX_BYTES ((size_t)128 << 10)
#define BURST_MIN_SEC 200e-6 /**< a shorter burst says little: repeat with larger messages */
#define PING_COUNT 12
#define FLOOD_COUNT 64
#define SMALL_BYTES 8

enum { TAG_DATA, TAG_ACK, TAG_GATHER, TAG_BROADCAST, TAG_COUNT };
_Static_assert(TAG_COUNT <= TW_COLL_MODEL_TAGS, "the caller reserves TW_COLL_MODEL_TAGS tags");

/** Neighbours on one tier. */
typedef struct neighbours {
    int to;    /**< member, or -1: nobody on this tier */
    int *from; /**< [n_from] members */
    int n_from;
    int sharing; /**< members of this node that send at the same time */
} neighbours_t;

/* ---- requests -------------------------------------------------------------------------------------------- */

/** TW_OK if the request is done or there is none. */
static tw_status_t request_done(tw_transport_t *transport, tw_transport_request_t **request)
{
    if (*request == NULL) {
        return TW_OK;
    }
    tw_status_t status = tw_transport_test(transport, *request);
    if (status != TW_IN_PROGRESS) {
        *request = NULL;
    }
    return status;
}

static tw_status_t step(tw_transport_t *transport)
{
    tw_status_t status = tw_transport_progress(transport);
    if (status == TW_IN_PROGRESS) {
        status = tw_transport_sleep(transport, 0.1);
    }
    return status < 0 ? status : TW_OK;
}

static void cancel_all(tw_transport_t *transport, tw_transport_request_t **requests, int n)
{
    for (int i = 0; i < n; i++) {
        if (requests[i] != NULL) {
            tw_transport_cancel(transport, requests[i]);
            requests[i] = NULL;
        }
    }
}

static tw_status_t wait_all(tw_transport_t *transport, tw_transport_request_t **requests, int n)
{
    for (int i = 0; i < n; i++) {
        tw_status_t status;
        while ((status = request_done(transport, &requests[i])) == TW_IN_PROGRESS) {
            if ((status = step(transport)) != TW_OK) {
                break;
            }
        }
        if (status != TW_OK) {
            cancel_all(transport, requests, n);
            return status;
        }
    }
    return TW_OK;
}

/** Every member's `bytes` to member 0, in `all` there. */
static tw_status_t gather(const tw_coll_peers_t *peers, void *mine, size_t bytes, char *all)
{
    int n = peers->topo->rank == 0 ? peers->topo->world : 1;
    tw_transport_request_t *requests[n];

    memset(requests, 0, sizeof(requests));
    if (peers->topo->rank != 0) {
        tw_status_t status = tw_transport_send_post(peers->transport, peers->topo->peer[0],
                                                    peers->tag + TAG_GATHER, mine, bytes, &requests[0]);
        return status == TW_OK ? wait_all(peers->transport, requests, 1) : status;
    }
    memcpy(all, mine, bytes);
    for (int i = 1; i < n; i++) {
        tw_status_t status =
            tw_transport_recv_post(peers->transport, peers->topo->peer[i], peers->tag + TAG_GATHER,
                                   all + (size_t)i * bytes, bytes, &requests[i]);
        if (status != TW_OK) {
            cancel_all(peers->transport, requests, n);
            return status;
        }
    }
    return wait_all(peers->transport, requests, n);
}

/** Member 0's `bytes` to every member. */
static tw_status_t broadcast(const tw_coll_peers_t *peers, void *data, size_t bytes)
{
    int n = peers->topo->rank == 0 ? peers->topo->world : 1;
    tw_transport_request_t *requests[n];
    tw_status_t status = TW_OK;

    memset(requests, 0, sizeof(requests));
    if (peers->topo->rank != 0) {
        status = tw_transport_recv_post(peers->transport, peers->topo->peer[0], peers->tag + TAG_BROADCAST,
                                        data, bytes, &requests[0]);
    }
    for (int i = 1; i < n && status == TW_OK; i++) {
        status = tw_transport_send_post(peers->transport, peers->topo->peer[i], peers->tag + TAG_BROADCAST,
                                        data, bytes, &requests[i]);
    }
    if (status != TW_OK) {
        cancel_all(peers->transport, requests, n);
        return status;
    }
    return wait_all(peers->transport, requests, n);
}

/** All members leave together; they agree whether one of them wants to. */
static tw_status_t agree_any(const tw_coll_peers_t *peers, int *flag)
{
    char wishes[peers->topo->world], wish = (char)*flag;
    tw_status_t status = gather(peers, &wish, 1, wishes);

    if (status == TW_OK && peers->topo->rank == 0) {
        for (int i = 0; i < peers->topo->world; i++) {
            wish |= wishes[i];
        }
    }
    if (status == TW_OK) {
        status = broadcast(peers, &wish, 1);
    }
    *flag = wish;
    return status;
}

/* ---- streams --------------------------------------------------------------------------------------------- */

/** One direction between two members: a few messages under way, each acknowledged. */
typedef struct stream {
    int peer; /**< transport rank */
    int posted, done;
    tw_transport_request_t *data[WINDOW], *acks[WINDOW];
} stream_t;

typedef struct burst {
    const tw_coll_peers_t *peers;
    const neighbours_t *near;
    size_t bytes;      /**< of a message */
    int count;         /**< messages */
    int window;        /**< messages under way: 1 to WINDOW */
    double *ack_sec;   /**< [count] when each message of ours was acknowledged */
    stream_t *streams; /**< [n_streams] first the one we send, then those we receive */
    int n_streams;
    char *buffer; /**< one message to send, then WINDOW messages for each stream received */
} burst_t;

static tw_status_t post_outgoing(burst_t *burst, stream_t *stream)
{
    tw_transport_t *transport = burst->peers->transport;
    int slot = stream->posted % burst->window;
    tw_status_t status = tw_transport_recv_post(transport, stream->peer, burst->peers->tag + TAG_ACK, NULL, 0,
                                                &stream->acks[slot]);
    if (status == TW_OK) {
        stream->posted++;
        status = tw_transport_send_post(transport, stream->peer, burst->peers->tag + TAG_DATA, burst->buffer,
                                        burst->bytes, &stream->data[slot]);
    }
    return status;
}

static tw_status_t advance_outgoing(burst_t *burst, stream_t *stream)
{
    tw_status_t status = TW_OK;

    while (stream->done < burst->count && status == TW_OK) {
        while (stream->posted < burst->count && stream->posted - stream->done < burst->window &&
               status == TW_OK) {
            status = post_outgoing(burst, stream);
        }
        int slot = stream->done % burst->window;
        if (status == TW_OK) {
            status = request_done(burst->peers->transport, &stream->acks[slot]);
        }
        if (status == TW_OK) {
            status = request_done(burst->peers->transport, &stream->data[slot]);
        }
        if (status == TW_OK) {
            burst->ack_sec[stream->done++] = tw_time_sec();
        }
    }
    return status;
}

static tw_status_t advance_incoming(burst_t *burst, int index)
{
    stream_t *stream = &burst->streams[index];
    tw_transport_t *transport = burst->peers->transport;
    char *buffer = burst->buffer + (1 + (size_t)(index - 1) * (size_t)burst->window) * burst->bytes;
    tw_status_t status = TW_OK;

    while (stream->done < burst->count && status == TW_OK) {
        while (stream->posted < burst->count && stream->posted - stream->done < burst->window &&
               status == TW_OK) {
            int slot = stream->posted % burst->window;
            status = tw_transport_recv_post(transport, stream->peer, burst->peers->tag + TAG_DATA,
                                            buffer + (size_t)slot * burst->bytes, burst->bytes,
                                            &stream->data[slot]);
            stream->posted += status == TW_OK;
        }
        int slot = stream->done % burst->window;
        if (status == TW_OK) {
            status = request_done(transport, &stream->data[slot]);
        }
        if (status == TW_OK) { /* the acknowledgement a window ago */
            status = request_done(transport, &stream->acks[slot]);
        }
        if (status == TW_OK) {
            status = tw_transport_send_post(transport, stream->peer, burst->peers->tag + TAG_ACK, NULL, 0,
                                            &stream->acks[slot]);
            stream->done += status == TW_OK;
        }
    }
    return status;
}

/** TW_OK when every stream is through. */
static tw_status_t advance(burst_t *burst)
{
    tw_status_t status = TW_OK;

    for (int i = 0; i < burst->n_streams; i++) {
        tw_status_t one = i == 0 ? advance_outgoing(burst, &burst->streams[0]) : advance_incoming(burst, i);
        if (one != TW_OK && status >= 0) {
            status = one;
        }
    }
    return status;
}

static tw_status_t run_streams(burst_t *burst)
{
    tw_transport_t *transport = burst->peers->transport;
    tw_status_t status;

    while ((status = advance(burst)) == TW_IN_PROGRESS) {
        if ((status = step(transport)) != TW_OK) {
            break;
        }
    }
    for (int i = 0; i < burst->n_streams; i++) {
        if (status == TW_OK) {
            status = wait_all(transport, burst->streams[i].acks, WINDOW);
        }
    }
    for (int i = 0; i < burst->n_streams; i++) {
        cancel_all(transport, burst->streams[i].acks, WINDOW);
        cancel_all(transport, burst->streams[i].data, WINDOW);
    }
    return status;
}

/** Send to the neighbour while the others do the same. All members take part in the agreement that starts it, also
 *  those without neighbours. */
static tw_status_t exchange(burst_t *burst)
{
    const tw_coll_peers_t *peers = burst->peers;
    const neighbours_t *near = burst->near;
    stream_t streams[1 + near->n_from];
    int flag = 0;

    burst->streams = streams;
    burst->n_streams = 1 + near->n_from;
    burst->buffer = tw_buffer_alloc_zero((1 + (size_t)near->n_from * (size_t)burst->window) * burst->bytes);
    if (burst->buffer == NULL) {
        tw_error("out of memory measuring the links");
        return TW_ERR_NO_MEMORY;
    }
    memset(streams, 0, sizeof(streams));
    streams[0].peer = near->to < 0 ? -1 : peers->topo->peer[near->to];
    streams[0].done = near->to < 0 ? burst->count : 0;
    for (int i = 0; i < near->n_from; i++) {
        streams[1 + i].peer = peers->topo->peer[near->from[i]];
    }
    tw_status_t status = agree_any(peers, &flag);
    if (status == TW_OK) {
        status = run_streams(burst);
    }
    tw_buffer_free(burst->buffer);
    return status;
}

/* ---- links ----------------------------------------------------------------------------------------------- */

static double max2(double a, double b)
{
    return a > b ? a : b;
}

/** Half of the quickest round trip, and the time of a small message in a stream of them. */
static tw_status_t measure_latency(const tw_coll_peers_t *peers, const neighbours_t *near,
                                   tw_tier_sample_t *out)
{
    double ack_sec[FLOOD_COUNT];
    burst_t pings = {.peers = peers, .near = near, .bytes = SMALL_BYTES, .count = PING_COUNT, .window = 1};
    burst_t flood = {
        .peers = peers, .near = near, .bytes = SMALL_BYTES, .count = FLOOD_COUNT, .window = WINDOW};

    pings.ack_sec = flood.ack_sec = ack_sec;
    tw_status_t status = exchange(&pings);
    if (status != TW_OK) {
        return status;
    }
    if (near->to >= 0) {
        out->alpha_sec = ack_sec[1] - ack_sec[0];
        for (int i = 2; i < PING_COUNT; i++) {
            double trip_sec = ack_sec[i] - ack_sec[i - 1];
            out->alpha_sec = trip_sec < out->alpha_sec ? trip_sec : out->alpha_sec;
        }
        out->alpha_sec /= 2;
    }
    status = exchange(&flood);
    if (status == TW_OK && near->to >= 0) {
        out->message_sec = (ack_sec[FLOOD_COUNT - 1] - ack_sec[0]) / (FLOOD_COUNT - 1);
    }
    return status;
}

/** One burst: time per byte of the node's link, and the share of it that the processor was busy. The latter counts
 *  spinning, too: an upper bound. */
static tw_status_t measure_burst(burst_t *burst, tw_tier_sample_t *out)
{
    double cpu_sec = tw_measure_thread_sec(), start_sec = tw_time_sec();
    tw_status_t status = exchange(burst);

    if (status != TW_OK || burst->near->to < 0) {
        return status;
    }
    out->busy = (tw_measure_thread_sec() - cpu_sec) / (tw_time_sec() - start_sec);
    out->beta_sec = (burst->ack_sec[BURST_COUNT - 1] - burst->ack_sec[BURST_WARM - 1]) /
                    ((double)burst->bytes * (BURST_COUNT - BURST_WARM) * burst->near->sharing);
    return TW_OK;
}

static int compare_speed(const void *a, const void *b)
{
    double x = ((const tw_tier_sample_t *)a)->beta_sec, y = ((const tw_tier_sample_t *)b)->beta_sec;
    return (x > y) - (x < y);
}

/** Speed of the node's link: the median of a few bursts, of larger messages until the clock can tell. */
static tw_status_t measure_speed(const tw_coll_peers_t *peers, const neighbours_t *near,
                                 tw_tier_sample_t *out)
{
    double ack_sec[BURST_COUNT];
    burst_t burst = {
        .peers = peers, .near = near, .count = BURST_COUNT, .window = BURST_WINDOW, .ack_sec = ack_sec};
    int again = 1;

    for (size_t bytes = BURST_MIN_BYTES; again && bytes <= BURST_MAX_BYTES; bytes *= 4) {
        tw_tier_sample_t bursts[BURST_REPEATS] = {{.beta_sec = 0}};
        burst.bytes = bytes;
        for (int i = 0; i < BURST_REPEATS; i++) {
            tw_status_t status = measure_burst(&burst, &bursts[i]);
            if (status != TW_OK) {
                return status;
            }
        }
        qsort(bursts, BURST_REPEATS, sizeof(bursts[0]), compare_speed);
        out->beta_sec = bursts[BURST_REPEATS / 2].beta_sec;
        out->busy = bursts[BURST_REPEATS / 2].busy;
        again = out->beta_sec * (double)bytes < BURST_MIN_SEC / BURST_COUNT;
        tw_status_t status = agree_any(peers, &again);
        if (status != TW_OK) {
            return status;
        }
    }
    return TW_OK;
}

/** What longer messages that wait for one another cost beyond their bytes and the acknowledgement: the best of a few. */
static tw_status_t measure_turn(const tw_coll_peers_t *peers, const neighbours_t *near, tw_tier_sample_t *out)
{
    double ack_sec[PING_COUNT], best_sec = -1;
    burst_t burst = {
        .peers = peers,
        .near = near,
        .bytes = TW_COLL_TURN_BYTES,
        .count = PING_COUNT,
        .window = 1,
        .ack_sec = ack_sec,
    };
    tw_status_t status = exchange(&burst);

    if (status != TW_OK || near->to < 0) {
        return status;
    }
    for (int i = 1; i < PING_COUNT; i++) {
        double trip_sec = ack_sec[i] - ack_sec[i - 1];
        best_sec = best_sec < 0 || trip_sec < best_sec ? trip_sec : best_sec;
    }
    /* a shaped link lets a single message through at once: then there is nothing to subtract for its bytes */
    double hops_sec = best_sec - out->alpha_sec,
           bytes_sec = (double)burst.bytes * near->sharing * out->beta_sec;
    out->turn_sec = max2(0, hops_sec > bytes_sec ? hops_sec - bytes_sec : hops_sec);
    return TW_OK;
}

static tw_status_t measure_tier(const tw_coll_peers_t *peers, const neighbours_t *near, tw_tier_sample_t *out)
{
    tw_status_t status = measure_latency(peers, near, out);

    if (status == TW_OK) {
        status = measure_speed(peers, near, out);
    }
    return status == TW_OK ? measure_turn(peers, near, out) : status;
}

/** Every member sends to the next node, or to the next member of its own. */
static void find_neighbours(const tw_topo_t *topo, int inter, neighbours_t *near)
{
    near->to = -1;
    near->n_from = 0;
    near->sharing = tw_topo_node_size(topo, topo->node[topo->rank]);
    for (int r = 0; r < topo->world; r++) {
        int node = inter ? (topo->node[r] + 1) % topo->n_nodes : topo->node[r];
        int local = (topo->local[r] + !inter) % tw_topo_node_size(topo, node);
        int to = tw_topo_rank_at(topo, node, local);
        if (to == r || (inter && topo->n_nodes == 1)) {
            continue;
        }
        if (r == topo->rank) {
            near->to = to;
        }
        if (to == topo->rank) {
            near->from[near->n_from++] = r;
        }
    }
}

/* ---- the model ------------------------------------------------------------------------------------------- */

/** What a member reports. */
typedef struct report {
    tw_measure_sample_t sample;
    tw_measure_host_t host;
} report_t;

#define SAMPLE_DOUBLES (sizeof(tw_measure_sample_t) / sizeof(double))

/** Member 0: the slowest of each value. */
static void merge_samples(const report_t *reports, int world, tw_measure_sample_t *slowest)
{
    *slowest = reports[0].sample;
    for (int r = 1; r < world; r++) {
        const double *from = (const double *)&reports[r].sample;
        double *to = (double *)slowest;
        for (size_t i = 0; i < SAMPLE_DOUBLES; i++) {
            to[i] = max2(to[i], from[i]);
        }
    }
}

static void fill_tier(const tw_tier_sample_t *sample, tw_coll_tier_t *tier)
{
    if (!(sample->beta_sec > 0)) {
        return; /* there is no such link: the defaults stay */
    }
    tier->alpha_sec = sample->alpha_sec;
    tier->beta_sec = sample->beta_sec;
    tier->message_sec = sample->message_sec;
    tier->turn_sec = sample->turn_sec;
    tier->busy = sample->busy < 1 ? sample->busy : 1;
}

static void fill_model(const tw_measure_sample_t *sample, double contention, tw_coll_model_t *model)
{
    tw_coll_model_default(model);
    fill_tier(&sample->inter, &model->inter);
    fill_tier(&sample->node, &model->node);
    model->copy_sec = sample->copy_sec * contention;
    model->reduce_sec = sample->reduce_sec * contention;
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++) {
        model->encode_sec[i] = sample->encode_sec[i] * contention;
    }
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++) {
        model->decode_sec[i] = sample->decode_sec[i] * contention;
    }
}

/** Ranks per core of the machine where they are most; at least 1. */
static double find_contention(const report_t *reports, int world)
{
    double most = 1;

    for (int r = 0; r < world; r++) {
        int sharing = 0;
        for (int q = 0; q < world; q++) {
            sharing += reports[q].host.boot == reports[r].host.boot;
        }
        most = max2(most, sharing / reports[r].host.cores);
    }
    return most;
}

static tw_status_t agree(const tw_coll_peers_t *peers, const tw_measure_sample_t *mine,
                         tw_coll_model_t *model)
{
    report_t *all = calloc((size_t)peers->topo->world, sizeof(*all)), report = {.sample = *mine};
    tw_measure_sample_t slowest;

    if (all == NULL) {
        tw_error("out of memory agreeing on the cost model");
        return TW_ERR_NO_MEMORY;
    }
    tw_measure_host(&report.host);
    tw_status_t status = gather(peers, &report, sizeof(report), (char *)all);
    if (status == TW_OK && peers->topo->rank == 0) {
        merge_samples(all, peers->topo->world, &slowest);
        fill_model(&slowest, find_contention(all, peers->topo->world), model);
    }
    free(all);
    return status == TW_OK ? broadcast(peers, model, sizeof(*model)) : status;
}

tw_status_t tw_coll_model_measure(const tw_coll_peers_t *peers, tw_coll_model_t *model)
{
    const tw_topo_t *topo = peers->topo;
    tw_measure_sample_t mine = {.copy_sec = 0};
    neighbours_t near;

    near.from = calloc((size_t)topo->world, sizeof(*near.from));
    if (near.from == NULL) {
        tw_error("out of memory measuring the links");
        return TW_ERR_NO_MEMORY;
    }
    /* all at once, so that ranks that outnumber the cores are seen to */
    int flag = 0;
    tw_status_t status = agree_any(peers, &flag);
    if (status == TW_OK) {
        status = tw_measure_processor(&mine);
    }
    if (status == TW_OK && topo->n_nodes > 1) {
        find_neighbours(topo, 1, &near);
        status = measure_tier(peers, &near, &mine.inter);
    }
    if (status == TW_OK && topo->max_local > 1) {
        find_neighbours(topo, 0, &near);
        status = measure_tier(peers, &near, &mine.node);
    }
    if (status == TW_OK) {
        status = agree(peers, &mine, model);
    }
    free(near.from);
    return status;
}
