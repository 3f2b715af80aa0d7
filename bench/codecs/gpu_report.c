/* The codecs on a GPU: the table, and the lines of JSON. */
#include "bench/codecs/gpu.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

#include "bench/columns.h"

#define SMALL_BYTES ((size_t)1 << 20)
#define LARGE_BYTES ((size_t)64 << 20)

/* ---- bars ---------------------------------------------------------------------------------------------- */

static size_t plain_bytes(const qg_case_t *c)
{
    return c->n_elems * tw_type_bytes(c->type);
}

double qg_bar(const qg_case_t *c)
{
    if (plain_bytes(c) >= LARGE_BYTES) {
        return c->op == QB_REDUCE_ENCODE ? 0.75 : 0.85;
    }
    return plain_bytes(c) >= SMALL_BYTES ? 0.60 : 0;
}

/* ---- columns ------------------------------------------------------------------------------------------- */

/* GB are 1e9 bytes. moved: bytes that the operation has to read and write; copy: a copy of as many. */
typedef struct {
    const char *table, *op, *codec, *type, *device, *driver, *runtime, *command;
    char size[32], date[32];
    size_t bytes, segments, inputs;
    double moved_bytes, us, GBps, moved_GBps, copy_GBps, fraction, bar;
    int ok;
} row_t;

#define AT(member) offsetof(row_t, member)

static const bench_column_t columns[] = {
    {"table", NULL, NULL, BENCH_STRING, AT(table), 0, 0},
    {"op", "op", "%-18s", BENCH_STRING, AT(op), 0, 0},
    {"codec", "codec", "%-38s", BENCH_STRING, AT(codec), 0, 0},
    {"type", "type", "%-4s", BENCH_STRING, AT(type), 0, 0},
    {NULL, "source", "%8s", BENCH_TEXT, AT(size), 0, sizeof(((row_t *)NULL)->size)},
    {"bytes", NULL, NULL, BENCH_SIZE, AT(bytes), 0, 0},
    {"segments", "segments", "%8lld", BENCH_SIZE, AT(segments), 0, 0},
    {"inputs", NULL, NULL, BENCH_SIZE, AT(inputs), 0, 0},
    {"moved_bytes", NULL, NULL, BENCH_DOUBLE, AT(moved_bytes), 0, 0},
    {"time_us_median", "us", "%8.1f", BENCH_DOUBLE, AT(us), 0, 0},
    {"GBps", NULL, NULL, BENCH_DOUBLE, AT(GBps), 0, 0},
    {"moved_GBps", "GB/s moved", "%10.1f", BENCH_DOUBLE, AT(moved_GBps), 0, 0},
    {"copy_GBps", "GB/s copy", "%9.1f", BENCH_DOUBLE, AT(copy_GBps), 0, 0},
    {"floor_fraction", "/floor", "%7.3f", BENCH_DOUBLE, AT(fraction), 0, 0},
    {"bar", "bar", "%5.2f", BENCH_DOUBLE, AT(bar), 0, 0},
    {"ok", NULL, NULL, BENCH_BOOL, AT(ok), 0, 0},
    {"device", NULL, NULL, BENCH_STRING, AT(device), 0, 0},
    {"driver", NULL, NULL, BENCH_STRING, AT(driver), 0, 0},
    {"runtime", NULL, NULL, BENCH_STRING, AT(runtime), 0, 0},
    {"date", NULL, NULL, BENCH_TEXT, AT(date), 0, sizeof(((row_t *)NULL)->date)},
    {"command", NULL, NULL, BENCH_STRING, AT(command), 0, 0},
};

#undef AT

static const bench_table_t table = {columns, sizeof(columns) / sizeof(columns[0]), 0};
/* Of a case that could not be measured: op, codec and type. */
static const bench_table_t names = {columns, 4, 0};

/* ---- lines --------------------------------------------------------------------------------------------- */

tw_status_t qg_report_begin(qg_report_t *report)
{
    TW_TRY(qg_device(&report->device));
    printf("Speed on %s, driver %s, runtime %s; graphs replayed, data not in the cache; copy: device to "
           "device.\n",
           report->device.name, report->device.driver, report->device.runtime);
    bench_table_head(&table);
    return TW_OK;
}

