/* The program: it runs every codec on every source and prints a line for each. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench/codecs/codecs.h"
#include "bench/columns.h"

#define MAX_BACKENDS 8
/* A warm sample repeats its operation until it has moved this many bytes: a shorter time is inexact. */
#define WARM_PASS_BYTES ((size_t)2 << 20)
#define GPU_SMALL_BYTES ((size_t)1 << 20)

/* ---- the table ----------------------------------------------------------------------------------------- */

typedef cb_row_t row_t;

static const bench_column_t columns[] = {
    {"source", "source", "%-12.12s", BENCH_STRING, BENCH_AT(source), 0},
    {"op", "op", "%-14.14s", BENCH_STRING, BENCH_AT(op), 0},
    {"codec", "codec", "%-24s", BENCH_STRING, BENCH_AT(codec), 0},
    {"type", "type", "%-4s", BENCH_STRING, BENCH_AT(type), 0},
    {"backend", "backend", "%-8s", BENCH_STRING, BENCH_AT(backend), 0},
    {"contexts", NULL, NULL, BENCH_INT, BENCH_AT(contexts), 0},
    {"cache", "cache", "%-5s", BENCH_STRING, BENCH_AT(cache), 0},
    {"chunk_elems", "chunk", "%6lld", BENCH_INT64, BENCH_AT(chunk_elems), 0},
    {"elems", NULL, NULL, BENCH_INT64, BENCH_AT(n_elems), 0},
    {"bytes", NULL, NULL, BENCH_INT64, BENCH_AT(bytes), 0},
    {"moved_bytes", NULL, NULL, BENCH_DOUBLE, BENCH_AT(moved_bytes), 0},
    {"message_bytes", NULL, NULL, BENCH_DOUBLE, BENCH_AT(message_bytes), 0},
    {"bits", "bits", "%7.3f", BENCH_DOUBLE, BENCH_AT(bits), 0},
    {"floor_bits", "floor", "%7.3f", BENCH_DOUBLE, BENCH_AT(floor_bits), 0},
    {"rel_rmse", "error", "%8.5f", BENCH_DOUBLE, BENCH_AT(rel_rmse), 0},
    {"time_us_median", NULL, NULL, BENCH_DOUBLE, BENCH_AT(us), 0},
    {"GBps", "GB/s", "%8.2f", BENCH_DOUBLE, BENCH_AT(gbytes), 0},
    {"memcpy_GBps", "memcpy", "%8.2f", BENCH_DOUBLE, BENCH_AT(memcpy_gbytes), 0},
    {"floor_GBps", "floor", "%8.2f", BENCH_DOUBLE, BENCH_AT(floor_gbytes), 0},
    {"ok", "ok", "%3s", BENCH_BOOL, BENCH_AT(ok), 0},
};

static const bench_table_t table = {.columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0])};

/* The command line, and the file of JSON lines. */
typedef struct bench {
    const cb_options_t *options;
    FILE *json; /* NULL: lines are only printed */
} bench_t;

static tw_status_t codecs_report(const bench_t *bench, const cb_row_t *row)
{
    cb_row_t full = *row;
    double gigabytes = 1e-9 * (double)row->bytes;
    full.us = row->op_sec * 1e6;
    full.gbytes = gigabytes / row->op_sec;
    full.memcpy_gbytes = gigabytes / row->memcpy_sec;
    full.floor_gbytes = gigabytes / row->floor_sec;
    return bench_table_report(&table, &full, NULL, bench->json);
}

