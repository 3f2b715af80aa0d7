/* The codecs on a GPU: the table, and the lines of JSON. */
#include "tests/gpu/codec_report.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

#include "bench/columns.h"

#define SMALL_BYTES ((size_t)1 << 20)
#define LARGE_BYTES ((size_t)64 << 20)

/* ---- bars ---------------------------------------------------------------------------------------------- */

double cb_gpu_bar(const cb_case_t *c)
{
    if (cb_case_bytes(c) >= LARGE_BYTES) {
        return c->op == CB_REDUCE_ENCODE ? 0.75 : 0.85;
    }
    return cb_case_bytes(c) >= SMALL_BYTES ? 0.60 : 0;
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

static const bench_column_t columns[] = {
    {"table", NULL, NULL, BENCH_STRING, BENCH_AT(table), 0},
    {"op", "op", "%-18s", BENCH_STRING, BENCH_AT(op), 0},
    {"codec", "codec", "%-38s", BENCH_STRING, BENCH_AT(codec), 0},
    {"type", "type", "%-4s", BENCH_STRING, BENCH_AT(type), 0},
    {NULL, "source", "%8s", BENCH_TEXT, BENCH_AT(size), 0},
    {"bytes", NULL, NULL, BENCH_INT64, BENCH_AT(bytes), 0},
    {"segments", "segments", "%8lld", BENCH_INT64, BENCH_AT(segments), 0},
    {"inputs", NULL, NULL, BENCH_INT64, BENCH_AT(inputs), 0},
    {"moved_bytes", NULL, NULL, BENCH_DOUBLE, BENCH_AT(moved_bytes), 0},
    {"time_us_median", "us", "%8.1f", BENCH_DOUBLE, BENCH_AT(us), 0},
    {"GBps", NULL, NULL, BENCH_DOUBLE, BENCH_AT(GBps), 0},
    {"moved_GBps", "GB/s moved", "%10.1f", BENCH_DOUBLE, BENCH_AT(moved_GBps), 0},
    {"copy_GBps", "GB/s copy", "%9.1f", BENCH_DOUBLE, BENCH_AT(copy_GBps), 0},
    {"floor_fraction", "/floor", "%7.3f", BENCH_DOUBLE, BENCH_AT(fraction), 0},
    {"bar", "bar", "%5.2f", BENCH_DOUBLE, BENCH_AT(bar), 0},
    {"ok", NULL, NULL, BENCH_BOOL, BENCH_AT(ok), 0},
    {"device", NULL, NULL, BENCH_STRING, BENCH_AT(device), 0},
    {"driver", NULL, NULL, BENCH_STRING, BENCH_AT(driver), 0},
    {"runtime", NULL, NULL, BENCH_STRING, BENCH_AT(runtime), 0},
    {"date", NULL, NULL, BENCH_TEXT, BENCH_AT(date), 0},
    {"command", NULL, NULL, BENCH_STRING, BENCH_AT(command), 0},
};

static const bench_table_t table = {columns, sizeof(columns) / sizeof(columns[0]), 0};
/* Of a case that could not be measured: op, codec and type. */
static const bench_table_t names = {columns, 4, 0};

/* ---- lines --------------------------------------------------------------------------------------------- */

tw_status_t cb_gpu_report_begin(cb_gpu_report_t *report)
{
    TW_TRY(cb_gpu_device(&report->device));
    printf("Speed on %s, driver %s, runtime %s; graphs replayed, data not in the cache; copy: device to "
           "device.\n",
           report->device.name, report->device.driver, report->device.runtime);
    bench_table_head(&table);
    return TW_OK;
}

static void format_codec(const cb_case_t *c, char *text, size_t text_bytes)
{
    char out[64] = "";
    tw_quant_codec_format(&c->codec, text, text_bytes);
    if (c->op != CB_REDUCE_ENCODE || tw_quant_codec_equal(&c->codec, &c->out)) {
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

static void set_line(cb_gpu_line_t *line, const cb_case_t *c)
{
    *line = (cb_gpu_line_t){.op = cb_op_name(c->op),
                            .type = c->type,
                            .bytes = cb_case_bytes(c),
                            .n_segments = c->n_segments,
                            .bar = cb_gpu_bar(c)};
    format_codec(c, line->codec, sizeof(line->codec));
}

static row_t row_of(const cb_gpu_report_t *report, const cb_case_t *c)
{
    const cb_gpu_line_t *line = &report->last;
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

tw_status_t cb_gpu_report_result(cb_gpu_report_t *report, const cb_case_t *c, const cb_result_t *r)
{
    cb_gpu_line_t *line = &report->last;
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

tw_status_t cb_gpu_report_case(cb_gpu_report_t *report, const cb_case_t *c)
{
    cb_result_t r;
    tw_status_t status = cb_gpu_measure(c, &r);
    if (status == TW_OK) {
        return cb_gpu_report_result(report, c, &r);
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

/* ---- the device ---------------------------------------------------------------------------------------- */

#ifndef TW_HAVE_CUDA

tw_status_t cb_gpu_device(cb_gpu_t *device)
{
    (void)device;
    tw_error("bench: this program was built without CUDA");
    return TW_ERR_UNSUPPORTED;
}

#else

#include <cuda_runtime_api.h>

#define CUDA_TRY(call) tw_quant_cuda_status((int)(call), #call)

/** The kernel module's version, "" if the system does not say:
 *  "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ..." */
static void module_version(char *version, size_t version_bytes)
{
    char line[256] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    version[0] = '\0';
    if (!file) {
        return;
    }
    if (fgets(line, sizeof(line), file)) {
        char *save = NULL;
        for (char *word = strtok_r(line, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
            if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.')) {
                snprintf(version, version_bytes, "%s ", word);
                break;
            }
        }
    }
    fclose(file);
}

tw_status_t cb_gpu_device(cb_gpu_t *device)
{
    struct cudaDeviceProp properties;
    int number = 0, driver = 0, runtime = 0;
    char module[32];
    TW_TRY(CUDA_TRY(cudaGetDevice(&number)));
    TW_TRY(CUDA_TRY(cudaGetDeviceProperties(&properties, number)));
    TW_TRY(CUDA_TRY(cudaDriverGetVersion(&driver)));
    TW_TRY(CUDA_TRY(cudaRuntimeGetVersion(&runtime)));
    module_version(module, sizeof(module));
    snprintf(device->name, sizeof(device->name), "%.127s", properties.name);
    snprintf(device->driver, sizeof(device->driver), "%s(CUDA %d.%d)", module, driver / 1000,
             driver % 1000 / 10);
    snprintf(device->runtime, sizeof(device->runtime), "%d.%d", runtime / 1000, runtime % 1000 / 10);
    return TW_OK;
}

#endif
