/** Measures links. All members stream to a neighbour at the same time, as in a collective operation, so that
 *  ranks that share a link or a processor share it in the measurement, too.
 *
 *  The receiver acknowledges every message. The times of the acknowledgements give latency and speed. The
 *  speed is that of a stream's later part, as shaped links and deep queues pass the first 100 to 200 KB
 *  faster. */
#include "collectives/model/measuring.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW 16 /**< the most messages in flight */
#define PING_COUNT 12
#define TRIP_COUNT 5
#define FLOOD_COUNT 64
#define SMALL_BYTES 8
#define BURST_WINDOW 4
#define BURST_COUNT 24
/** messages at the beginning that are not timed: they use up what the link has saved while idle */
#define BURST_WARM 8
#define BURST_SPAN 8 /**< messages that are timed as one span */
#define BURST_MIN_BYTES ((size_t)32 << 10)
#define BURST_MAX_BYTES ((size_t)128 << 10)
/** a burst must take this long to be exact; a shorter one is repeated with larger messages */
#define BURST_MIN_SEC 200e-6

/* ---- streams ------------------------------------------------------------------------------------------- */

/** One direction between two members: a few messages in flight, each of which is acknowledged. */
typedef struct stream {
    int member; /**< the member at the other end */
    int posted, done;
    tw_bootstrap_message_t data[WINDOW], acks[WINDOW];
} stream_t;

typedef struct burst {
    const tw_measure_link_t *link;
    size_t bytes;    /**< bytes of a message */
    int count;       /**< number of messages */
    int window;      /**< messages under way: 1 to WINDOW */
    double *ack_sec; /**< [count], when each message that this member sent was acknowledged */
    /** [n_streams], first the stream that this member sends, then those that it receives */
    stream_t *streams;
    int n_streams;
    char *buffer; /**< one message to send, then WINDOW messages for each stream that is received */
} burst_t;

static tw_status_t post_outgoing(burst_t *burst, stream_t *stream)
{
    tw_bootstrap_t *boot = burst->link->boot;
    int slot = stream->posted % burst->window;
    tw_status_t status =
        tw_bootstrap_recv(boot, stream->member, TW_BOOTSTRAP_ACK, NULL, 0, &stream->acks[slot]);
    if (status == TW_OK) {
        stream->posted++;
        status = tw_bootstrap_send(boot, stream->member, TW_BOOTSTRAP_DATA, burst->buffer, burst->bytes,
                                   &stream->data[slot]);
    }
    return status;
}

static tw_status_t advance_outgoing(burst_t *burst, stream_t *stream)
{
    while (stream->done < burst->count) {
        while (stream->posted < burst->count && stream->posted - stream->done < burst->window) {
            TW_TRY(post_outgoing(burst, stream));
        }
        int slot = stream->done % burst->window;
        TW_TRY(tw_bootstrap_test(burst->link->boot, &stream->acks[slot]));
        TW_TRY(tw_bootstrap_test(burst->link->boot, &stream->data[slot]));
        burst->ack_sec[stream->done++] = tw_time_sec();
    }
    return TW_OK;
}

static tw_status_t advance_incoming(burst_t *burst, int index)
{
    stream_t *stream = &burst->streams[index];
    tw_bootstrap_t *boot = burst->link->boot;
    char *buffer = burst->buffer + (1 + (size_t)(index - 1) * (size_t)burst->window) * burst->bytes;
    while (stream->done < burst->count) {
        while (stream->posted < burst->count && stream->posted - stream->done < burst->window) {
            int slot = stream->posted % burst->window;
            TW_TRY(tw_bootstrap_recv(boot, stream->member, TW_BOOTSTRAP_DATA,
                                     buffer + (size_t)slot * burst->bytes, burst->bytes,
                                     &stream->data[slot]));
            stream->posted++;
        }
        int slot = stream->done % burst->window;
        TW_TRY(tw_bootstrap_test(boot, &stream->data[slot]));
        /* wait for the acknowledgement that was sent a window ago */
        TW_TRY(tw_bootstrap_test(boot, &stream->acks[slot]));
        TW_TRY(tw_bootstrap_send(boot, stream->member, TW_BOOTSTRAP_ACK, NULL, 0, &stream->acks[slot]));
        stream->done++;
    }
    return TW_OK;
}

