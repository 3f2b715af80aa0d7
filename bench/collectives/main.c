/* The program, compiled once for each BENCH_OP: runs a rank, which measures all sizes. */
#include <stdlib.h>

#include "bench/collectives/bench.h"
#include "bench/columns.h"

/* Limit of the seconds for measured operations of all sizes together. */
#define BUDGET_SEC 60.0

/* ---- a rank -------------------------------------------------------------------------------------------- */

static tw_status_t rank_init_nodes(tw_bench_rank_t *rank)
{
    rank->rank = tw_transport_rank(rank->transport);
    rank->world = tw_transport_world(rank->transport);
    rank->n_nodes = tw_transport_n_nodes(rank->transport);
    rank->ranks_per_node = rank->world / rank->n_nodes;
    rank->node_of = calloc((size_t)rank->world, sizeof(*rank->node_of));
    if (!rank->node_of) {
        return tw_bench_no_memory(rank, (size_t)rank->world * sizeof(*rank->node_of));
    }
    rank->is_leader = 1;
    for (int r = 0; r < rank->world; r++) {
        rank->node_of[r] = tw_transport_node_of(rank->transport, r);
        if (r < rank->rank && rank->node_of[r] == tw_transport_node_of(rank->transport, rank->rank)) {
            rank->is_leader = 0;
        }
    }
    return TW_OK;
}

static void rank_cleanup(tw_bench_rank_t *rank)
{
    if (rank->measured != rank->coll) {
        tw_coll_destroy(rank->measured);
    }
    tw_bench_gpu_destroy(rank->gpu);
    free(rank->node_of);
    tw_coll_destroy(rank->coll);
    tw_transport_destroy(rank->transport);
}

