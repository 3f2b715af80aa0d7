/* Times the NCCL collnet plugin, called window after window as NCCL calls it, and in turn with it the
 * library's own all-reduce of the same tensor. Each node of the cluster in a box has one rank. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xxhash.h>

#include "bench/columns.h"
#include "bench/exchange.h"
#include "cluster/cluster.h"
#include "collectives/collectives.h"
#include "flags/flags.h"
#include "plugin/nccl/abi/collnet.h"
#include "transport/transport.h"

#define ITERS_MAX 1000
#define IN_FLIGHT_MAX 64
#define RANKS_MAX 16

typedef struct collnet_options {
    int n_nodes, iters, in_flight;
    double link_bps;
    size_t bytes, window_bytes;
    const char *json; /* NULL: none */
} options_t;

/** One way to do the all-reduce, in one mode. */
typedef struct collnet_way {
    tw_quant_codec_t codec;
    void *context, *comm, *send_mhandle, *recv_mhandle; /* made by the plugin; NULL: the library does it */
    double sec[ITERS_MAX];
    double rel_rmse;
    int identical;
} way_t;

typedef struct collnet_rank {
    const options_t *options;
    tw_coll_t *coll;
    int rank, world;
    size_t n_elems;
    uint16_t *input, *send, *recv;  /* [n_elems] bf16 */
    float *sum;                     /* [n_elems] what the result must be */
    way_t ways[2 * TW_QUANT_KINDS]; /* for each codec that sums: the library's and the collnet's */
    size_t n_ways;
} rank_t;

/* ---- a rank -------------------------------------------------------------------------------------------- */

/** Return a nearly normal number: the sum of four uniform ones. */
static float rank_value(uint64_t rank, uint64_t i)
{
    uint64_t key[2] = {rank, i}, bits = XXH3_64bits(key, sizeof(key));
    return (float)((double)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) /
                       65536.0 -
                   2.0);
}

static void rank_fill(rank_t *rank)
{
    for (size_t i = 0; i < rank->n_elems; i++) {
        rank->sum[i] = 0;
        for (int r = 0; r < rank->world; r++) {
            float value = rank_value((uint64_t)r, i);
            uint16_t stored;
            tw_convert_from_fp32(TW_TYPE_BF16, &value, 1, &stored, 1);
            tw_convert_to_fp32(TW_TYPE_BF16, &stored, &value, 1);
            rank->sum[i] += value;
            if (r == rank->rank) {
                rank->input[i] = stored;
            }
        }
    }
}

static tw_status_t rank_init(rank_t *rank, const options_t *options)
{
    size_t n = options->bytes / sizeof(*rank->send);
    *rank = (rank_t){.options = options, .n_elems = n};
    TW_TRY(tw_coll_world_create(NULL, &rank->coll));
    rank->rank = tw_coll_rank(rank->coll);
    rank->world = tw_coll_size(rank->coll);
    TW_FAIL_IF(rank->world > RANKS_MAX, TW_ERR_UNSUPPORTED, "collnet: %d ranks, at most %d can be",
               rank->world, RANKS_MAX);
    rank->input = malloc(n * sizeof(*rank->input));
    rank->send = malloc(n * sizeof(*rank->send));
    rank->recv = malloc(n * sizeof(*rank->recv));
    rank->sum = malloc(n * sizeof(*rank->sum));
    TW_FAIL_IF(!rank->input || !rank->send || !rank->recv || !rank->sum, TW_ERR_NO_MEMORY,
               "rank %d: out of memory for %zu elements", rank->rank, n);
    rank_fill(rank);
    return TW_OK;
}

static void rank_cleanup(rank_t *rank)
{
    tw_coll_destroy(rank->coll);
    free(rank->input);
    free(rank->send);
    free(rank->recv);
    free(rank->sum);
}

/* ---- a way --------------------------------------------------------------------------------------------- */

#define POLL_NS 200000 /* all nodes of the box share this machine's processors */

extern const tw_nccl_collnet_v12_t ncclCollNetPlugin_v12;

/* ---- the plugin's connections -------------------------------------------------------------------------- */

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

static tw_status_t way_connect(rank_t *rank, way_t *way)
{
    const tw_nccl_collnet_v12_t *net = &ncclCollNetPlugin_v12;
    char own[TW_NCCL_HANDLE_BYTES], all[RANKS_MAX * TW_NCCL_HANDLE_BYTES];
    void *listener, *handles[RANKS_MAX];
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

static tw_status_t ways_connect(rank_t *rank)
{
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get((tw_quant_kind_t)kind);
        if (!row->sums) {
            continue;
        }
        for (int is_collnet = 0; is_collnet < 2; is_collnet++) {
            way_t *way = &rank->ways[rank->n_ways++];
            TW_TRY(tw_quant_codec_parse_any(row->name, &way->codec));
            TW_TRY(is_collnet ? way_connect(rank, way) : TW_OK);
        }
    }
    return TW_OK;
}