/** Advance all streams. Returns TW_OK if all have ended. *awaited: a member whose stream has not ended. */
static tw_status_t links_advance(burst_t *burst, int *awaited)
{
    tw_status_t status = TW_OK;
    for (int i = 0; i < burst->n_streams; i++) {
        tw_status_t one = i == 0 ? advance_outgoing(burst, &burst->streams[0]) : advance_incoming(burst, i);
        if (one != TW_OK && status >= 0) {
            status = one;
            *awaited = burst->streams[i].member;
        }
    }
    return status;
}

static tw_status_t run_streams(burst_t *burst)
{
    tw_bootstrap_t *boot = burst->link->boot;
    int awaited = 0;
    tw_status_t status;
    while ((status = links_advance(burst, &awaited)) == TW_IN_PROGRESS) {
        status = tw_bootstrap_step(boot, awaited);
        if (status != TW_OK) {
            break;
        }
    }
    for (int i = 0; i < burst->n_streams; i++) {
        status = status == TW_OK ? tw_bootstrap_wait(boot, burst->streams[i].acks, WINDOW) : status;
    }
    for (int i = 0; i < burst->n_streams; i++) {
        tw_bootstrap_cancel(boot, burst->streams[i].acks, WINDOW);
        tw_bootstrap_cancel(boot, burst->streams[i].data, WINDOW);
    }
    return status;
}

/** Stream to the neighbour while the others do the same. An agreement lets all members start together;
 *  members without neighbours take part in it, too. */
static tw_status_t links_exchange(burst_t *burst)
{
    const tw_measure_link_t *link = burst->link;
    stream_t streams[1 + link->n_from];
    int flag = 0;
    burst->streams = streams;
    burst->n_streams = 1 + link->n_from;
    burst->buffer = tw_buffer_alloc_zero((1 + (size_t)link->n_from * (size_t)burst->window) * burst->bytes);
    TW_FAIL_IF(!burst->buffer, TW_ERR_NO_MEMORY, "out of memory measuring the links");
    memset(streams, 0, sizeof(streams));
    streams[0].member = link->to;
    streams[0].done = link->to < 0 ? burst->count : 0;
    for (int i = 0; i < link->n_from; i++) {
        streams[1 + i].member = link->from[i];
    }
    tw_status_t status = tw_bootstrap_any(link->boot, &flag);
    status = status == TW_OK ? run_streams(burst) : status;
    tw_buffer_free(burst->buffer);
    return status;
}

/* ---- readings ------------------------------------------------------------------------------------------ */

/** Measure `count` round trips one by one, and keep the quickest; 0 if there is no neighbour. */
static tw_status_t measure_trip(const tw_measure_link_t *link, size_t bytes, int count, double *trip_sec)
{
    double ack_sec[PING_COUNT];
    burst_t burst = {.link = link, .bytes = bytes, .count = count, .window = 1, .ack_sec = ack_sec};
    tw_status_t status = links_exchange(&burst);
    *trip_sec = 0;
    for (int i = 1; status == TW_OK && link->to >= 0 && i < count; i++) {
        double sec = ack_sec[i] - ack_sec[i - 1];
        *trip_sec = i == 1 || sec < *trip_sec ? sec : *trip_sec;
    }
    return status;
}

/** Measure the time of one small message in a stream of small messages. */
static tw_status_t measure_flood(const tw_measure_link_t *link, double *message_sec)
{
    double ack_sec[FLOOD_COUNT];
    burst_t flood = {
        .link = link, .bytes = SMALL_BYTES, .count = FLOOD_COUNT, .window = WINDOW, .ack_sec = ack_sec};
    tw_status_t status = links_exchange(&flood);
    if (status == TW_OK && link->to >= 0) {
        *message_sec = (ack_sec[FLOOD_COUNT - 1] - ack_sec[0]) / (FLOOD_COUNT - 1);
    }
    return status;
}

