/* bench/delta: bits and speed of the lossless delta. */
#include "bench/delta/delta.h"

#include <stddef.h>
#include <stdio.h>

#include "bench/columns.h"

#define ROW(member) offsetof(delta_row_t, member)

static const bench_column_t columns[] = {
    {"source", NULL, NULL, BENCH_STRING, ROW(source), 0, 0},
    {"elems", NULL, NULL, BENCH_SIZE, ROW(n_elems), 0, 0},
    {"lr", NULL, NULL, BENCH_DOUBLE, ROW(lr), 0, 0},
    {"contexts", "contexts", "%8lld", BENCH_INT, ROW(contexts), 0, 0},
    {"backend", "backend", "%-8s", BENCH_STRING, ROW(backend), 0, 0},
    {"message_bytes", NULL, NULL, BENCH_SIZE, ROW(message_bytes), 0, 0},
    {"bits", "bits", "%8.3f", BENCH_DOUBLE, ROW(bits), 0, 0},
    {"floor_bits", "floor", "%8.3f", BENCH_DOUBLE, ROW(floor_bits), 0, 0},
    {NULL, "above, %", "%8.1f", BENCH_DOUBLE, ROW(above), 100, 0},
    {"encode_GBps", "encode", "%8.2f", BENCH_DOUBLE, ROW(encode_gbytes), 0, 0},
    {"decode_GBps", "decode", "%8.2f", BENCH_DOUBLE, ROW(decode_gbytes), 0, 0},
    {"memcpy_GBps", "memcpy", "%8.2f", BENCH_DOUBLE, ROW(memcpy_gbytes), 0, 0},
    {"ok", "ok", "%4s", BENCH_BOOL, ROW(ok), 0, 0},
};

static const bench_table_t table = {.columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0])};

/** Every backend with as many contexts. */
static tw_status_t run_contexts(const delta_options_t *options, const delta_data_t *data, int contexts,
                                FILE *json)
{
    const char *names[8] = {options->backend};
    size_t n = options->backend ? 1 : tw_quant_delta_backends(names, 8);
    double floor_bits = 0;
    tw_status_t status = delta_data_entropy(data, contexts, &floor_bits);
    for (size_t b = 0; status == TW_OK && b < n; b++) {
        delta_row_t row = {.backend = names[b], .contexts = contexts, .floor_bits = floor_bits};
        TW_TRY(delta_measure(options, data, &row));
        status = bench_table_report(&table, &row, NULL, json);
        if (!row.ok) {
            tw_error("bench: %s: what was decoded is not what was encoded", row.backend);
            return TW_ERR_INTERNAL;
        }
    }
    return status;
}

static tw_status_t run(const delta_options_t *options, const delta_data_t *data, FILE *json)
{
    printf("Lossless delta of %zu bf16 weights, one thread; bits a parameter, GB/s of weights.\n", data->n);
    bench_table_head(&table);
    for (int contexts = 1; contexts <= 2; contexts++) {
        int wanted = options->contexts ? options->contexts == contexts : contexts == 1 || data->older;
        if (wanted) {
            TW_TRY(run_contexts(options, data, contexts, json));
        }
    }
    return TW_OK;
}

int main(int argc, char **argv)
{
    delta_options_t options;
    delta_data_t data = {0};
    FILE *json = NULL;
    delta_options_parse(argc, argv, &options);
    tw_status_t status = bench_json_open(options.json, BENCH_JSON_ANEW, &json);
    if (status == TW_OK) {
        status = delta_data_create(&options, &data);
    }
    if (status == TW_OK) {
        status = run(&options, &data, json);
    }
    delta_data_destroy(&data);
    return bench_json_close(options.json, json, status) == TW_OK ? 0 : 1;
}