static tw_status_t rank_init(tw_bench_rank_t *rank, const tw_bench_options_t *options)
{
    *rank = (tw_bench_rank_t){.options = options, .kind = tw_cluster_kind(), .is_counted = 1};
    tw_status_t status = tw_job_from_env(&rank->job);
    status = status == TW_OK ? tw_transport_create(&rank->job, &rank->transport) : status;
    status = status == TW_OK ? rank_init_nodes(rank) : status;
    if (status == TW_OK) {
        tw_coll_params_t params = {.transport = rank->transport};
        status = tw_coll_create(&params, &rank->coll);
    }
    if (status == TW_OK) {
        rank->measured = rank->coll;
        snprintf(rank->wire, sizeof(rank->wire), "%s", tw_transport_describe(rank->transport));
        status = options->cuda ? tw_bench_gpu_create(rank) : TW_OK;
    }
    rank->device = rank->kind == TW_CLUSTER_NODES && rank->is_counted ? getenv("TW_NET_DEVICES") : NULL;
    int known = rank->kind == TW_CLUSTER_NODES || (rank->kind == TW_CLUSTER_NONE && options->link_given);
    rank->link_bps = known ? options->link_bps : 0;
    return status;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static const char *describe_wire(const tw_bench_rank_t *rank)
{
    if (!rank->is_counted) {
        return "as planned: NCCL does not count its own (\"native\": as its rings would send them)";
    }
    if (rank->device) {
        return "as counted by the transport, equal to the plan, and checked against the interfaces' own "
               "counters";
    }
    return "as counted by the transport, equal to the plan (no interface of our own to check them against)";
}

static void print_foot(const tw_bench_report_t *report, const tw_bench_row_t *plain, size_t n_rows,
                       size_t n_faults)
{
    if (plain && report->tcp_bps > 0 && plain->busiest_bytes > 0) {
        char size[32];
        double bits = 8e6 * (double)plain->busiest_bytes;
        printf("# plain at %s: %.0f Mb/s from the busiest node, %.1f %% of one TCP stream (best iteration: "
               "%.1f %%)\n",
               tw_format_bytes(plain->bytes, size, sizeof(size)), bits / plain->us_median * 1e-6,
               100 * bits / plain->us_median / report->tcp_bps, 100 * bits / plain->us_min / report->tcp_bps);
    }
    printf("# %zu lines, %zu not ok\n", n_rows, n_faults);
}

/** Copy the row to *plain if it is plain's of the largest size so far. */
static void note_plain(const tw_bench_row_t *row, tw_bench_row_t *plain, int *have)
{
    if (row->mode == TW_QUANT_PLAIN && (!*have || row->bytes >= plain->bytes)) {
        *plain = *row;
        *have = 1;
    }
}

static tw_status_t run_sizes(tw_bench_rank_t *rank, tw_bench_report_t *report, size_t *n_faults)
{
    const tw_bench_options_t *options = rank->options;
    tw_bench_row_t rows[TW_QUANT_KINDS], plain = {0};
    int have_plain = 0;
    tw_status_t status = TW_OK;
    for (size_t s = 0; s < options->n_sizes && status == TW_OK; s++) {
        status = tw_bench_measure(rank, options->sizes[s], BUDGET_SEC / (double)options->n_sizes, rows);
        for (size_t m = 0; m < options->n_modes && status == TW_OK; m++) {
            *n_faults += rows[m].fault != NULL;
            note_plain(&rows[m], &plain, &have_plain);
            status = rank->rank == 0 ? tw_bench_report_row(report, &rows[m]) : TW_OK;
        }
    }
    if (status == TW_OK && rank->rank == 0) {
        print_foot(report, have_plain ? &plain : NULL, options->n_sizes * options->n_modes, *n_faults);
    }
    return status;
}

static tw_status_t run_report(tw_bench_rank_t *rank, FILE *json, size_t *n_faults)
{
    const tw_bench_options_t *options = rank->options;
    size_t largest = 0;
    for (size_t s = 0; s < options->n_sizes; s++) {
        largest = options->sizes[s] > largest ? options->sizes[s] : largest;
    }
    char *data = tw_bench_describe_data(rank, largest);
    if (!data) {
        return TW_ERR_INVALID;
    }
    tw_bench_report_t report = {.rank = rank, .data = data, .wire = describe_wire(rank), .json = json};
    char congestion[TW_BENCH_REASON_BYTES] = "";
    tw_status_t status = tw_bench_tcp_rate(rank, &report.tcp_bps);
    if (status == TW_OK) {
        status = tw_bench_congestion(rank, congestion);
        report.congestion = congestion;
    }
    if (status == TW_OK && rank->rank == 0) {
        tw_bench_report_head(&report);
    }
    status = status == TW_OK ? run_sizes(rank, &report, n_faults) : status;
    free(data);
    return status;
}

/** Warn of unknown variables, only on rank 0, because all ranks have the same environment. */
static void check_environment(const tw_bench_rank_t *rank)
{
    const tw_config_table_t *const tables[] = {&tw_log_config_table, &tw_transport_config_table,
                                               &tw_coll_config_table, &tw_cluster_config_table};
    if (rank->rank == 0) {
        tw_config_check_environment(tables, sizeof(tables) / sizeof(tables[0]));
    }
}

/** Run this rank. Return its exit code, which on rank 0 is a failure if a row has a fault. */
static int coll_run_rank(const tw_bench_options_t *options)
{
    tw_bench_rank_t rank;
    FILE *json = NULL;
    size_t n_faults = 0;
    tw_status_t status = rank_init(&rank, options);
    if (status == TW_OK) {
        check_environment(&rank);
    }
    if (status == TW_OK && rank.rank == 0) {
        status = bench_json_open(options->json, BENCH_JSON_ANEW, &json);
    }
    status = status == TW_OK ? run_report(&rank, json, &n_faults) : status;
    status = bench_json_close(options->json, json, status);
    int is_first = rank.rank == 0;
    rank_cleanup(&rank);
    return status != TW_OK || (is_first && n_faults > 0);
}

/* ---- the program --------------------------------------------------------------------------------------- */

/** Start a cluster whose ranks run this program again. */
static int coll_run_cluster(const tw_bench_options_t *options, char **argv)
{
    tw_cluster_params_t params = {.n_nodes = options->n_nodes,
                                  .ranks_per_node = options->ranks_per_node,
                                  .link_bps = options->link_bps,
                                  .argv = (const char *const *)argv};
    int exit_code = 1;
    return tw_cluster_run_self(&params, &exit_code) == TW_OK ? exit_code : 1;
}

int main(int argc, char **argv)
{
    tw_bench_options_t options;
    tw_bench_options_parse(&options, BENCH_OP, argc, argv);
    return tw_job_launched() ? coll_run_rank(&options) : coll_run_cluster(&options, argv);
}