static void ways_disconnect(rank_t *rank)
{
    const tw_nccl_collnet_v12_t *net = &ncclCollNetPlugin_v12;
    for (way_t *way = rank->ways; way < rank->ways + rank->n_ways; way++) {
        if (way->comm) {
            (void)net->dereg_mr(way->comm, way->send_mhandle);
            (void)net->dereg_mr(way->comm, way->recv_mhandle);
            (void)net->close_coll(way->comm);
            (void)net->finalize(way->context);
        }
    }
}

/* ---- operations ---------------------------------------------------------------------------------------- */

/** Reduce the tensor window by window, `in_flight` requests at a time; only the oldest request is tested. */
static tw_status_t way_run_collnet(rank_t *rank, way_t *way)
{
    const tw_nccl_collnet_v12_t *net = &ncclCollNetPlugin_v12;
    const size_t window = rank->options->window_bytes / sizeof(*rank->send);
    const size_t n = (rank->n_elems + window - 1) / window, depth = (size_t)rank->options->in_flight;
    const struct timespec nap = {.tv_nsec = POLL_NS};
    void *requests[IN_FLIGHT_MAX];
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

static tw_status_t way_run_library(rank_t *rank, way_t *way)
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

static double way_error_of(const rank_t *rank)
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

static tw_status_t way_check(rank_t *rank, way_t *way)
{
    uint64_t own = XXH3_64bits(rank->recv, rank->n_elems * sizeof(*rank->recv)), all[RANKS_MAX];
    TW_TRY(bench_gather(rank->coll, &own, sizeof(own), all));
    way->identical = 1;
    for (int r = 0; r < rank->world; r++) {
        way->identical &= all[r] == all[0];
    }
    way->rel_rmse = way_error_of(rank);
    return TW_OK;
}

/** Use up the burst that an idle link lets pass, by an operation that is not measured. */
static tw_status_t way_spend_burst(rank_t *rank)
{
    size_t bytes = tw_cluster_burst_bytes(rank->options->link_bps);
    size_t n = bytes / sizeof(*rank->send) < rank->n_elems ? bytes / sizeof(*rank->send) : rank->n_elems;
    tw_coll_segment_t segment = {.src = rank->input, .dst = rank->recv, .n_elems = n};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLREDUCE, .type = TW_TYPE_BF16, .segments = &segment, .n_segments = 1};
    return n > 0 ? tw_coll_run(rank->coll, &args) : TW_OK;
}

static tw_status_t way_measure(rank_t *rank, way_t *way, int iter)
{
    /* fill it again: a codec leaves zeros there */
    memcpy(rank->send, rank->input, rank->n_elems * sizeof(*rank->send));
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

/* ---- lines of figures ---------------------------------------------------------------------------------- */

static int is_right(const rank_t *rank, const way_t *way)
{
    /* rounding: bf16's; bound: a quantized result is off by less than its size */
    double rounding = 0x1p-8, bound = 1;
    if (tw_quant_loses(&way->codec) == TW_QUANT_LOSES_NOTHING) {
        bound = rank->world * rounding;
    }
    return way->identical && way->rel_rmse < bound;
}

typedef struct {
    const char *by, *mode;
    int n_nodes, in_flight;
    size_t bytes, window_bytes;
    double link_bps, us, speedup, rel_rmse; /* speedup: over the plain mode of the same kind */
    int identical, ok;
} row_t;

static const bench_column_t columns[] = {
    {"by", "by", "%9s", BENCH_STRING, BENCH_AT(by), 0},
    {"mode", "mode", "%8s", BENCH_STRING, BENCH_AT(mode), 0},
    {"nodes", NULL, NULL, BENCH_INT, BENCH_AT(n_nodes), 0},
    {"bytes", NULL, NULL, BENCH_INT64, BENCH_AT(bytes), 0},
    {"window", NULL, NULL, BENCH_INT64, BENCH_AT(window_bytes), 0},
    {"in_flight", NULL, NULL, BENCH_INT, BENCH_AT(in_flight), 0},
    {"link_bps", NULL, NULL, BENCH_DOUBLE, BENCH_AT(link_bps), 0},
    {"us_median", "median, us", "%13.1f", BENCH_DOUBLE, BENCH_AT(us), 0},
    {"speedup", "speed-up", "%9.2f", BENCH_DOUBLE, BENCH_AT(speedup), 0},
    {"rel_rmse", "relative RMSE", "%14.2e", BENCH_DOUBLE, BENCH_AT(rel_rmse), 0},
    {"identical", "same bits", "%10s", BENCH_BOOL, BENCH_AT(identical), 0},
    {"ok", "ok", "%3s", BENCH_BOOL, BENCH_AT(ok), 0},
};

static const bench_table_t table = {
    .columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0]), .is_remarked = 1};

