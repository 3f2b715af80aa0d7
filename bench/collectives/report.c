/* Prints the table for people, and writes it as JSON lines. */
#include "bench/collectives/bench.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "bench/columns.h"
#include "flags/flags.h"

/* ---- columns ------------------------------------------------------------------------------------------- */

/* A row. algbw, busbw: in 10^9 bytes/s. utilization: of the busiest node's link, 0 to 1; NAN: not known. */
typedef struct {
    tw_bench_options_t asked;
    tw_bench_row_t is;
    const char *op, *mode, *algorithm, *type; /* algorithm begins with "plain" if a mode did not quantize */
    int nodes, ranks_per_node, ok;
    int64_t link_bps, tcp_bps;
    double algbw, busbw, utilization, model_us;
    const char *inner, *congestion, *device, *transport, *data, *note;
} row_t;

static const bench_column_t columns[] = {
    {"op", NULL, NULL, BENCH_STRING, BENCH_AT(op), 0},
    {"bytes", "bytes", "%10lld", BENCH_INT64, BENCH_AT(is.bytes), 0},
    {"mode", "mode", "%-8s", BENCH_STRING, BENCH_AT(mode), 0},
    {NULL, "algorithm", "%-18s", BENCH_STRING, BENCH_AT(algorithm), 0},
    {"algo", NULL, NULL, BENCH_STRING, BENCH_AT(is.plan.algo), 0},
    {"type", NULL, NULL, BENCH_STRING, BENCH_AT(type), 0},
    {"nodes", NULL, NULL, BENCH_INT, BENCH_AT(nodes), 0},
    {"ranks_per_node", NULL, NULL, BENCH_INT, BENCH_AT(ranks_per_node), 0},
    {"link_bps", NULL, NULL, BENCH_INT64, BENCH_AT(link_bps), 0},
    {"time_us_median", "median, us", "%10.1f", BENCH_DOUBLE, BENCH_AT(is.us_median), 0},
    {"time_us_min", "min, us", "%9.1f", BENCH_DOUBLE, BENCH_AT(is.us_min), 0},
    {"time_us_max", "max, us", "%9.1f", BENCH_DOUBLE, BENCH_AT(is.us_max), 0},
    {"algbw_GBps", "alg GB/s", "%8.3f", BENCH_DOUBLE, BENCH_AT(algbw), 0},
    {"busbw_GBps", "bus GB/s", "%8.3f", BENCH_DOUBLE, BENCH_AT(busbw), 0},
    {"inter_node_bytes", "inter-node", "%11lld", BENCH_INT64, BENCH_AT(is.inter_node_bytes), 0},
    {"link_utilization", "link, %", "%7.1f", BENCH_DOUBLE, BENCH_AT(utilization), 100},
    {"speedup", "speed-up", "%8.2f", BENCH_DOUBLE, BENCH_AT(is.speedup), 0},
    {"rel_rmse", "rel. RMSE", "%9.2e", BENCH_DOUBLE, BENCH_AT(is.rel_rmse), 0},
    {"max_abs_err", NULL, NULL, BENCH_DOUBLE, BENCH_AT(is.max_abs_err), 0},
    {"identical", "same bits", "%9s", BENCH_BOOL, BENCH_AT(is.identical), 0},
    {"ok", "ok", "%3s", BENCH_BOOL, BENCH_AT(ok), 0},
    {"quantized", NULL, NULL, BENCH_BOOL, BENCH_AT(is.plan.quantized), 0},
    {"iters", NULL, NULL, BENCH_INT, BENCH_AT(is.iters), 0},
    {"block", NULL, NULL, BENCH_INT, BENCH_AT(asked.block), 0},
    {"inner", NULL, NULL, BENCH_STRING, BENCH_AT(inner), 0},
    {"hadamard", NULL, NULL, BENCH_BOOL, BENCH_AT(asked.hadamard), 0},
    {"model_us", NULL, NULL, BENCH_DOUBLE, BENCH_AT(model_us), 0},
    {"tcp_bps", NULL, NULL, BENCH_INT64, BENCH_AT(tcp_bps), 0},
    {"congestion", NULL, NULL, BENCH_STRING, BENCH_AT(congestion), 0},
    {"device", NULL, NULL, BENCH_STRING, BENCH_AT(device), 0},
    {"transport", NULL, NULL, BENCH_STRING, BENCH_AT(transport), 0},
    {"data", NULL, NULL, BENCH_STRING, BENCH_AT(data), 0},
    {"note", NULL, NULL, BENCH_STRING, BENCH_AT(note), 0},
};

static const bench_table_t table = {
    .columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0]), .is_remarked = 1};

