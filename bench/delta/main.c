/* bench/delta: bits and speed of the exact delta. */
#include "bench/delta/delta.h"

#include <math.h>
#include <stdio.h>

#include "bench/timing.h"

static void print_row(const delta_data_t *data, const delta_row_t *row)
{
    double gigabytes = 2e-9 * (double)data->n;
    printf("%8d %-8s %8.3f %8.3f %7.1f%% %8.2f %8.2f %8.2f %4s\n", row->contexts, row->backend, row->bits,
           row->floor_bits, 100 * (row->bits / row->floor_bits - 1), gigabytes / row->encode_sec,
           gigabytes / row->decode_sec, gigabytes / row->memcpy_sec, row->ok ? "yes" : "NO");
    fflush(stdout);
}

static tw_status_t write_json(const delta_options_t *options, const delta_data_t *data,
                              const delta_row_t *row, FILE *file)
{
    double gigabytes = 2e-9 * (double)data->n;
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "source", options->new_file ? options->new_file : "synthetic");
    tw_json_add_int(json, "elems", (int64_t)data->n);
    tw_json_add_double(json, "lr", options->new_file ? NAN : options->lr);
    tw_json_add_int(json, "contexts", row->contexts);
    tw_json_add_string(json, "backend", row->backend);
    tw_json_add_int(json, "message_bytes", (int64_t)row->message_bytes);
    tw_json_add_double(json, "bits", row->bits);
    tw_json_add_double(json, "floor_bits", row->floor_bits);
    tw_json_add_double(json, "encode_GBps", gigabytes / row->encode_sec);
    tw_json_add_double(json, "decode_GBps", gigabytes / row->decode_sec);
    tw_json_add_double(json, "memcpy_GBps", gigabytes / row->memcpy_sec);
    tw_json_add_bool(json, "ok", row->ok);
    tw_status_t status = tw_json_write_line(json, file);
    tw_json_destroy(json);
    return status;
}

/* Every backend with as many contexts. */
static tw_status_t run_contexts(const delta_options_t *options, const delta_data_t *data, int contexts,
                                FILE *json)
{
    const char *names[8] = {options->backend};
    size_t n = options->backend ? 1 : tw_quant_exact_backends(names, 8);
    double floor_bits = 0;
    tw_status_t status = delta_data_entropy(data, contexts, &floor_bits);
    for (size_t b = 0; status == TW_OK && b < n; b++) {
        delta_row_t row = {.backend = names[b], .contexts = contexts, .floor_bits = floor_bits};
        TW_TRY(delta_measure(options, data, &row));
        print_row(data, &row);
        if (json) {
            status = write_json(options, data, &row, json);
        }
        if (!row.ok) {
            tw_error("bench: %s: what was decoded is not what was encoded", row.backend);
            return TW_ERR_INTERNAL;
        }
    }
    return status;
}

static tw_status_t run(const delta_options_t *options, const delta_data_t *data, FILE *json)
{
    printf("Exact delta of %zu bf16 weights, one thread; bits a parameter, GB/s of weights.\n", data->n);
    printf("%8s %-8s %8s %8s %8s %8s %8s %8s %4s\n", "contexts", "backend", "bits", "floor", "above",
           "encode", "decode", "memcpy", "ok");
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
    tw_status_t status = bench_json_open(options.json, &json);
    if (status == TW_OK) {
        status = delta_data_create(&options, &data);
    }
    if (status == TW_OK) {
        status = run(&options, &data, json);
    }
    delta_data_destroy(&data);
    return bench_json_close(options.json, json, status) == TW_OK ? 0 : 1;
}