static void format_codec(const qg_case_t *c, char *text, size_t text_bytes)
{
    char out[64] = "";
    tw_quant_codec_format(&c->codec, text, text_bytes);
    if (c->op != QB_REDUCE_ENCODE || tw_quant_codec_equal(&c->codec, &c->out)) {
        return;
    }
    size_t n = strlen(text);
    snprintf(text + n, text_bytes - n, " > %s", tw_quant_codec_format(&c->out, out, sizeof(out)));
}

/** In UTC. */
static void format_date(char *text, size_t text_bytes)
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(text, text_bytes, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

static void set_line(qg_line_t *line, const qg_case_t *c)
{
    *line = (qg_line_t){.op = qg_op_name(c->op),
                        .type = c->type,
                        .bytes = plain_bytes(c),
                        .n_segments = c->n_segments,
                        .bar = qg_bar(c)};
    format_codec(c, line->codec, sizeof(line->codec));
}

static row_t row_of(const qg_report_t *report, const qg_case_t *c)
{
    const qg_line_t *line = &report->last;
    row_t row = {.table = "gpu_speed",
                 .op = line->op,
                 .codec = line->codec,
                 .type = tw_type_name(c->type),
                 .device = report->device.name,
                 .driver = report->device.driver,
                 .runtime = report->device.runtime,
                 .command = report->command,
                 .bytes = line->bytes,
                 .segments = c->n_segments,
                 .inputs = c->n_inputs,
                 .fraction = line->fraction,
                 .bar = line->bar,
                 .ok = line->ok};
    tw_format_bytes(line->bytes, row.size, sizeof(row.size));
    format_date(row.date, sizeof(row.date));
    return row;
}

tw_status_t qg_report_result(qg_report_t *report, const qg_case_t *c, const qg_result_t *r)
{
    qg_line_t *line = &report->last;
    set_line(line, c);
    line->fraction = r->copy_sec / r->op_sec;
    line->ok = line->fraction >= line->bar;
    report->n_lines++;
    report->n_below += !line->ok;
    row_t row = row_of(report, c);
    row.moved_bytes = r->moved_bytes;
    row.us = r->op_sec * 1e6;
    row.GBps = (double)line->bytes / r->op_sec * 1e-9;
    row.moved_GBps = r->moved_bytes / r->op_sec * 1e-9;
    row.copy_GBps = r->moved_bytes / r->copy_sec * 1e-9;
    tw_status_t status = bench_table_report(&table, &row, line->ok ? NULL : "  below", report->json);
    report->n_failed += status != TW_OK;
    return status;
}

tw_status_t qg_report_case(qg_report_t *report, const qg_case_t *c)
{
    qg_result_t r;
    tw_status_t status = qg_measure(c, &r);
    if (status == TW_OK) {
        return qg_report_result(report, c, &r);
    }
    set_line(&report->last, c);
    report->n_lines++;
    report->n_failed++;
    char note[128];
    const row_t row = row_of(report, c);
    snprintf(note, sizeof(note), " failed: %s", tw_status_string(status));
    bench_table_row(&names, &row, note);
    return status;
}

/** All wanted operations with one codec and type. */
static tw_status_t report_ops(qg_report_t *report, const qb_options_t *options, qg_case_t *c)
{
    const size_t sizes[] = {SMALL_BYTES, options->bytes};
    int all = 1;
    for (int op = 0; op < QB_OP_COUNT; op++) {
        all = all && options->ops[op];
    }
    for (c->op = 0; c->op < QG_OP_COUNT; c->op++) {
        int wanted = qb_op_takes(c->op, &c->codec) && (c->op == QG_ADAMW ? all : options->ops[c->op]);
        for (size_t i = 0; wanted && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            c->n_elems = sizes[i] / tw_type_bytes(c->type);
            TW_TRY(qg_report_case(report, c));
        }
    }
    return TW_OK;
}

tw_status_t qg_report_options(qg_report_t *report, const qb_options_t *options)
{
    tw_status_t status = qg_report_begin(report);
    for (size_t t = 0; status == TW_OK && t < options->n_types; t++) {
        for (size_t i = 0; status == TW_OK && i < options->n_codecs; i++) {
            qg_case_t c = {.codec = options->codecs[i],
                           .out = options->codecs[i],
                           .type = options->types[t],
                           .n_segments = 1,
                           .n_inputs = (size_t)options->n_inputs,
                           .seconds = options->seconds};
            status = report_ops(report, options, &c);
        }
    }
    return status;
}
