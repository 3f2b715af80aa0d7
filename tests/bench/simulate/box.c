/* The simulator beside real processes: the ranks of a cluster in a box run the library's operations, and
 * rank 0 simulates the same. Both times are shown. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench/columns.h"
#include "bench/exchange.h"
#include "cluster/cluster.h"
#include "collectives/model/measuring.h"
#include "flags/flags.h"
#include "tests/bench/simulate/options.h"

#define MOST_TIMES 100
#define MODEL_SEC 30.0
/* Largest tensor of which algorithms are run that send all of it from everybody to everybody. */
#define MOST_WHOLES ((size_t)1 << 20)
#define PACKET_LEAST ((size_t)4 << 10)
/* A megabyte that two cores pass on takes them some milliseconds, a link of 200 Mb/s 42; and a rank's share
 * is many windows of a connection, by which some are ahead of others at the end. */
#define BYTES ((size_t)16 << 20) /* over the ranks of a node, which all send and get by one link */
/* Share of a link's bytes that is not headers of Ethernet, IP and TCP. */
#define TCP_SHARE (1448.0 / 1514.0)

typedef struct box_options {
    int n_nodes, ranks_per_node, n_times;
    double link_bps;
    size_t op, bytes; /* op: SIM_OPS: all */
    const char *algo, *json;
} box_options_t;

/* ---- flags --------------------------------------------------------------------------------------------- */

static void box_take_op(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    ((box_options_t *)ctx)->op = tw_flag_choice(state, flag, text, sim_op_names, SIM_OPS);
}

#define AT(member) offsetof(box_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"op", NULL, "OP", "allgather, reduce_scatter or allreduce (default: all three)",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = box_take_op},
    {.field = {"algo", NULL, "NAME", "One algorithm (default: all plain ones)", TW_CONFIG_STRING, AT(algo), 0,
               0, NULL}},
    {.field = {"bytes", NULL, "SIZE", "Of the whole tensor, bf16 (default: 16M over the ranks of a node)",
               TW_CONFIG_BYTES, AT(bytes), 1, 1e15, NULL}},
    {.field = {"times", "5", "N", "How often each runs", TW_CONFIG_INT32, AT(n_times), 1, MOST_TIMES, NULL}},
    {.field = {"nodes", "4", "N", "Nodes", TW_CONFIG_INT32, AT(n_nodes), 1, TW_CLUSTER_MAX_NODES, NULL}},
    {.field = {"ranks-per-node", "1", "L", "Ranks on each", TW_CONFIG_INT32, AT(ranks_per_node), 1,
               TW_CLUSTER_MAX_RANKS, NULL}},
    {.field = {"link", "200mbit", "RATE", "Of each node, each way", TW_CONFIG_RATE, AT(link_bps), 0, 0, NULL},
     .take = tw_flag_take_link},
    {.field = {"json", NULL, "FILE", "A JSON line for each row", TW_CONFIG_STRING, AT(json), 0, 0, NULL}},
};

/* ---- rows ---------------------------------------------------------------------------------------------- */

typedef struct row {
    const char *op, *algo;
    int nodes, ranks;
    double bytes, chunk_bytes, sec, least_sec, most_sec, simulated_sec, ratio;
} row_t;

static const bench_column_t columns[] = {
    {"op", "op", "%14s", BENCH_STRING, BENCH_AT(op), 0},
    {"algorithm", "algorithm", "%16s", BENCH_STRING, BENCH_AT(algo), 0},
    {"nodes", "nodes", "%5lld", BENCH_INT, BENCH_AT(nodes), 0},
    {"ranks", "ranks", "%5lld", BENCH_INT, BENCH_AT(ranks), 0},
    {"bytes", NULL, NULL, BENCH_DOUBLE, BENCH_AT(bytes), 0},
    {"chunk_bytes", "chunk, KB", "%9.0f", BENCH_DOUBLE, BENCH_AT(chunk_bytes), 1.0 / 1024},
    {"sec", "box, ms", "%10.1f", BENCH_DOUBLE, BENCH_AT(sec), 1e3},
    {"least_sec", "least", "%10.1f", BENCH_DOUBLE, BENCH_AT(least_sec), 1e3},
    {"most_sec", "most", "%10.1f", BENCH_DOUBLE, BENCH_AT(most_sec), 1e3},
    {"simulated_sec", "simulated", "%10.1f", BENCH_DOUBLE, BENCH_AT(simulated_sec), 1e3},
    {"ratio", "of box", "%6.3f", BENCH_DOUBLE, BENCH_AT(ratio), 0},
};

