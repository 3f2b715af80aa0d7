/* bench/lossless: bits and speed of the lossless codec. */
#include "bench/lossless/lossless.h"

#include <stddef.h>
#include <stdio.h>

#include "bench/columns.h"
#include "flags/flags.h"

static const char doc[] =
    "Measures the lossless codec of tensors: bits an element beside the entropy, and speed of one thread."
    "\v"
    "A GPT-2 of 0.84 M parameters is trained on the King James text for --steps steps; measured are its last "
    "gradients and its weights, in bf16, and gradients in fp32: as they are, those of one rank that had them "
    "in bf16, and sums of 2, 4 and 8 such ranks; as one message and as a message for every --chunk elements. "
    "\"tensor\" "
    "is the entropy of exponent and first mantissa bit within each tensor, with all other bits; \"scales\" "
    "the same "
    "under the scales of rows and columns, which do not count. GB/s are 10^9 bytes of plain elements a "
    "second of this "
    "thread's processor time; medians.\n"
    "JSON keys: source, elems, chunk_elems (0: one message), backend, plain_bytes, message_bytes, bits, "
    "tensor_bits, scales_bits (an element), encode_GBps, decode_GBps, ok (every bit came back).";

#define AT(member) offsetof(lossless_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"steps", "100", "N", "Steps to train before", TW_CONFIG_INT, AT(steps), 1, 100000, NULL},
     .letter = 'n',
     .group = 1},
    {.field = {"file", NULL, "FILE", "The tensors of this safetensors file instead", TW_CONFIG_STRING,
               AT(file), 0, 0, NULL},
     .group = 1},
    {.field = {"chunk", "65536", "ELEMS", "Elements of a tensor that go as messages of their own",
               TW_CONFIG_INT, AT(chunk_elems), 1, 1 << 29, NULL},
     .group = 2},
    {.field = {"seconds", "0.3", "S", "Time to measure each line for", TW_CONFIG_DOUBLE, AT(seconds), 0, 3600,
               NULL},
     .group = 2},
    {.field = {"json", NULL, "FILE", "Write each line as a JSON object (default: do not)", TW_CONFIG_STRING,
               AT(json), 0, 0, NULL},
     .group = 2},
};

#define ROW(member) offsetof(lossless_row_t, member)

static const bench_column_t columns[] = {
    {"source", "source", "%-10.10s", BENCH_STRING, ROW(source), 0, 0},
    {"elems", NULL, NULL, BENCH_SIZE, ROW(n_elems), 0, 0},
    {"chunk_elems", "chunk", "%9lld", BENCH_SIZE, ROW(chunk_elems), 0, 0},
    {"backend", "backend", "%-8s", BENCH_STRING, ROW(backend), 0, 0},
    {"plain_bytes", NULL, NULL, BENCH_SIZE, ROW(plain_bytes), 0, 0},
    {"message_bytes", NULL, NULL, BENCH_SIZE, ROW(message_bytes), 0, 0},
    {"bits", "bits", "%8.3f", BENCH_DOUBLE, ROW(bits), 0, 0},
    {"tensor_bits", "tensor", "%8.3f", BENCH_DOUBLE, ROW(tensor_bits), 0, 0},
    {"scales_bits", "scales", "%8.3f", BENCH_DOUBLE, ROW(scales_bits), 0, 0},
    {"encode_GBps", "encode", "%8.2f", BENCH_DOUBLE, ROW(encode_gbytes), 0, 0},
    {"decode_GBps", "decode", "%8.2f", BENCH_DOUBLE, ROW(decode_gbytes), 0, 0},
    {"ok", "ok", "%4s", BENCH_BOOL, ROW(ok), 0, 0},
};

static const bench_table_t table = {.columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0])};

static tw_status_t run_set(const lossless_options_t *options, const lossless_set_t *set, FILE *json)
{
    const char *names[8];
    size_t n = tw_quant_lossless_backends(names, 8);
    double tensor_bits, scales_bits;
    lossless_set_entropy(set, &tensor_bits, &scales_bits);
    for (int chunks = 0; chunks < 2; chunks++) {
        for (size_t b = 0; b < n; b++) {
            lossless_row_t row = {.backend = names[b],
                                  .chunk_elems = chunks ? options->chunk_elems : 0,
                                  .tensor_bits = tensor_bits,
                                  .scales_bits = scales_bits};
            TW_TRY(lossless_measure(set, options->seconds, &row));
            TW_TRY(bench_table_report(&table, &row, NULL, json));
            if (!row.ok) {
                tw_error("bench: %s: what was decoded is not what was encoded", row.backend);
                return TW_ERR_INTERNAL;
            }
        }
    }
    return TW_OK;
}

static tw_status_t run(const lossless_options_t *options, FILE *json)
{
    lossless_set_t sets[LOSSLESS_SETS] = {0};
    tw_status_t status =
        options->file ? lossless_set_read(options->file, sets) : lossless_train(options->steps, sets);
    if (status == TW_OK) {
        printf("Lossless codec of %zu elements, one thread; bits an element, GB/s of plain ones.\n",
               sets[0].n_elems);
        bench_table_head(&table);
    }
    for (size_t i = 0; i < LOSSLESS_SETS; i++) {
        if (status == TW_OK && sets[i].n_elems) {
            status = run_set(options, &sets[i], json);
        }
        lossless_set_cleanup(&sets[i]);
    }
    return status;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc};
    lossless_options_t options = {0};
    FILE *json = NULL;
    tw_flags_read(&flags, argc, argv, &options);
    tw_status_t status = bench_json_open(options.json, BENCH_JSON_ANEW, &json);
    if (status == TW_OK) {
        status = run(&options, json);
    }
    return bench_json_close(options.json, json, status) == TW_OK ? 0 : 1;
}
