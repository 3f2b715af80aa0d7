/* The codecs on a GPU: the table, and the lines of JSON. */
#include "bench/quant_gpu.h"

#include <string.h>
#include <time.h>

#define SMALL_BYTES ((size_t)1 << 20)

tw_status_t qg_report_begin(qg_report_t *report)
{
    tw_status_t status = qg_device(report->device, sizeof(report->device));
    if (status != TW_OK)
        return status;
    printf("Speed on %s; graphs replayed, data not in the cache; copy: device to device.\n", report->device);
    printf("%-18s %-38s %-4s %8s %8s %8s %9s %9s %7s\n", "op", "codec", "type", "source", "segments", "us",
           "GB/s moved", "GB/s copy", "/floor");
    return TW_OK;
}

static void format_codec(const qg_case_t *c, char *text, size_t text_bytes)
{
    char out[64] = "";
    tw_quant_codec_format(&c->codec, text, text_bytes);
    if (c->op != QB_REDUCE_ENCODE || tw_quant_codec_equal(&c->codec, &c->out))
        return;
    size_t n = strlen(text);
    snprintf(text + n, text_bytes - n, " > %s", tw_quant_codec_format(&c->out, out, sizeof(out)));
}

static tw_status_t write_json(const qg_report_t *report, const qg_case_t *c, const char *codec,
                              const qg_result_t *r)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    double bytes = (double)(c->n_elems * tw_type_bytes(c->type));
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "table", "gpu_speed");
    tw_json_add_string(json, "op", qg_op_name(c->op));
    tw_json_add_string(json, "codec", codec);
    tw_json_add_string(json, "type", tw_type_name(c->type));
    tw_json_add_int(json, "bytes", (int64_t)bytes);
    tw_json_add_int(json, "segments", (int64_t)c->n_segments);
    tw_json_add_int(json, "inputs", (int64_t)c->n_inputs);
    tw_json_add_double(json, "moved_bytes", r->moved_bytes);
    tw_json_add_double(json, "time_us_median", r->op_sec * 1e6);
    tw_json_add_double(json, "GBps", bytes / r->op_sec * 1e-9);
    tw_json_add_double(json, "moved_GBps", r->moved_bytes / r->op_sec * 1e-9);
    tw_json_add_double(json, "copy_GBps", r->moved_bytes / r->copy_sec * 1e-9);
    tw_json_add_double(json, "floor_fraction", r->copy_sec / r->op_sec);
    tw_json_add_string(json, "device", report->device);
    tw_json_add_string(json, "date", date);
    tw_json_add_string(json, "command", report->command);
    tw_status_t status = tw_json_write_line(json, report->json);
    tw_json_destroy(json);
    return status;
}

tw_status_t qg_report_case(qg_report_t *report, const qg_case_t *c)
{
    char codec[128], bytes[32];
    qg_result_t r;
    tw_status_t status = qg_measure(c, &r);
    report->n_lines++;
    format_codec(c, codec, sizeof(codec));
    if (status != TW_OK) {
        report->n_failed++;
        printf("%-18s %-38s %-4s failed: %s\n", qg_op_name(c->op), codec, tw_type_name(c->type),
               tw_status_string(status));
        return status;
    }
    printf("%-18s %-38s %-4s %8s %8zu %8.1f %9.1f %9.1f %7.2f\n", qg_op_name(c->op), codec,
           tw_type_name(c->type), tw_format_bytes(c->n_elems * tw_type_bytes(c->type), bytes, sizeof(bytes)),
           c->n_segments, r.op_sec * 1e6, r.moved_bytes / r.op_sec * 1e-9, r.moved_bytes / r.copy_sec * 1e-9,
           r.copy_sec / r.op_sec);
    fflush(stdout);
    return report->json ? write_json(report, c, codec, &r) : TW_OK;
}

/* All wanted operations with one codec and type. */
static tw_status_t report_ops(qg_report_t *report, const qb_options_t *options, qg_case_t *c)
{
    const size_t sizes[] = {SMALL_BYTES, options->bytes};
    tw_status_t status = TW_OK;
    int all = 1;
    for (int op = 0; op < QB_OP_COUNT; op++)
        all = all && options->ops[op];
    for (c->op = 0; c->op < QG_OP_COUNT; c->op++) {
        int wanted = c->op == QG_ADAMW ? all : options->ops[c->op];
        for (size_t i = 0; status == TW_OK && wanted && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            c->n_elems = sizes[i] / tw_type_bytes(c->type);
            status = qg_report_case(report, c);
        }
    }
    return status;
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
                           .n_inputs = options->n_inputs,
                           .seconds = options->seconds};
            status = report_ops(report, options, &c);
        }
    }
    return status;
}