/** List the names of the wanted backends; a NULL name is the best one. Returns how many there are. */
static size_t list_backends(const bench_t *bench, const tw_quant_codec_t *codec, const char **names)
{
    names[0] = bench->options->backend;
    if (!names[0] || strcmp(names[0], "all") != 0) {
        return 1;
    }
    tw_quant_form_t form = tw_quant_form(codec);
    return form == TW_QUANT_CHANGE    ? tw_quant_delta_backends(names, MAX_BACKENDS)
           : form == TW_QUANT_MESSAGE ? tw_quant_messages_backends(codec, names, MAX_BACKENDS)
                                      : tw_quant_backends(TW_MEM_HOST, names, MAX_BACKENDS);
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

/** Encode and decode a set, and report two lines: one for encode, one for decode. */
static tw_status_t run_trip(const bench_t *bench, const cb_set_t *set, const tw_quant_codec_t *codec,
                            const cb_row_t *asked)
{
    cb_row_t row = *asked;
    double decode_sec;
    row.type = set->n_tensors ? tw_type_name(set->tensors[0].type) : "-";
    row.n_elems = set->n_elems;
    row.bytes = set->bytes;
    TW_TRY(cb_trip(bench->options, set, codec, &row, &decode_sec));
    row.op = cb_op_name(CB_ENCODE);
    TW_TRY(codecs_report(bench, &row));
    row.op = cb_op_name(CB_DECODE);
    row.op_sec = decode_sec;
    return codecs_report(bench, &row);
}

/** Run a codec on a set: first with all tensors of a type in one message, then, for codecs of form
 *  TW_QUANT_MESSAGE, with a message for each --chunk elements. */
static tw_status_t run_codec(const bench_t *bench, const cb_set_t *set, const tw_quant_codec_t *codec,
                             int contexts)
{
    const cb_options_t *options = bench->options;
    const char *backends[MAX_BACKENDS];
    char text[CB_TEXT_BYTES];
    size_t n = list_backends(bench, codec, backends);
    double floor_bits = cb_floor_bits(set, codec, contexts);
    int has_chunks = tw_quant_form(codec) == TW_QUANT_MESSAGE;
    for (int chunks = 0; chunks <= has_chunks; chunks++) {
        for (size_t b = 0; b < n; b++) {
            const cb_row_t row = {.source = set->name,
                                  .codec = tw_quant_codec_format(codec, text, sizeof(text)),
                                  .backend = backends[b],
                                  .contexts = contexts,
                                  .cache = "-",
                                  .chunk_elems = chunks ? options->chunk_elems : 0,
                                  .moved_bytes = NAN,
                                  .floor_bits = floor_bits,
                                  .floor_sec = NAN};
            TW_TRY(run_trip(bench, set, codec, &row));
        }
    }
    return TW_OK;
}

/** Return 1 if the codec supports the set's types, and the set has the old values that the codec needs. */
static int takes_set(const tw_quant_codec_t *codec, const cb_set_t *set)
{
    const tw_quant_row_t *row = tw_quant_row_get(codec->kind);
    int takes = row->form != TW_QUANT_AS_IS && (set->has_old || !(row->has & TW_QUANT_NEEDS_OLD));
    for (size_t t = 0; t < set->n_tensors; t++) {
        takes = takes && (row->types >> set->tensors[t].type & 1);
    }
    return takes;
}

/** Run every codec on the set: those that need old values with one context, and with two if has_older. */
static tw_status_t run_set(const bench_t *bench, const cb_set_t *set)
{
    const cb_options_t *options = bench->options;
    for (size_t i = 0; i < options->n_codecs; i++) {
        const tw_quant_codec_t *codec = &options->codecs[i];
        int needs_old = (tw_quant_row_get(codec->kind)->has & TW_QUANT_NEEDS_OLD) != 0;
        int most = needs_old ? 1 + set->has_older : 0;
        for (int contexts = needs_old; contexts <= most && takes_set(codec, set); contexts++) {
            if (!needs_old || !options->contexts || options->contexts == contexts) {
                TW_TRY(run_codec(bench, set, codec, contexts));
            }
        }
    }
    return TW_OK;
}

static tw_status_t run_source(const bench_t *bench, const cb_source_t *source)
{
    cb_set_t sets[CB_MAX_SETS] = {0};
    tw_status_t status = source->make(bench->options, sets);
    for (size_t i = 0; i < CB_MAX_SETS; i++) {
        if (status == TW_OK && sets[i].n_elems) {
            status = run_set(bench, &sets[i]);
        }
        cb_set_cleanup(&sets[i]);
    }
    return status;
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/** Measure an operation and report a line per backend. `where`: "cold" or "warm" host caches, or "gpu". */
static tw_status_t run_case(const bench_t *bench, const tw_quant_codec_t *codec, const cb_case_t *c,
                            const char *where, size_t repeats)
{
    const char *backends[MAX_BACKENDS];
    char text[CB_TEXT_BYTES];
    size_t n = bench->options->cuda ? 1 : list_backends(bench, codec, backends);
    for (size_t b = 0; b < n; b++) {
        cb_row_t row = {.source = "blocks",
                        .op = cb_op_name(c->op),
                        .codec = tw_quant_codec_format(codec, text, sizeof(text)),
                        .type = tw_type_name(c->type),
                        .backend = bench->options->cuda ? "cuda" : backends[b],
                        .cache = where,
                        .n_elems = c->n_elems,
                        .bytes = cb_case_bytes(c),
                        .message_bytes = NAN,
                        .bits = NAN,
                        .floor_bits = NAN,
                        .rel_rmse = NAN,
                        .ok = 1};
        cb_result_t result;
        TW_TRY(bench->options->cuda ? cb_gpu_measure(c, &result)
                                    : cb_host_measure(c, repeats, &row.backend, &result));
        row.op_sec = result.op_sec;
        row.moved_bytes = result.moved_bytes;
        row.memcpy_sec = result.copy_sec * 2.0 * (double)row.bytes / result.moved_bytes;
        row.floor_sec = strcmp(where, "warm") == 0 ? NAN : result.copy_sec;
        TW_TRY(codecs_report(bench, &row));
    }
    return TW_OK;
}

/** Measure every wanted operation of every wanted block codec and type. */
static tw_status_t run_cases(const bench_t *bench, size_t bytes, const char *where, size_t repeats)
{
    const cb_options_t *options = bench->options;
    for (size_t i = 0; i < options->n_types * options->n_codecs; i++) {
        const tw_quant_codec_t *codec = &options->codecs[i % options->n_codecs];
        cb_case_t c = {.codec = *codec,
                       .out = *codec,
                       .type = options->types[i / options->n_codecs],
                       .n_segments = 1,
                       .n_inputs = (size_t)options->n_inputs,
                       .seconds = options->seconds};
        c.n_elems = bytes / tw_type_bytes(c.type);
        for (c.op = 0; c.op < CB_OP_COUNT && tw_quant_form(codec) == TW_QUANT_BLOCKS; c.op++) {
            if (options->ops[c.op] && cb_op_takes(c.op, &c.codec)) {
                TW_TRY(run_case(bench, codec, &c, where, repeats));
            }
        }
    }
    return TW_OK;
}

static tw_status_t run_blocks(const bench_t *bench)
{
    const cb_options_t *options = bench->options;
    if (options->cuda) {
        TW_TRY(run_cases(bench, GPU_SMALL_BYTES, "gpu", 1));
        return run_cases(bench, options->bytes, "gpu", 1);
    }
    TW_TRY(options->cold ? run_cases(bench, options->bytes, "cold", 1) : TW_OK);
    return options->warm
               ? run_cases(bench, options->warm_bytes, "warm", 1 + WARM_PASS_BYTES / options->warm_bytes)
               : TW_OK;
}

/* ---- the program --------------------------------------------------------------------------------------- */

static tw_status_t codecs_run(const bench_t *bench)
{
    bench_table_head(&table);
    for (size_t i = 0; cb_sources[i].name; i++) {
        const cb_source_t *source = &cb_sources[i];
        if (bench->options->sources & 1u << i) {
            TW_TRY(source->make ? run_source(bench, source) : run_blocks(bench));
        }
    }
    return TW_OK;
}

int main(int argc, char **argv)
{
    cb_options_t options;
    bench_t bench = {.options = &options};
    cb_options_parse(program_invocation_short_name, argc, argv, &options);
    tw_status_t status = bench_json_open(options.json, BENCH_JSON_ANEW, &bench.json);
    status = status == TW_OK ? codecs_run(&bench) : status;
    status = bench_json_close(options.json, bench.json, status);
    return status == TW_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