/** Returns the time of BURST_SPAN messages: the median of all spans, since an acknowledgement that is
 *  noticed late makes some spans longer and others shorter. */
static double median_span_sec(const double *ack_sec)
{
    double spans[BURST_COUNT - BURST_WARM - BURST_SPAN + 1];
    size_t n = 0;
    for (int end = BURST_WARM - 1 + BURST_SPAN; end < BURST_COUNT; end++) {
        spans[n++] = ack_sec[end] - ack_sec[end - BURST_SPAN];
    }
    return tw_median(spans, n);
}

/** Measure one burst: seconds per byte of the node's link, and processor time. */
static tw_status_t measure_burst(const tw_measure_link_t *link, tw_tier_sample_t *out)
{
    double ack_sec[BURST_COUNT];
    burst_t burst = {.link = link,
                     .bytes = link->burst_bytes,
                     .count = BURST_COUNT,
                     .window = BURST_WINDOW,
                     .ack_sec = ack_sec};
    double cpu_sec = tw_thread_sec(), start_sec = tw_time_sec();
    tw_status_t status = links_exchange(&burst);
    if (status != TW_OK || link->to < 0) {
        return status;
    }
    double busy = (tw_thread_sec() - cpu_sec) / (tw_time_sec() - start_sec);
    out->beta_sec = median_span_sec(ack_sec) / ((double)burst.bytes * BURST_SPAN * link->sharing);
    out->cpu_sec = busy * out->beta_sec;
    return TW_OK;
}

/** Measure the speed, with messages that are large enough for the clock. */
static tw_status_t measure_speed(tw_measure_link_t *link, tw_tier_sample_t *out)
{
    int again = 1;
    while (again) {
        tw_status_t status = measure_burst(link, out);
        if (status != TW_OK || link->burst_bytes >= BURST_MAX_BYTES) {
            return status;
        }
        again = link->to >= 0 && out->beta_sec * (double)link->burst_bytes < BURST_MIN_SEC / BURST_COUNT;
        TW_TRY(tw_bootstrap_any(link->boot, &again));
        link->burst_bytes *= again ? 4 : 1;
    }
    return TW_OK;
}

tw_status_t tw_measure_link_read(tw_measure_link_t *link, tw_tier_sample_t *out)
{
    memset(out, 0, sizeof(*out));
    TW_TRY(measure_trip(link, SMALL_BYTES, PING_COUNT, &out->alpha_sec));
    out->alpha_sec /= 2;
    /* before the burst, because the burst uses up what a shaped link has saved while idle */
    TW_TRY(measure_trip(link, TW_COLL_TURN_BYTES, TRIP_COUNT, &out->trip_sec));
    TW_TRY(measure_flood(link, &out->message_sec));
    return measure_speed(link, out);
}

/* ---- neighbours ---------------------------------------------------------------------------------------- */

tw_status_t tw_measure_link_init(tw_measure_link_t *link, tw_bootstrap_t *boot, int inter)
{
    const tw_topo_t *topo = boot->topo;
    memset(link, 0, sizeof(*link));
    link->from = calloc((size_t)topo->world, sizeof(*link->from));
    TW_FAIL_IF(!link->from, TW_ERR_NO_MEMORY, "out of memory measuring the links");
    link->boot = boot;
    link->to = -1;
    link->sharing = tw_topo_node_size(topo, topo->node[topo->rank]);
    link->burst_bytes = BURST_MIN_BYTES;
    for (int r = 0; r < topo->world; r++) {
        int node = inter ? (topo->node[r] + 1) % topo->n_nodes : topo->node[r];
        int local = (topo->local[r] + !inter) % tw_topo_node_size(topo, node);
        int to = tw_topo_rank_at(topo, node, local);
        if (to == r || (inter && topo->n_nodes == 1)) {
            continue;
        }
        if (r == topo->rank) {
            link->to = to;
        }
        if (to == topo->rank) {
            link->from[link->n_from++] = r;
        }
    }
    return TW_OK;
}

void tw_measure_link_cleanup(tw_measure_link_t *link)
{
    free(link->from);
    link->from = NULL;
}
