/* One way to do an all-reduce in one mode: through the plugin, or by the library. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xxhash.h>

#include "bench/collnet/collnet.h"
#include "bench/exchange.h"
#include "cluster/cluster.h"
#include "plugin/nccl/abi/collnet.h"

#define POLL_NS 200000 /* all nodes of the box share this machine's processors */

extern const tw_nccl_collnet_v12_t ncclCollNetPlugin_v12;

/* ---- connections --------------------------------------------------------------------------------------- */

static tw_status_t way_failed(const char *what, tw_nccl_result_t result)
{
    return tw_fail(TW_ERR_INTERNAL, "collnet: %s: %d", what, (int)result);
}

#define PLUGIN(what, call)                    \
    do {                                      \
        tw_nccl_result_t result_ = (call);    \
        if (result_ != TW_NCCL_SUCCESS) {     \
            return way_failed(what, result_); \
        }                                     \
    } while (0)

static tw_status_t way_connect(collnet_rank_t *rank, collnet_way_t *way)
{
    const tw_nccl_collnet_v12_t *net = &ncclCollNetPlugin_v12;
    char own[TW_NCCL_HANDLE_BYTES], all[COLLNET_RANKS_MAX * TW_NCCL_HANDLE_BYTES];
    void *listener, *handles[COLLNET_RANKS_MAX];

    TW_FAIL_IF(setenv("TW_ALLREDUCE_CODEC", tw_quant_row_get(way->codec.kind)->name, 1) != 0,
               TW_ERR_NO_MEMORY, "setenv: %s", strerror(errno));
    PLUGIN("init", net->init(&way->context, 1, NULL));
    PLUGIN("listen", net->listen(way->context, 0, own, &listener));
    TW_TRY(bench_gather(rank->coll, own, sizeof(own), all));
    for (int r = 0; r < rank->world; r++) {
        handles[r] = all + (size_t)r * sizeof(own);
    }
    PLUGIN("connect", net->connect(handles, rank->world, rank->rank, listener, &way->comm));
    PLUGIN("closeListen", net->close_listen(listener));
    size_t bytes = rank->n_elems * sizeof(*rank->send);
    PLUGIN("regMr", net->reg_mr(way->comm, rank->send, bytes, TW_NCCL_PTR_HOST, &way->send_mhandle));
    PLUGIN("regMr", net->reg_mr(way->comm, rank->recv, bytes, TW_NCCL_PTR_HOST, &way->recv_mhandle));
    return TW_OK;
}

tw_status_t collnet_ways_connect(collnet_rank_t *rank)
{
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get((tw_quant_kind_t)kind);
        if (!row->sums) {
            continue;
        }
        for (int is_collnet = 0; is_collnet < 2; is_collnet++) {
            collnet_way_t *way = &rank->ways[rank->n_ways++];
            TW_TRY(tw_quant_codec_parse_any(row->name, &way->codec));
            TW_TRY(is_collnet ? way_connect(rank, way) : TW_OK);
        }
    }
    return TW_OK;
}

void collnet_ways_disconnect(collnet_rank_t *rank)
{
    const tw_nccl_collnet_v12_t *net = &ncclCollNetPlugin_v12;
    for (collnet_way_t *way = rank->ways; way < rank->ways + rank->n_ways; way++) {
        if (way->comm) {
            (void)net->dereg_mr(way->comm, way->send_mhandle);
            (void)net->dereg_mr(way->comm, way->recv_mhandle);
            (void)net->close_coll(way->comm);
            (void)net->finalize(way->context);
        }
    }
}

/* ---- operations ---------------------------------------------------------------------------------------- */

