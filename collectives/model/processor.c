#include "collectives/model/processor.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_BYTES 64
#define CODEC_ELEMS ((size_t)96 << 10)
#define CODEC_REPEATS 2 /**< the first one warms the caches */
#define SHORT_ELEMS (TW_SAMPLE_SHORT_BYTES / sizeof(uint16_t))
#define SHORT_ROW_ELEMS 128

double tw_measure_thread_sec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

typedef struct codec_test {
    tw_quant_t *quant;
    tw_quant_args_t args;
    tw_quant_segment_t plain, encoded; /**< to encode, to decode */
} codec_test_t;

static tw_status_t run_encode(codec_test_t *test)
{
    return tw_quant_encode(test->quant, &test->args, &test->plain, 1);
}

static tw_status_t run_decode(codec_test_t *test)
{
    return tw_quant_decode(test->quant, &test->args, &test->encoded, 1);
}

/** Seconds per byte of the plain side: the best of a few. */
static tw_status_t time_codec(tw_status_t (*run)(codec_test_t *), codec_test_t *test, double *sec_per_byte)
{
    double best = 0;

    for (int i = 0; i < CODEC_REPEATS; i++) {
        double start = tw_time_sec();
        TW_TRY(run(test));
        double sec = tw_time_sec() - start;
        best = i == 0 || sec < best ? sec : best;
    }
    *sec_per_byte = best / (double)(CODEC_ELEMS * tw_type_bytes(test->args.type));
    return TW_OK;
}

/** plain, work: [CODEC_ELEMS] bf16. */
static tw_status_t measure_codec(int index, void *plain, void *work, tw_cpu_sample_t *out)
{
    tw_quant_codec_t codec;
    TW_TRY(tw_quant_codec_parse(index & 1 ? "int4" : "int8", &codec));
    codec.hadamard = (index & 2) != 0;
    codec.round = index & 4 ? TW_QUANT_ROUND_STOCHASTIC : TW_QUANT_ROUND_NEAREST;
    tw_quant_params_t params = {.codec = codec, .mem = TW_MEM_HOST};
    codec_test_t test = {
        .args = {.type = TW_TYPE_BF16, .factor = 1},
        .plain = {.src = plain, .dst = work, .n_elems = CODEC_ELEMS},
        .encoded = {.src = work, .dst = plain, .n_elems = CODEC_ELEMS},
    };
    TW_TRY(tw_quant_create(&params, &test.quant));
    tw_status_t status = time_codec(run_encode, &test, &out->encode_sec[index]);
    if (status == TW_OK && index < TW_COLL_MODEL_LOSSLESS_DECODER) {
        status = time_codec(run_decode, &test, &out->decode_sec[index]);
    }
    tw_quant_destroy(test.quant);
    return status;
}

/** Two messages of n elements there and back: seconds per byte, the best of a few. work: room for
 *  fp32[CODEC_ELEMS]. */
static tw_status_t time_lossless(tw_quant_lossless_t *codec, const tw_quant_lossless_segment_t messages[2],
                                 void *work, double *encode_sec, double *decode_sec)
{
    const double bytes_of_both = (double)(2 * messages[0].n_elems * sizeof(uint16_t));

    for (int i = 0; i < CODEC_REPEATS; i++) {
        double sec[2] = {0, 0};
        for (int m = 0; m < 2; m++) {
            size_t bytes;
            double start = tw_time_sec();
            TW_TRY(tw_quant_lossless_encode(codec, TW_TYPE_BF16, &messages[m], 1, work,
                                            CODEC_ELEMS * sizeof(float), &bytes));
            double middle = tw_time_sec();
            TW_TRY(tw_quant_lossless_decode(codec, TW_TYPE_BF16, &messages[m], 1, work, bytes));
            sec[0] += (middle - start) / bytes_of_both;
            sec[1] += (tw_time_sec() - middle) / bytes_of_both;
        }
        *encode_sec = i == 0 || sec[0] < *encode_sec ? sec[0] : *encode_sec;
        *decode_sec = i == 0 || sec[1] < *decode_sec ? sec[1] : *decode_sec;
    }
    return TW_OK;
}

/** Rows of different scales, the two messages' spread out differently: each needs tables of its own, as
 *  gradients do. */
