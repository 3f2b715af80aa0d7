/* bench/quant: speed and error of the block codecs. */
#include "bench/codecs/bench.h"
#include "bench/codecs/gpu.h"
#include "bench/columns.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CODEC_TEXT_BYTES 64

/* Where lines go besides the terminal. */
typedef struct report {
    const qb_options_t *options;
    FILE *json; /* NULL: nowhere */
    const char *backend;
} report_t;

/* ---- speed --------------------------------------------------------------------------------------------- */

/* GB are 10^9 bytes of the plain side, a second; by_...: times the speed of memcpy, of the floor. */
typedef struct {
    const char *table, *op, *codec, *type, *backend, *cache;
    int threads;
    size_t bytes;
    double moved_bytes, us, gbytes, memcpy_gbytes, by_memcpy, floor_gbytes, by_floor;
} speed_row_t;

#define ROW(member) offsetof(speed_row_t, member)

static const bench_column_t speed_columns[] = {
    {"table", NULL, NULL, BENCH_STRING, ROW(table), 0, 0},
    {"op", "op", "%-14s", BENCH_STRING, ROW(op), 0, 0},
    {"codec", "codec", "%-36s", BENCH_STRING, ROW(codec), 0, 0},
    {"type", "type", "%-4s", BENCH_STRING, ROW(type), 0, 0},
    {"backend", NULL, NULL, BENCH_STRING, ROW(backend), 0, 0},
    {"threads", "threads", "%7lld", BENCH_INT, ROW(threads), 0, 0},
    {"cache", "cache", "%-5s", BENCH_STRING, ROW(cache), 0, 0},
    {"bytes", NULL, NULL, BENCH_SIZE, ROW(bytes), 0, 0},
    {"moved_bytes", NULL, NULL, BENCH_DOUBLE, ROW(moved_bytes), 0, 0},
    {"time_us_median", NULL, NULL, BENCH_DOUBLE, ROW(us), 0, 0},
    {"GBps", "GB/s", "%8.2f", BENCH_DOUBLE, ROW(gbytes), 0, 0},
    {"memcpy_GBps", "memcpy", "%8.2f", BENCH_DOUBLE, ROW(memcpy_gbytes), 0, 0},
    {NULL, "/memcpy", "%8.2f", BENCH_DOUBLE, ROW(by_memcpy), 0, 0},
    {"floor_GBps", "floor", "%8.2f", BENCH_DOUBLE, ROW(floor_gbytes), 0, 0},
    {NULL, "/floor", "%8.2f", BENCH_DOUBLE, ROW(by_floor), 0, 0},
};

static const bench_table_t speed_table = {.columns = speed_columns,
                                          .n_columns = sizeof(speed_columns) / sizeof(speed_columns[0])};

static void print_speed_head(const report_t *report)
{
    const qb_options_t *options = report->options;
    char cold[32], warm[32];
    printf("Speed, backend %s; source of %s (cold) or %s per thread (warm); reductions of %zu inputs.\n",
           report->backend, tw_format_bytes(options->bytes, cold, sizeof(cold)),
           tw_format_bytes(options->warm_bytes, warm, sizeof(warm)), (size_t)options->n_inputs);
    bench_table_head(&speed_table);
}

/** memcpy reads and writes each byte; its speed is the memory's. Data in a cache have no floor of the
 *  memory's. */
static tw_status_t report_speed(const report_t *report, const qb_speed_t *speed)
{
    char codec[CODEC_TEXT_BYTES];
    double gigabytes = (double)speed->bytes * 1e-9;
    double floor_sec =
        speed->cold ? speed->memcpy_sec * speed->moved_bytes / (2.0 * (double)speed->bytes) : NAN;
    const speed_row_t row = {.table = "speed",
                             .op = qb_op_name(speed->op),
                             .codec = tw_quant_codec_format(&speed->codec, codec, sizeof(codec)),
                             .type = tw_type_name(speed->type),
                             .backend = report->backend,
                             .cache = speed->cold ? "cold" : "warm",
                             .threads = speed->threads,
                             .bytes = speed->bytes,
                             .moved_bytes = speed->moved_bytes,
                             .us = speed->op_sec * 1e6,
                             .gbytes = gigabytes / speed->op_sec,
                             .memcpy_gbytes = gigabytes / speed->memcpy_sec,
                             .by_memcpy = speed->memcpy_sec / speed->op_sec,
                             .floor_gbytes = gigabytes / floor_sec,
                             .by_floor = floor_sec / speed->op_sec};
    return bench_table_report(&speed_table, &row, NULL, report->json);
}

static tw_status_t measure_codec(const report_t *report, qb_arena_t *arena, const tw_quant_codec_t *codec)
{
    const tw_quant_params_t params = {
        .codec = *codec, .mem = TW_MEM_HOST, .backend = report->options->backend};
    tw_quant_t *quant;
    TW_TRY(tw_quant_create(&params, &quant));
    tw_status_t status = TW_OK;
    for (int op = 0; status == TW_OK && op < QB_OP_COUNT; op++) {
        qb_speed_t speed;
        if (!report->options->ops[op] || !qb_op_takes(op, codec)) {
            continue;
        }
        status = qb_arena_measure(arena, quant, (qb_op_t)op, &speed);
        if (status == TW_OK) {
            status = report_speed(report, &speed);
        }
    }
    tw_quant_destroy(quant);
    return status;
}

