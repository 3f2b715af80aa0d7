/* Measures latency and bandwidth at one size. */
#include <sched.h>
#include <string.h>

#include "tests/plugin/nccl/bench/net.h"

/** Messages under way on a connection: as many steps as NCCL has. */
#define WINDOW 8
#define ROUND_TRIPS 200
#define ROUND_TRIPS_MIN 3
#define MESSAGES_MIN 4
#define MESSAGES_MAX 20000

/** One direction of one connection. */
typedef struct lane {
    const tw_nccl_net_v12_t *net;
    int is_send;
    void *comm;
    size_t bytes;
    int posted, done, n; /**< messages */
    void *request[WINDOW];
    uint8_t *buffer[WINDOW];
    int ok;
} lane_t;

/* ---- lanes --------------------------------------------------------------------------------------------- */

static void lane_cleanup(lane_t *lane)
{
    for (int i = 0; i < WINDOW; i++) {
        tw_buffer_free(lane->buffer[i]);
    }
}

/** Allocate buffers for so many messages under way, at most a window. */
static tw_status_t lane_reserve(lane_t *lane, int n)
{
    for (int i = 0; i < n && i < WINDOW; i++) {
        if (lane->buffer[i]) {
            continue;
        }
        lane->buffer[i] = tw_buffer_alloc_zero(lane->bytes + sizeof(int));
        TW_FAIL_IF(!lane->buffer[i], TW_ERR_NO_MEMORY, "bench: out of memory for messages of %zu bytes",
                   lane->bytes);
    }
    return TW_OK;
}

static void lane_start(lane_t *lane, int n)
{
    lane->n = n;
    lane->posted = lane->done = 0;
}

/** Write the message's number at its beginning and end, if it is long enough. */
static void stamp(lane_t *lane, int number)
{
    uint8_t *at = lane->buffer[number % WINDOW];
    const size_t bytes = lane->bytes < sizeof(number) ? lane->bytes : sizeof(number);
    memcpy(at, &number, bytes);
    memcpy(at + lane->bytes - bytes, &number, bytes);
}

static int is_stamped(const lane_t *lane, int number)
{
    const uint8_t *at = lane->buffer[number % WINDOW];
    const size_t bytes = lane->bytes < sizeof(number) ? lane->bytes : sizeof(number);
    return !memcmp(at, &number, bytes) && !memcmp(at + lane->bytes - bytes, &number, bytes);
}

static tw_status_t lane_post(lane_t *lane)
{
    const int slot = lane->posted % WINDOW;
    void *data = lane->buffer[slot];
    int tag = 0;
    tw_nccl_result_t result;
    if (lane->is_send) {
        stamp(lane, lane->posted);
        result = lane->net->isend(lane->comm, data, lane->bytes, tag, lane->comm, NULL, &lane->request[slot]);
    } else {
        result = lane->net->irecv(lane->comm, 1, &data, &lane->bytes, &tag, &lane->comm, NULL,
                                  &lane->request[slot]);
    }
    lane->posted += result == TW_NCCL_SUCCESS && lane->request[slot];
    return result == TW_NCCL_SUCCESS ? TW_OK : TW_ERR_NCCL;
}

static tw_status_t lane_test(lane_t *lane)
{
    int done = 0, bytes = 0;
    if (lane->net->test(lane->request[lane->done % WINDOW], &done, &bytes) != TW_NCCL_SUCCESS) {
        return TW_ERR_NCCL;
    }
    if (done) {
        lane->ok =
            lane->ok && (size_t)bytes == lane->bytes && (lane->is_send || is_stamped(lane, lane->done));
        lane->done++;
    }
    return TW_OK;
}

static tw_status_t lane_turn(lane_t *lane)
{
    tw_status_t status = TW_OK;
    if (lane->posted < lane->n && lane->posted - lane->done < WINDOW) {
        status = lane_post(lane);
    }
    return !status && lane->done < lane->posted ? lane_test(lane) : status;
}

/** Drive all lanes until all are done. A round where nothing happened ends with sched_yield, as in NCCL. */
static tw_status_t lanes_run(lane_t *lanes, int n_lanes)
{
    tw_status_t status = TW_OK;
    int n_left = n_lanes;
    while (!status && n_left) {
        int n_moved = 0;
        n_left = 0;
        for (int i = 0; i < n_lanes && !status; i++) {
            const int before = lanes[i].posted + lanes[i].done;
            status = lane_turn(&lanes[i]);
            n_moved += lanes[i].posted + lanes[i].done - before;
            n_left += lanes[i].done < lanes[i].n;
        }
        if (!n_moved) {
            (void)sched_yield();
        }
    }
    return status;
}