/** Windows in order, so many at a time; the oldest is asked for. */
static tw_status_t way_run_collnet(collnet_rank_t *rank, collnet_way_t *way)
{
    const tw_nccl_collnet_v12_t *net = &ncclCollNetPlugin_v12;
    const size_t window = rank->options->window_bytes / sizeof(*rank->send);
    const size_t n = (rank->n_elems + window - 1) / window, depth = (size_t)rank->options->in_flight;
    const struct timespec nap = {.tv_nsec = POLL_NS};
    void *requests[COLLNET_IN_FLIGHT_MAX];
    size_t posted = 0, ended = 0;
    int done, size;

    while (ended < n) {
        if (posted < n && posted - ended < depth) {
            size_t first = posted * window, left = rank->n_elems - first;
            void *request = NULL;
            PLUGIN("iallreduce", net->iallreduce(way->comm, rank->send + first, rank->recv + first,
                                                 left < window ? left : window, TW_NCCL_BFLOAT16, TW_NCCL_SUM,
                                                 way->send_mhandle, way->recv_mhandle, &request));
            requests[posted % depth] = request;
            posted += request != NULL;
        }
        if (posted > ended) {
            PLUGIN("test", net->test(requests[ended % depth], &done, &size));
            ended += done != 0;
            if (!done) {
                (void)nanosleep(&nap, NULL);
            }
        }
    }
    return TW_OK;
}

static tw_status_t way_run_library(collnet_rank_t *rank, collnet_way_t *way)
{
    tw_coll_segment_t segment = {.src = rank->send, .dst = rank->recv, .n_elems = rank->n_elems};
    tw_coll_args_t args = {.op = TW_COLL_ALLREDUCE,
                           .type = TW_TYPE_BF16,
                           .segments = &segment,
                           .n_segments = 1,
                           .reduction = TW_COLL_SUM,
                           .codec = tw_quant_form(&way->codec) == TW_QUANT_AS_IS ? NULL : &way->codec,
                           .force_codec = 1};
    return tw_coll_run(rank->coll, &args);
}

static double way_error_of(const collnet_rank_t *rank)
{
    double off = 0, all = 0;

    for (size_t i = 0; i < rank->n_elems; i++) {
        float got;
        tw_convert_to_fp32(TW_TYPE_BF16, &rank->recv[i], &got, 1);
        off += pow((double)got - (double)rank->sum[i], 2);
        all += pow((double)rank->sum[i], 2);
    }
    return sqrt(off / all);
}

static tw_status_t way_check(collnet_rank_t *rank, collnet_way_t *way)
{
    uint64_t own = XXH3_64bits(rank->recv, rank->n_elems * sizeof(*rank->recv)), all[COLLNET_RANKS_MAX];

    TW_TRY(bench_gather(rank->coll, &own, sizeof(own), all));
    way->identical = 1;
    for (int r = 0; r < rank->world; r++) {
        way->identical &= all[r] == all[0];
    }
    way->rel_rmse = way_error_of(rank);
    return TW_OK;
}

/** A link that was idle lets a burst pass: an operation that nobody measures takes it. */
static tw_status_t way_spend_burst(collnet_rank_t *rank)
{
    size_t bytes = tw_cluster_burst_bytes(rank->options->link_bps);
    size_t n = bytes / sizeof(*rank->send) < rank->n_elems ? bytes / sizeof(*rank->send) : rank->n_elems;
    tw_coll_segment_t segment = {.src = rank->input, .dst = rank->recv, .n_elems = n};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLREDUCE, .type = TW_TYPE_BF16, .segments = &segment, .n_segments = 1};

    return n > 0 ? tw_coll_run(rank->coll, &args) : TW_OK;
}

tw_status_t collnet_way_measure(collnet_rank_t *rank, collnet_way_t *way, int iter)
{
    memcpy(rank->send, rank->input, rank->n_elems * sizeof(*rank->send)); /* a codec leaves zeros there */
    TW_TRY(way_spend_burst(rank));
    memset(rank->recv, 0xff, rank->n_elems * sizeof(*rank->recv)); /* NaN */
    TW_TRY(bench_barrier(rank->coll));
    double start = tw_time_sec();
    TW_TRY(way->comm ? way_run_collnet(rank, way) : way_run_library(rank, way));
    if (iter < 0) {
        return way_check(rank, way);
    }
    way->sec[iter] = tw_time_sec() - start;
    return bench_barrier(rank->coll);
}
