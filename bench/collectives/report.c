/* The table, for people and as JSON. */
#include "bench/collectives/bench.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define RULE_COLUMNS 141

static double busbw_factor(tw_coll_op_t op, int world)
{
    double share = (world - 1.0) / world;
    return op == TW_COLL_ALLREDUCE ? 2 * share : share;
}

static double algbw(const tw_bench_row_t *row)
{
    return (double)row->bytes / row->us_median * 1e-3;
}

/* Bits per second that the busiest node sent. */
static double wire_bps(const tw_bench_row_t *row)
{
    return 8e6 * (double)row->busiest_bytes / row->us_median;
}

static double utilization(const tw_bench_report_t *report, const tw_bench_row_t *row)
{
    return report->link_bps > 0 ? wire_bps(row) / report->link_bps : 0;
}

static void print_link(const tw_bench_report_t *report)
{
    if (report->link_bps > 0) {
        printf("link %g Mb/s each way", report->link_bps * 1e-6);
    } else {
        printf("links not shaped, or their rate not known");
    }
}

static void print_rule(void)
{
    printf("# ");
    for (int i = 0; i < RULE_COLUMNS; i++) {
        putchar('-');
    }
    putchar('\n');
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
    const tw_bench_options_t *options = report->options;
    printf("# thinwire %s: %d ranks on %d nodes, ", tw_coll_op_name(options->op), report->world,
           report->n_nodes);
    print_link(report);
    printf("\n# %s, blocks of %d with a bf16 scale%s; %s\n", tw_type_name(options->type), options->block,
           options->hadamard ? ", rotated" : "", report->transport);
    printf("# data: %s\n", report->data);
    printf("# bytes on the wire: %s\n", report->wire);
    print_tcp(report);
    if (report->tcp_bps > 0) {
        printf("# one TCP stream through the same link (iperf3): %.0f Mb/s\n", report->tcp_bps * 1e-6);
    }
    if (report->link_bps > 0 && report->is_box) {
        printf("# the burst that a shaped link grants after a pause is spent before each operation\n");
    }
    printf("#\n# %10s %-6s %-18s %29s %8s %8s %11s %6s %6s %9s %5s\n", "", "", "", "time (us)          ",
           "algbw", "busbw", "inter-node", "link", "speed", "relative", "same");
    printf("# %10s %-6s %-18s %9s %9s %9s %8s %8s %11s %6s %6s %9s %5s %s\n", "bytes", "mode", "algorithm",
           "median", "min", "max", "(GB/s)", "(GB/s)", "bytes", "(%)", "-up", "RMSE", "bits", "ok");
    print_rule();
    fflush(stdout);
}

static void print_ratio(const char *format, double value, int width)
{
    if (isfinite(value) && value > 0) {
        printf(format, width, value);
    } else {
        printf(" %*s", width, "-");
    }
}

static void print_row(const tw_bench_report_t *report, const tw_bench_row_t *row)
{
    int declined = row->mode != TW_BENCH_EXACT && !row->plan.quantized;
    char algo[64];
    snprintf(algo, sizeof(algo), "%s%s", declined ? "exact " : "", row->plan.algo);
    printf("  %10zu %-6s %-18s %9.1f %9.1f %9.1f %8.3f %8.3f %11llu", row->bytes,
           tw_bench_mode_name(row->mode), algo, row->us_median, row->us_min, row->us_max, algbw(row),
           algbw(row) * busbw_factor(report->options->op, report->world),
           (unsigned long long)row->inter_node_bytes);
    print_ratio(" %*.1f", 100 * utilization(report, row), 6);
    print_ratio(" %*.2f", row->speedup, 6);
    printf(" %9.2e %5s %s", row->rel_rmse, row->identical ? "yes" : "NO", row->fault ? "NO: " : "yes");
    printf("%s", row->fault ? row->fault : "");
    if (declined) {
        printf("  (%s)", row->reason);
    }
    printf("\n");
    fflush(stdout);
}

static tw_status_t write_json(const tw_bench_report_t *report, const tw_bench_row_t *row)
{
    const tw_bench_options_t *options = report->options;
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "op", tw_coll_op_name(options->op));
    tw_json_add_string(json, "mode", tw_bench_mode_name(row->mode));
    tw_json_add_string(json, "algo", row->plan.algo);
    tw_json_add_string(json, "type", tw_type_name(options->type));
    tw_json_add_int(json, "nodes", report->n_nodes);
    tw_json_add_int(json, "ranks_per_node", report->world / report->n_nodes);
    tw_json_add_int(json, "link_bps", (int64_t)report->link_bps);
    tw_json_add_int(json, "bytes", (int64_t)row->bytes);
    tw_json_add_double(json, "time_us_median", row->us_median);
    tw_json_add_double(json, "time_us_min", row->us_min);
    tw_json_add_double(json, "time_us_max", row->us_max);
    tw_json_add_double(json, "algbw_GBps", algbw(row));
    tw_json_add_double(json, "busbw_GBps", algbw(row) * busbw_factor(options->op, report->world));
    tw_json_add_int(json, "inter_node_bytes", (int64_t)row->inter_node_bytes);
    tw_json_add_double(json, "link_utilization", utilization(report, row));
    tw_json_add_double(json, "speedup", row->speedup);
    tw_json_add_double(json, "rel_rmse", row->rel_rmse);
    tw_json_add_double(json, "max_abs_err", row->max_abs_err);
    tw_json_add_bool(json, "identical", row->identical);
    tw_json_add_bool(json, "ok", !row->fault);
    tw_json_add_bool(json, "quantized", row->plan.quantized);
    tw_json_add_int(json, "iters", row->iters);
    tw_json_add_int(json, "block", options->block);
    tw_json_add_string(json, "inner", options->inner_int8 ? "int8" : "exact");
    tw_json_add_bool(json, "hadamard", options->hadamard);
    tw_json_add_double(json, "model_us", row->plan.model_sec * 1e6);
    tw_json_add_int(json, "tcp_bps", (int64_t)report->tcp_bps);
    tw_json_add_string(json, "congestion", report->congestion);
    tw_json_add_string(json, "device", options->cuda ? "cuda" : "cpu");
    tw_json_add_string(json, "transport", report->transport);
    tw_json_add_string(json, "data", report->data);
    tw_json_add_string(json, "note", row->fault ? row->fault : row->reason);
    tw_status_t status = tw_json_write_line(json, report->json);
    tw_json_destroy(json);
    return status;
}

tw_status_t tw_bench_report_row(const tw_bench_report_t *report, const tw_bench_row_t *row)
{
    print_row(report, row);
    return report->json ? write_json(report, row) : TW_OK;
}

void tw_bench_report_progress(const char *text)
{
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    fprintf(stderr, "\r\033[K%s", text ? text : "");
    fflush(stderr);
}