static int print_lines(rank_t *rank, FILE *json)
{
    const options_t *options = rank->options;
    double plain_us[2] = {0};
    int n_bad = 0;
    printf("# thinwire collnet: all-reduce of %zu bytes of bf16, %d nodes, link %.0f Mb/s\n", options->bytes,
           rank->world, options->link_bps / 1e6);
    printf("# collnet: windows of %zu bytes, %d at a time; speed-up: over plain of the same kind\n",
           options->window_bytes, options->in_flight);
    bench_table_head(&table);
    for (size_t i = 0; i < rank->n_ways; i++) {
        way_t *way = &rank->ways[i];
        double us = 1e6 * tw_median(way->sec, (size_t)options->iters);
        plain_us[i % 2] = i < 2 ? us : plain_us[i % 2];
        const row_t row = {.by = way->comm ? "collnet" : "library",
                           .mode = tw_quant_row_get(way->codec.kind)->name,
                           .n_nodes = rank->world,
                           .in_flight = options->in_flight,
                           .bytes = options->bytes,
                           .window_bytes = options->window_bytes,
                           .link_bps = options->link_bps,
                           .us = us,
                           .speedup = plain_us[i % 2] / us,
                           .rel_rmse = way->rel_rmse,
                           .identical = way->identical,
                           .ok = is_right(rank, way)};
        n_bad += bench_table_report(&table, &row, NULL, json) != TW_OK || !row.ok;
    }
    return n_bad;
}

/* ---- flags --------------------------------------------------------------------------------------------- */

static const char doc[] =
    "All-reduces of bf16 between the nodes of a cluster in a box: through the NCCL collnet plugin, called as "
    "NCCL calls it, and by the library's own collective, plain and by every codec that sums.";

#define AT(member) offsetof(options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"nodes", "4", "N", "Nodes of one rank", TW_CONFIG_INT32, AT(n_nodes), 2, RANKS_MAX, NULL}},
    {.field = {"link", "1gbit", "RATE", "Rate of each node's link", TW_CONFIG_RATE, AT(link_bps), 0, 0, NULL},
     .letter = 'l',
     .take = tw_flag_take_link},
    {.field = {"bytes", "16M", "SIZE", "Of the tensor", TW_CONFIG_BYTES, AT(bytes), 2, 1 << 30, NULL}},
    {.field = {"window", "512K", "SIZE", "Of one request to the collnet; NCCL's are 256K to 4M",
               TW_CONFIG_BYTES, AT(window_bytes), 2, 1 << 30, NULL}},
    {.field = {"in-flight", "8", "N", "Requests under way at a time, as NCCL's steps", TW_CONFIG_INT32,
               AT(in_flight), 1, IN_FLIGHT_MAX, NULL}},
    {.field = {"iters", "10", "N", "Of which the median counts", TW_CONFIG_INT32, AT(iters), 1, ITERS_MAX,
               NULL}},
    {.field = {"json", NULL, "FILE", "Append a line of JSON for each line", TW_CONFIG_STRING, AT(json), 0, 0,
               NULL}},
};

/** Round sizes down to whole elements of bf16. */
static void check_flags(struct argp_state *state, void *ctx)
{
    options_t *options = ctx;
    (void)state;
    options->bytes = options->bytes / 2 * 2;
    options->window_bytes = options->window_bytes / 2 * 2;
}

/* ---- the program --------------------------------------------------------------------------------------- */

/** Run all ways in turn; the first round is not timed, but checked. */
static tw_status_t measure_all(rank_t *rank)
{
    for (int iter = -1; iter < rank->options->iters; iter++) {
        for (size_t i = 0; i < rank->n_ways; i++) {
            TW_TRY(way_measure(rank, &rank->ways[i], iter));
        }
    }
    return TW_OK;
}

static int collnet_run_rank(const options_t *options)
{
    static rank_t rank;
    FILE *json = NULL;
    int n_bad = 0;
    tw_status_t status = rank_init(&rank, options);

    status = status == TW_OK ? ways_connect(&rank) : status;
    if (status == TW_OK && rank.rank == 0) {
        status = bench_json_open(options->json, BENCH_JSON_APPEND, &json);
    }
    status = status == TW_OK ? measure_all(&rank) : status;
    if (status == TW_OK && rank.rank == 0) {
        n_bad = print_lines(&rank, json);
    }
    status = bench_json_close(options->json, json, status);
    ways_disconnect(&rank);
    rank_cleanup(&rank);
    return status != TW_OK || n_bad > 0;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {.flags = flag_list,
                                     .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
                                     .doc = doc,
                                     .check = check_flags};
    options_t options = {0};
    int code = 1;
    tw_flags_read(&flags, argc, argv, &options);
    if (tw_job_launched()) {
        return collnet_run_rank(&options);
    }
    const tw_cluster_params_t params = {.n_nodes = options.n_nodes,
                                        .ranks_per_node = 1,
                                        .link_bps = options.link_bps,
                                        .argv = (const char *const *)argv};
    return tw_cluster_run_self(&params, &code) == TW_OK ? code : 1;
}