/* ---- figures ------------------------------------------------------------------------------------------- */

/** Measure ping-pong latency over the first lane of each direction: the mean of n trips. On a full link the
 *  median would mislead: a transport that waits for the shaper seldom, but long, would seem faster. */
static tw_status_t measure_latency(const net_end_t *end, lane_t *out, lane_t *in, int n, double *latency_us)
{
    tw_status_t status = net_end_meet(end);
    const double start = tw_time_sec();
    double other;
    for (int i = 0; i < n && !status; i++) {
        lane_start(out, 1);
        lane_start(in, 1);
        status = lanes_run(end->rank ? in : out, 1);
        if (!status) {
            status = lanes_run(end->rank ? out : in, 1);
        }
    }
    if (!status) {
        *latency_us = (tw_time_sec() - start) / (2 * n) * 1e6;
        status = net_end_swap(end, *latency_us, &other);
        *latency_us = status || !end->rank ? *latency_us : other;
    }
    return status;
}

/** Measure bandwidth, from both ends' start to the last byte received. The ends exchange their figures. */
static tw_status_t measure_bandwidth(const net_end_t *end, lane_t *lanes, int n_lanes, int n, net_row_t *row)
{
    double other = 0, own = 0;
    tw_status_t status = TW_OK;
    for (int i = 0; i < n_lanes && !status; i++) {
        status = lane_reserve(&lanes[i], n);
        lane_start(&lanes[i], n);
    }
    status = status ? status : net_end_meet(end);
    const double start = tw_time_sec();
    status = status ? status : lanes_run(lanes, n_lanes);
    if (!status) {
        own = (double)row->bytes * n * row->connections / (tw_time_sec() - start) * 1e-9;
        status = net_end_swap(end, own, &other);
    }
    if (row->both_ways) {
        row->bandwidth_GBps = own < other ? own : other;
    } else {
        row->bandwidth_GBps = end->rank ? own : other;
    }
    return status;
}

/** Returns how many messages on each connection fill so many seconds at link_bps (0: unknown); all
 *  connections together have at least MESSAGES_MIN. */
static int count_messages(const net_row_t *row, double seconds, double link_bps)
{
    const double rate = link_bps > 0 ? link_bps / 8 : 1e9;
    const double n = seconds * rate / ((double)row->bytes + 2000) / row->connections;
    const int least = (MESSAGES_MIN + row->connections - 1) / row->connections;
    return n < least ? least : n > MESSAGES_MAX ? MESSAGES_MAX : (int)n;
}

/** Returns how many round trips the latency is measured by: a quarter of the messages, within limits. */
static int count_trips(int n_messages)
{
    const int n = n_messages / 4;
    return n < ROUND_TRIPS_MIN ? ROUND_TRIPS_MIN : n < ROUND_TRIPS ? n : ROUND_TRIPS;
}

static tw_status_t net_measure_measure(net_end_t *end, lane_t *lanes, net_row_t *row, double seconds,
                                       double link_bps)
{
    const int n = count_messages(row, seconds, link_bps);
    lane_t *out = lanes, *in = lanes + row->connections;
    TW_TRY(lane_reserve(out, 1));
    TW_TRY(lane_reserve(in, 1));
    TW_TRY(measure_latency(end, out, in, count_trips(n), &row->latency_us));
    if (row->both_ways) {
        return measure_bandwidth(end, lanes, 2 * row->connections, n, row);
    }
    return measure_bandwidth(end, end->rank ? in : out, row->connections, n, row);
}

tw_status_t net_measure(net_end_t *end, net_row_t *row, double seconds, double link_bps)
{
    static lane_t lanes[2 * NET_CONNECTIONS_MAX];
    const int n_lanes = 2 * row->connections;
    double ok = 1, other = 0;
    for (int i = 0; i < n_lanes; i++) {
        const int is_send = i < row->connections;
        lanes[i] = (lane_t){.net = end->net,
                            .is_send = is_send,
                            .comm = is_send ? end->sender[i] : end->receiver[i - row->connections],
                            .bytes = row->bytes,
                            .ok = 1};
    }
    tw_status_t status = net_measure_measure(end, lanes, row, seconds, link_bps);
    for (int i = 0; i < n_lanes; i++) {
        ok = ok && lanes[i].ok;
        lane_cleanup(&lanes[i]);
    }
    status = status ? status : net_end_swap(end, ok, &other);
    row->ok = !status && ok && other;
    return status;
}
