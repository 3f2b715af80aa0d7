/* The codecs on a GPU: the table, and the lines of JSON. */
#include "bench/codecs/gpu.h"

#include <string.h>
#include <time.h>

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

/* ---- lines --------------------------------------------------------------------------------------------- */

tw_status_t qg_report_begin(qg_report_t *report)
{
    TW_TRY(qg_device(&report->device));
    printf("Speed on %s, driver %s, runtime %s; graphs replayed, data not in the cache; copy: device to "
           "device.\n",
           report->device.name, report->device.driver, report->device.runtime);
    printf("%-18s %-38s %-4s %8s %8s %8s %9s %9s %7s %5s\n", "op", "codec", "type", "source", "segments",
           "us", "GB/s moved", "GB/s copy", "/floor", "bar");
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

static void add_date(tw_json_t *json)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    tw_json_add_string(json, "date", date);
}

/** GB are 1e9 bytes. */
static tw_status_t write_json(const qg_report_t *report, const qg_case_t *c, const qg_result_t *r)
{
    const qg_line_t *line = &report->last;
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "table", "gpu_speed");
    tw_json_add_string(json, "op", line->op);
    tw_json_add_string(json, "codec", line->codec);
    tw_json_add_string(json, "type", tw_type_name(c->type));
    tw_json_add_int(json, "bytes", (int64_t)line->bytes);
    tw_json_add_int(json, "segments", (int64_t)c->n_segments);
    tw_json_add_int(json, "inputs", (int64_t)c->n_inputs);
    tw_json_add_double(json, "moved_bytes", r->moved_bytes);
    tw_json_add_double(json, "time_us_median", r->op_sec * 1e6);
    tw_json_add_double(json, "GBps", (double)line->bytes / r->op_sec * 1e-9);
    tw_json_add_double(json, "moved_GBps", r->moved_bytes / r->op_sec * 1e-9);
    tw_json_add_double(json, "copy_GBps", r->moved_bytes / r->copy_sec * 1e-9);
    tw_json_add_double(json, "floor_fraction", line->fraction);
    tw_json_add_double(json, "bar", line->bar);
    tw_json_add_bool(json, "ok", line->ok);
    tw_json_add_string(json, "device", report->device.name);
    tw_json_add_string(json, "driver", report->device.driver);
    tw_json_add_string(json, "runtime", report->device.runtime);
    add_date(json);
    tw_json_add_string(json, "command", report->command);
    tw_status_t status = tw_json_write_line(json, report->json);
    tw_json_destroy(json);
    return status;
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

tw_status_t qg_report_result(qg_report_t *report, const qg_case_t *c, const qg_result_t *r)
{
    qg_line_t *line = &report->last;
    char bytes[32];
    set_line(line, c);
    line->fraction = r->copy_sec / r->op_sec;
    line->ok = line->fraction >= line->bar;
    report->n_lines++;
    report->n_below += !line->ok;
    printf("%-18s %-38s %-4s %8s %8zu %8.1f %9.1f %9.1f %7.3f %5.2f%s\n", line->op, line->codec,
           tw_type_name(c->type), tw_format_bytes(line->bytes, bytes, sizeof(bytes)), c->n_segments,
           r->op_sec * 1e6, r->moved_bytes / r->op_sec * 1e-9, r->moved_bytes / r->copy_sec * 1e-9,
           line->fraction, line->bar, line->ok ? "" : "  below");
    fflush(stdout);
    tw_status_t status = report->json ? write_json(report, c, r) : TW_OK;
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
    printf("%-18s %-38s %-4s failed: %s\n", report->last.op, report->last.codec, tw_type_name(c->type),
           tw_status_string(status));
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