static double busbw_factor(tw_coll_op_t op, int world)
{
    double share = (world - 1.0) / world;
    return op == TW_COLL_ALLREDUCE ? 2 * share : share;
}

/** Return the bits per second that the busiest node sent to other nodes. */
static double wire_bps(const tw_bench_row_t *row)
{
    return 8e6 * (double)row->busiest_bytes / row->us_median;
}

static double utilization(const tw_bench_report_t *report, const tw_bench_row_t *row)
{
    return report->rank->link_bps > 0 ? wire_bps(row) / report->rank->link_bps : NAN;
}

static void print_link(const tw_bench_report_t *report)
{
    if (report->rank->link_bps > 0) {
        printf("link %g Mb/s each way", report->rank->link_bps * 1e-6);
    } else {
        printf("links not shaped, or their rate not known");
    }
}

static void print_tcp(const tw_bench_report_t *report)
{
    char note[TW_CLUSTER_TEXT_BYTES];
    if (report->congestion[0]) {
        printf("# congestion control of the TCP connections between nodes: %s\n", report->congestion);
    }
    if (tw_cluster_note(note)[0]) {
        printf("# NOT AS IT SHOULD BE: %s\n", note);
    }
}

void tw_bench_report_head(const tw_bench_report_t *report)
{
    const tw_bench_options_t *options = report->rank->options;
    printf("# thinwire %s: %d ranks on %d nodes, ", tw_coll_op_name(options->op), report->rank->world,
           report->rank->n_nodes);
    print_link(report);
    printf("\n# %s, blocks of %d with a bf16 scale%s; %s\n", tw_type_name(options->type), options->block,
           options->hadamard ? ", rotated" : "", report->rank->wire);
    printf("# data: %s\n", report->data);
    printf("# bytes on the wire: %s\n", report->wire);
    print_tcp(report);
    if (report->tcp_bps > 0) {
        printf("# one TCP stream through the same link (iperf3): %.0f Mb/s\n", report->tcp_bps * 1e-6);
    }
    if (report->rank->link_bps > 0 && report->rank->kind == TW_CLUSTER_NODES) {
        printf("# the burst that a shaped link grants after a pause is spent before each operation\n");
    }
    printf("#\n");
    bench_table_head(&table);
}

/** Describe the row's fault, or why its mode declined to quantize; "" if there is neither. */
static void coll_describe(const tw_bench_row_t *row, int declined, char *text, size_t text_bytes)
{
    const char *why = row->fault ? row->fault : declined ? row->reason : "";
    snprintf(text, text_bytes, *why ? "  (%s)" : "%s", why);
}

tw_status_t tw_bench_report_row(const tw_bench_report_t *report, const tw_bench_row_t *row)
{
    const tw_bench_options_t *options = report->rank->options;
    int declined = row->mode != TW_QUANT_PLAIN && !row->plan.quantized;
    double bandwidth = (double)row->bytes / row->us_median * 1e-3;
    char algorithm[64], note[TW_BENCH_REASON_BYTES + 8];
    snprintf(algorithm, sizeof(algorithm), "%s%s", declined ? "plain " : "", row->plan.algo);
    coll_describe(row, declined, note, sizeof(note));
    const row_t line = {.asked = *options,
                        .is = *row,
                        .op = tw_coll_op_name(options->op),
                        .mode = tw_quant_row_get(row->mode)->name,
                        .algorithm = algorithm,
                        .type = tw_type_name(options->type),
                        .nodes = report->rank->n_nodes,
                        .ranks_per_node = report->rank->ranks_per_node,
                        .link_bps = (int64_t)report->rank->link_bps,
                        .algbw = bandwidth,
                        .busbw = bandwidth * busbw_factor(options->op, report->rank->world),
                        .utilization = utilization(report, row),
                        .ok = !row->fault,
                        .inner = options->inner_int8 ? "int8" : "plain",
                        .model_us = row->plan.model_sec * 1e6,
                        .tcp_bps = (int64_t)report->tcp_bps,
                        .congestion = report->congestion,
                        .device = options->cuda ? "cuda" : "cpu",
                        .transport = report->rank->wire,
                        .data = report->data,
                        .note = row->fault ? row->fault : row->reason};
    return bench_table_report(&table, &line, note, report->json);
}

void tw_bench_report_progress(const char *text)
{
    tw_terminal_show(stderr, text ? text : "");
}

tw_status_t tw_bench_no_memory(const tw_bench_rank_t *rank, size_t bytes)
{
    return tw_fail(TW_ERR_NO_MEMORY, "rank %d: out of memory, for %zu bytes", rank->rank, bytes);
}