static void fill_short(uint16_t *elems, uint32_t message)
{
    for (uint32_t i = 0; i < SHORT_ELEMS; i++) {
        uint32_t bits = (i + 1) * 0x9e3779b1u, row = i / SHORT_ROW_ELEMS;
        uint32_t down = message ? bits >> 30 : (uint32_t)__builtin_ctz(bits >> 16 | 1u << 8);
        elems[i] = (uint16_t)((120u + row % 3 - down) << 7 | (bits >> 9 & 0x7f) | (bits >> 8 & 1) << 15);
    }
}

/** plain, work: room for fp32[CODEC_ELEMS]; plain is overwritten. */
static tw_status_t measure_lossless(uint16_t *plain, void *work, tw_cpu_sample_t *out)
{
    const size_t half = CODEC_ELEMS / 2;
    const tw_quant_lossless_segment_t halves[2] = {
        {.src = plain, .dst = plain, .n_elems = half},
        {.src = plain + half, .dst = plain + half, .n_elems = half}};
    tw_quant_lossless_segment_t shorts[2];
    tw_quant_lossless_t *codec;
    TW_TRY(tw_quant_lossless_create(NULL, &codec));
    tw_status_t status = time_lossless(codec, halves, work, &out->encode_sec[TW_COLL_MODEL_LOSSLESS_ENCODER],
                                       &out->decode_sec[TW_COLL_MODEL_LOSSLESS_DECODER]);
    for (uint32_t m = 0; m < 2; m++) {
        uint16_t *elems = plain + m * SHORT_ELEMS;
        fill_short(elems, m);
        shorts[m] = (tw_quant_lossless_segment_t){
            .src = elems, .dst = elems, .n_elems = SHORT_ELEMS, .row_elems = SHORT_ROW_ELEMS};
    }
    if (status == TW_OK) {
        status = time_lossless(codec, shorts, work, &out->encode_short_sec, &out->decode_short_sec);
    }
    tw_quant_lossless_destroy(codec);
    return status;
}

static void measure_plain(void *plain, void *work, tw_cpu_sample_t *out)
{
    size_t bytes = CODEC_ELEMS * tw_type_bytes(TW_TYPE_BF16);
    double best_copy = 1, best_add = 1;

    for (int i = 0; i < CODEC_REPEATS; i++) {
        double start = tw_time_sec();
        memcpy(work, plain, bytes);
        double middle = tw_time_sec();
        tw_convert_add(TW_TYPE_BF16, plain, work, work, CODEC_ELEMS);
        double end = tw_time_sec();
        best_copy = middle - start < best_copy ? middle - start : best_copy;
        best_add = end - middle < best_add ? end - middle : best_add;
    }
    out->copy_sec = best_copy / (double)bytes;
    out->reduce_sec = best_add / (double)bytes;
}

tw_status_t tw_measure_processor(tw_cpu_sample_t *out)
{
    /* fp32-sized, so that no codec's output can be longer */
    uint16_t *plain = tw_buffer_alloc_zero(CODEC_ELEMS * sizeof(float));
    void *work = tw_buffer_alloc_zero(CODEC_ELEMS * sizeof(float));
    tw_status_t status = TW_ERR_NO_MEMORY;

    if (!plain || !work) {
        tw_error("out of memory measuring the codecs");
        goto err_buffers;
    }
    for (size_t i = 0; i < CODEC_ELEMS; i++) { /* bf16 between 1 and 2, both signs */
        plain[i] = (uint16_t)(0x3f80u | (i * 37u & 0x7fu) | (i & 1u) << 15);
    }
    measure_plain(plain, work, out);
    status = TW_OK;
    for (int i = 0; i < TW_COLL_MODEL_LOSSLESS_ENCODER && status == TW_OK; i++) {
        status = measure_codec(i, plain, work, out);
    }
    if (status == TW_OK) {
        status = measure_lossless(plain, work, out);
    }
err_buffers:
    tw_buffer_free(work);
    tw_buffer_free(plain);
    return status;
}

void tw_measure_host_init(tw_measure_host_t *out)
{
    char id[BOOT_ID_BYTES] = "";
    cpu_set_t set;
    FILE *file = fopen(BOOT_ID_PATH, "r");

    if (!file || !fgets(id, sizeof(id), file)) {
        tw_debug("%s cannot be read: taking all ranks to share this machine", BOOT_ID_PATH);
    }
    if (file) {
        fclose(file);
    }
    out->boot = XXH3_64bits(id, strlen(id));
    CPU_ZERO(&set);
    out->cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}