static tw_status_t measure_state(const report_t *report, tw_type_t type, int threads, int cold)
{
    const qb_options_t *options = report->options;
    qb_arena_t *arena;
    TW_TRY(qb_arena_create(options, type, threads, cold, &arena));
    tw_status_t status = TW_OK;
    for (size_t i = 0; status == TW_OK && i < options->n_codecs; i++) {
        status = measure_codec(report, arena, &options->codecs[i]);
    }
    qb_arena_destroy(arena);
    return status;
}

static tw_status_t measure_threads(const report_t *report, int threads)
{
    const qb_options_t *options = report->options;
    for (int cold = 1; cold >= 0; cold--) {
        if (!(cold ? options->cold : options->warm)) {
            continue;
        }
        for (size_t i = 0; i < options->n_types; i++) {
            TW_TRY(measure_state(report, options->types[i], threads, cold));
        }
    }
    return TW_OK;
}

static tw_status_t measure_speeds(const report_t *report)
{
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), given = report->options->threads;
    print_speed_head(report);
    tw_status_t status = measure_threads(report, given ? given : 1);
    if (status == TW_OK && !given && cores > 1) {
        status = measure_threads(report, cores);
    }
    printf("\n");
    return status;
}

/* ---- error --------------------------------------------------------------------------------------------- */

static tw_status_t report_error(const report_t *report, const char *codec, const char *data, double rel_rmse)
{
    printf(" %12.5f", rel_rmse);
    fflush(stdout);
    if (!report->json) {
        return TW_OK;
    }
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "table", "error");
    tw_json_add_string(json, "codec", codec);
    tw_json_add_string(json, "data", data);
    tw_json_add_double(json, "rel_rmse", rel_rmse);
    tw_status_t status = tw_json_write_line(json, report->json);
    tw_json_destroy(json);
    return status;
}

static tw_status_t error_line(const report_t *report, const tw_quant_codec_t *codec)
{
    static const char *const data[] = {"gaussian", "heavy-tailed"};
    char text[CODEC_TEXT_BYTES];
    double rel_rmse;
    tw_status_t status = TW_OK;
    printf("%-36s", tw_quant_codec_format(codec, text, sizeof(text)));
    for (int heavy = 0; status == TW_OK && heavy < 2; heavy++) {
        status = qb_error_synthetic(report->options, codec, heavy, &rel_rmse);
        if (status == TW_OK) {
            status = report_error(report, text, data[heavy], rel_rmse);
        }
    }
    if (status == TW_OK && report->options->tensors) {
        status = qb_error_tensors(report->options, codec, &rel_rmse);
        if (status == TW_OK) {
            status = report_error(report, text, report->options->tensors, rel_rmse);
        }
    }
    printf("\n");
    return status;
}

static tw_status_t error_table(const report_t *report)
{
    const qb_options_t *options = report->options;
    printf("Error of one round trip, relative RMSE; heavy-tailed: normal with lognormal scale.\n");
    printf("%-36s %12s %12s%s\n", "codec", "gaussian", "heavy-tailed",
           options->tensors ? "      tensors" : "");
    for (size_t i = 0; i < options->n_codecs; i++) {
        TW_TRY(error_line(report, &options->codecs[i]));
    }
    return TW_OK;
}

/* ---- main ---------------------------------------------------------------------------------------------- */

/** The name behind "auto", and whether the one that was asked for exists. */
static tw_status_t find_backend(report_t *report)
{
    const tw_quant_params_t params = {
        .codec = report->options->codecs[0], .mem = TW_MEM_HOST, .backend = report->options->backend};
    tw_quant_t *quant;
    TW_TRY(tw_quant_create(&params, &quant));
    report->backend = tw_quant_backend_name(quant);
    tw_quant_destroy(quant);
    return TW_OK;
}

static tw_status_t run_gpu(const report_t *report, int argc, char **argv)
{
    char command[512] = "";
    qg_report_t gpu = {.json = report->json, .command = command};
    for (int i = 0; i < argc; i++) {
        size_t n = strlen(command);
        snprintf(command + n, sizeof(command) - n, i ? " %s" : "%s", argv[i]);
    }
    return qg_report_options(&gpu, report->options);
}

static tw_status_t run(report_t *report)
{
    tw_status_t status = find_backend(report);
    if (status == TW_OK && report->options->speed) {
        status = measure_speeds(report);
    }
    if (status == TW_OK && report->options->error) {
        status = error_table(report);
    }
    return status;
}

int main(int argc, char **argv)
{
    qb_options_t options;
    report_t report = {.options = &options};
    qb_options_parse(argc, argv, &options);
    tw_status_t status = bench_json_open(options.json, BENCH_JSON_ANEW, &report.json);
    if (status == TW_OK) {
        status = options.cuda ? run_gpu(&report, argc, argv) : run(&report);
    }
    status = bench_json_close(options.json, report.json, status);
    return status == TW_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