static const bench_table_t table = {columns, sizeof(columns) / sizeof(columns[0]), 1};

/* ---- a rank -------------------------------------------------------------------------------------------- */

typedef struct box {
    const box_options_t *options;
    tw_transport_t *transport;
    tw_coll_t *coll;
    int rank, world;
    tw_coll_model_t model; /* as it was measured here */
    FILE *json;            /* NULL: none */
} box_t;

/** Ranks of a node share the windows that a connection has where a node has one rank: queues are as deep. */
static size_t packet_bytes(const box_options_t *o)
{
    return TW_LARGER(SIM_PACKET_BYTES / (size_t)o->ranks_per_node, PACKET_LEAST);
}

/** Measure the cost model, before there is a communicator: all tags are free then. */
static tw_status_t measure_model(box_t *box)
{
    tw_topo_t topo;
    TW_TRY(tw_topo_init(&topo, box->transport, NULL, box->world));
    tw_bootstrap_t boot = {.transport = box->transport, .topo = &topo, .timeout_sec = MODEL_SEC};
    tw_status_t status = tw_coll_model_measure(&boot, &box->model);
    tw_topo_cleanup(&topo);
    return status;
}

static tw_status_t box_init(box_t *box, const box_options_t *o)
{
    tw_job_t job;
    *box = (box_t){.options = o};
    TW_TRY(tw_job_from_env(&job));
    TW_TRY(tw_transport_create(&job, &box->transport));
    box->rank = job.rank;
    box->world = job.world;
    TW_FAIL_IF(job.world != o->n_nodes * o->ranks_per_node, TW_ERR_CONFIG,
               "--nodes and --ranks-per-node say %d ranks, the job has %d", o->n_nodes * o->ranks_per_node,
               job.world);
    TW_TRY(measure_model(box));
    TW_TRY(bench_json_open(box->rank == 0 ? o->json : NULL, BENCH_JSON_ANEW, &box->json));
    return tw_coll_create(&(tw_coll_params_t){.transport = box->transport}, &box->coll);
}

static tw_status_t run_once(box_t *box, const tw_coll_args_t *args, double *sec, double *chunk_bytes)
{
    tw_coll_request_t *request;
    tw_coll_plan_t plan;
    TW_TRY(bench_barrier(box->coll));
    double begin = tw_time_sec();
    TW_TRY(tw_coll_post(box->coll, args, &request));
    tw_coll_request_plan(request, &plan);
    TW_TRY(tw_coll_wait(request));
    *chunk_bytes = (double)plan.chunk_bytes;
    return bench_most(box->coll, tw_time_sec() - begin, sec);
}

static tw_status_t run_times(box_t *box, const tw_coll_args_t *args, row_t *row)
{
    double times[MOST_TIMES], first;
    int n = box->options->n_times;
    TW_TRY(run_once(box, args, &first, &row->chunk_bytes)); /* plans */
    for (int i = 0; i < n; i++) {
        TW_TRY(run_once(box, args, &times[i], &row->chunk_bytes));
    }
    row->sec = tw_median(times, (size_t)n); /* sorts them */
    row->least_sec = times[0];
    row->most_sec = times[n - 1];
    return TW_OK;
}

static tw_status_t box_measure(box_t *box, const tw_coll_algo_info_t *algo, row_t *row)
{
    size_t bytes = box->options->bytes, n_elems = bytes / tw_type_bytes(TW_TYPE_BF16);
    char *memory = calloc(2, bytes + (size_t)box->world);
    tw_coll_segment_t segment = {.src = memory, .dst = memory ? memory + bytes : NULL, .n_elems = n_elems};
    tw_coll_args_t args = {.op = algo->op,
                           .type = TW_TYPE_BF16,
                           .algo = algo->name,
                           .segments = &segment,
                           .n_segments = 1,
                           .factor = 1};
    TW_FAIL_IF(!memory, TW_ERR_NO_MEMORY, "simulate: out of memory");
    tw_status_t status = run_times(box, &args, row);
    free(memory);
    return status;
}

/* ---- both ---------------------------------------------------------------------------------------------- */

/** Take from a measured model everything but the rate of the nodes' links. */
static void box_apply_model(sim_cluster_t *c, const tw_coll_model_t *model)
{
    c->in_node_Bps = 1.0 / model->node.beta_sec;
    c->latency_sec = model->inter.alpha_sec;
    c->in_node_latency_sec = model->node.alpha_sec;
    c->turn_sec = model->inter.turn_sec;
    c->in_node_turn_sec = model->node.turn_sec;
    c->message_sec = model->inter.message_sec;
    c->add_sec = model->reduce_sec;
}

