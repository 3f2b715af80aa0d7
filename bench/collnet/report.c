/* The lines of figures. */
#include <stddef.h>

#include "bench/collnet/collnet.h"
#include "bench/columns.h"

static int is_right(const collnet_rank_t *rank, const collnet_way_t *way)
{
    double rounding = 0x1p-8, bound = 1; /* of bf16; a quantized one is off by less than its size */

    if (tw_quant_loses(&way->codec) == TW_QUANT_LOSES_NOTHING) {
        bound = rank->world * rounding;
    }
    return way->identical && way->rel_rmse < bound;
}

typedef struct {
    const char *by, *mode;
    int n_nodes, in_flight;
    size_t bytes, window_bytes;
    double link_bps, us, speedup, rel_rmse; /* speedup: over plain of the same kind */
    int identical, ok;
} row_t;

#define ROW(member) offsetof(row_t, member)

static const bench_column_t columns[] = {
    {"by", "by", "%9s", BENCH_STRING, ROW(by), 0},
    {"mode", "mode", "%8s", BENCH_STRING, ROW(mode), 0},
    {"nodes", NULL, NULL, BENCH_INT, ROW(n_nodes), 0},
    {"bytes", NULL, NULL, BENCH_SIZE, ROW(bytes), 0},
    {"window", NULL, NULL, BENCH_SIZE, ROW(window_bytes), 0},
    {"in_flight", NULL, NULL, BENCH_INT, ROW(in_flight), 0},
    {"link_bps", NULL, NULL, BENCH_DOUBLE, ROW(link_bps), 0},
    {"us_median", "median, us", "%13.1f", BENCH_DOUBLE, ROW(us), 0},
    {"speedup", "speed-up", "%9.2f", BENCH_DOUBLE, ROW(speedup), 0},
    {"rel_rmse", "relative RMSE", "%14.2e", BENCH_DOUBLE, ROW(rel_rmse), 0},
    {"identical", "same bits", "%10s", BENCH_BOOL, ROW(identical), 0},
    {"ok", "ok", "%3s", BENCH_BOOL, ROW(ok), 0},
};

static const bench_table_t table = {
    .columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0]), .is_remarked = 1};

int collnet_print_lines(collnet_rank_t *rank, FILE *json)
{
    const collnet_options_t *options = rank->options;
    double plain_us[2] = {0};
    int n_bad = 0;

    printf("# thinwire collnet: all-reduce of %zu bytes of bf16, %d nodes, link %.0f Mb/s\n", options->bytes,
           rank->world, options->link_bps / 1e6);
    printf("# collnet: windows of %zu bytes, %d at a time; speed-up: over plain of the same kind\n",
           options->window_bytes, options->in_flight);
    bench_table_head(&table);
    for (size_t i = 0; i < rank->n_ways; i++) {
        collnet_way_t *way = &rank->ways[i];
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
