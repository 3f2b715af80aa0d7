/* bench/lossless: bits and speed of the lossless codec. */
#include "bench/lossless/lossless.h"

#include <stddef.h>
#include <stdio.h>

#include "bench/timing.h"
#include "flags/flags.h"

static const char doc[] =
    "Measures the lossless codec of tensors: bits an element beside the entropy, and speed of one thread."
    "\v"
    "A GPT-2 of 0.84 M parameters is trained on the King James text for --steps steps; measured are its last "
    "gradients and its weights, in bf16, as one message and as a message for every --chunk elements. "
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

/* What is printed of a line. */
typedef struct {
    const lossless_set_t *set;
    size_t chunk_elems;
    double tensor_bits, scales_bits;
    FILE *json;
} report_t;

static tw_status_t report_row(const report_t *report, const lossless_row_t *row)
{
    double bits = 8.0 * (double)row->message_bytes / (double)row->n_elems;
    double gigabytes = 1e-9 * (double)row->plain_bytes;
    printf("%-10.10s %9zu %-8s %8.3f %8.3f %8.3f %8.2f %8.2f %4s\n", report->set->name, report->chunk_elems,
           row->backend, bits, report->tensor_bits, report->scales_bits, gigabytes / row->encode_sec,
           gigabytes / row->decode_sec, row->ok ? "yes" : "NO");
    fflush(stdout);
    if (!report->json) {
        return TW_OK;
    }
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "source", report->set->name);
    tw_json_add_int(json, "elems", (int64_t)row->n_elems);
    tw_json_add_int(json, "chunk_elems", (int64_t)report->chunk_elems);
    tw_json_add_string(json, "backend", row->backend);
    tw_json_add_int(json, "plain_bytes", (int64_t)row->plain_bytes);
    tw_json_add_int(json, "message_bytes", (int64_t)row->message_bytes);
    tw_json_add_double(json, "bits", bits);
    tw_json_add_double(json, "tensor_bits", report->tensor_bits);
    tw_json_add_double(json, "scales_bits", report->scales_bits);
    tw_json_add_double(json, "encode_GBps", gigabytes / row->encode_sec);
    tw_json_add_double(json, "decode_GBps", gigabytes / row->decode_sec);
    tw_json_add_bool(json, "ok", row->ok);
    tw_status_t status = tw_json_write_line(json, report->json);
    tw_json_destroy(json);
    return status;
}

static tw_status_t run_set(const lossless_options_t *options, const lossless_set_t *set, FILE *json)
{
    const char *names[8];
    size_t n = tw_quant_lossless_backends(names, 8);
    report_t report = {.set = set, .json = json};
    lossless_set_entropy(set, &report.tensor_bits, &report.scales_bits);
    for (int chunks = 0; chunks < 2; chunks++) {
        report.chunk_elems = chunks ? options->chunk_elems : 0;
        for (size_t b = 0; b < n; b++) {
            lossless_row_t row = {.backend = names[b]};
            TW_TRY(lossless_measure(set, report.chunk_elems, options->seconds, &row));
            TW_TRY(report_row(&report, &row));
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
    lossless_set_t first = {0}, second = {0};
    tw_status_t status = options->file ? lossless_set_read(options->file, &first)
                                       : lossless_train(options->steps, &first, &second);
    if (status == TW_OK) {
        printf("Lossless codec of %zu elements, one thread; bits an element, GB/s of plain ones.\n",
               first.n_elems);
        printf("%-10s %9s %-8s %8s %8s %8s %8s %8s %4s\n", "source", "chunk", "backend", "bits", "tensor",
               "scales", "encode", "decode", "ok");
        status = run_set(options, &first, json);
    }
    if (status == TW_OK && second.n_elems) {
        status = run_set(options, &second, json);
    }
    lossless_set_cleanup(&first);
    lossless_set_cleanup(&second);
    return status;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc};
    lossless_options_t options = {0};
    FILE *json = NULL;
    tw_flags_read(&flags, argc, argv, &options);
    tw_status_t status = bench_json_open(options.json, &json);
    if (status == TW_OK) {
        status = run(&options, json);
    }
    return bench_json_close(options.json, json, status) == TW_OK ? 0 : 1;
}