/** Simulate links as they are shaped, the rest as it was measured. */
static tw_status_t box_simulate(const box_t *box, const tw_algo_t *algo, row_t *row)
{
    const box_options_t *o = box->options;
    sim_cluster_t c = {.n_nodes = o->n_nodes,
                       .ranks_per_node = o->ranks_per_node,
                       .oversubscription = 1.0,
                       .slow_node = -1,
                       .straggler = -1,
                       .packet_bytes = (double)packet_bytes(o),
                       .seed = 1};
    c.link_Bps = o->link_bps > 0.0 ? o->link_bps / 8.0 * TCP_SHARE : 1.0 / box->model.inter.beta_sec;
    for (int f = 0; f < TW_FORM_COUNT; f++) {
        c.ratio[f] = 1.0;
    }
    box_apply_model(&c, &box->model);
    sim_result_t result = {.done = calloc((size_t)box->world, sizeof(double))};
    tw_status_t status =
        result.done ? sim_run(&c, algo, (double)o->bytes, row->chunk_bytes, &result) : TW_ERR_NO_MEMORY;
    row->simulated_sec = result.sec;
    row->ratio = row->simulated_sec / row->sec;
    free(result.done);
    return status;
}

static tw_status_t box_compare(box_t *box, size_t op, const tw_algo_t *algo, int *is_near)
{
    row_t row = {.op = sim_op_names[op],
                 .algo = algo->info.name,
                 .nodes = box->options->n_nodes,
                 .ranks = box->world,
                 .bytes = (double)box->options->bytes};
    TW_TRY(box_measure(box, &algo->info, &row));
    if (box->rank > 0) {
        return TW_OK;
    }
    TW_TRY(box_simulate(box, algo, &row));
    *is_near = fabs(row.ratio - 1.0) <= 0.1;
    return bench_table_report(&table, &row, NULL, box->json);
}

static tw_status_t compare_all(box_t *box)
{
    const box_options_t *o = box->options;
    const tw_algo_t *algo;
    int n = 0, n_near = 0;
    if (box->rank == 0) {
        bench_table_head(&table);
    }
    for (size_t op = 0; op < SIM_OPS; op++) {
        for (size_t i = 0; (o->op == SIM_OPS || o->op == op) && (algo = sim_algo(sim_ops[op], 0, i)); i++) {
            int is_asked = !o->algo || strcmp(o->algo, algo->info.name) == 0, is_near = 0;
            if (is_asked && (algo->flows.of != TW_FLOWS_WHOLES || o->bytes <= MOST_WHOLES)) {
                TW_TRY(box_compare(box, op, algo, &is_near));
                n_near += is_near;
                n++;
            }
        }
    }
    if (box->rank == 0 && n > 0) {
        printf("# %d of %d simulated within 10 %% of the box\n", n_near, n);
    } else if (box->rank == 0) {
        tw_error("--algo %s: no plain algorithm for so many bytes is called so", o->algo);
    }
    return n > 0 ? TW_OK : TW_ERR_NOT_FOUND;
}

static int run_rank(const box_options_t *o)
{
    box_t box;
    tw_status_t status = box_init(&box, o);
    status = status == TW_OK ? compare_all(&box) : status;
    status = bench_json_close(o->json, box.json, status);
    tw_coll_destroy(box.coll);
    tw_transport_destroy(box.transport);
    return status != TW_OK;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list,
        .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
        .doc =
            "Runs plain operations in a cluster in a box and on the simulator's virtual clock, and shows "
            "both "
            "times.\v"
            "With the links' rate and the bytes that are the default, two cores are enough for 16 ranks and "
            "the links take the time. A connection has 256 KB, over the ranks of a node, under way at most, "
            "connections take turns, and nothing is dropped."};
    box_options_t options = {.op = SIM_OPS};
    int code = 1;
    tw_flags_read(&flags, argc, argv, &options);
    options.bytes = options.bytes > 0 ? options.bytes : BYTES / (size_t)options.ranks_per_node;
    if (tw_job_launched()) {
        return run_rank(&options);
    }
    const tw_cluster_params_t params = {.n_nodes = options.n_nodes,
                                        .ranks_per_node = options.ranks_per_node,
                                        .link_bps = options.link_bps,
                                        .window_bytes = SIM_WINDOW_PACKETS * packet_bytes(&options),
                                        .argv = (const char *const *)argv,
                                        .no_loopback = 1};
    return tw_cluster_run_self(&params, &code) == TW_OK ? code : 1;
}
