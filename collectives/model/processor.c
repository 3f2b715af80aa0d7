#include "collectives/model/measuring.h"

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

/** The best of a few, of which this is the n-th. */
static void keep_best(double *best, int n, double sec)
{
    *best = n == 0 || sec < *best ? sec : *best;
}

/** Seconds per byte of the plain side; decode_sec NULL: not asked for. plain, work: [CODEC_ELEMS] bf16. */
static tw_status_t time_codec(tw_quant_t *quant, void *plain, void *work, double *encode_sec,
                              double *decode_sec)
{
    const tw_quant_args_t args = {.type = TW_TYPE_BF16, .factor = 1};
    const tw_quant_segment_t there = {.src = plain, .dst = work, .n_elems = CODEC_ELEMS};
    const tw_quant_segment_t back = {.src = work, .dst = plain, .n_elems = CODEC_ELEMS};
    const double bytes = (double)(CODEC_ELEMS * tw_type_bytes(TW_TYPE_BF16));

    for (int i = 0; i < CODEC_REPEATS; i++) {
        double start = tw_time_sec();
        TW_TRY(tw_quant_encode(quant, &args, &there, 1));
        double middle = tw_time_sec();
        keep_best(encode_sec, i, (middle - start) / bytes);
        if (decode_sec) {
            TW_TRY(tw_quant_decode(quant, &args, &back, 1));
            keep_best(decode_sec, i, (tw_time_sec() - middle) / bytes);
        }
    }
    return TW_OK;
}

/** A codec of blocks with its defaults and options; those that differ in how they round are decoded alike. */
static tw_status_t measure_blocks(tw_quant_kind_t kind, int hadamard, tw_quant_round_t round, void *plain,
                                  void *work, tw_cpu_sample_t *out)
{
    const tw_quant_params_t params = {
        .codec = {.kind = kind, .block = tw_quant_row_get(kind)->block, .round = round, .hadamard = hadamard},
        .mem = TW_MEM_HOST};
    double *decode_sec =
        round == TW_QUANT_ROUND_NEAREST ? &out->decode_sec[tw_coll_model_decoder(&params.codec)] : NULL;
    tw_quant_t *quant;
    TW_TRY(tw_quant_create(&params, &quant));
    tw_status_t status =
        time_codec(quant, plain, work, &out->encode_sec[tw_coll_model_encoder(&params.codec)], decode_sec);
    tw_quant_destroy(quant);
    return status;
}

/** Measure all codecs of blocks, with all options that they have. */
static tw_status_t measure_all_blocks(void *plain, void *work, tw_cpu_sample_t *out)
{
    tw_status_t status = TW_OK;

    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get((tw_quant_kind_t)kind);
        for (int hadamard = 0; hadamard <= !!(row->has & TW_QUANT_HAS_HADAMARD); hadamard++) {
            for (int round = 0; round <= !!(row->has & TW_QUANT_HAS_STOCHASTIC); round++) {
                if (row->form == TW_QUANT_BLOCKS && status == TW_OK) {
                    status = measure_blocks((tw_quant_kind_t)kind, hadamard, (tw_quant_round_t)round, plain,
                                            work, out);
                }
            }
        }
    }
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
        keep_best(encode_sec, i, sec[0]);
        keep_best(decode_sec, i, sec[1]);
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
    const tw_quant_codec_t lossless = {.kind = TW_QUANT_LOSSLESS};
    const size_t half = CODEC_ELEMS / 2;
    const tw_quant_lossless_segment_t halves[2] = {
        {.src = plain, .dst = plain, .n_elems = half},
        {.src = plain + half, .dst = plain + half, .n_elems = half}};
    tw_quant_lossless_segment_t shorts[2];
    tw_quant_lossless_t *codec;
    TW_TRY(tw_quant_lossless_create(NULL, &codec));
    tw_status_t status =
        time_lossless(codec, halves, work, &out->encode_sec[tw_coll_model_encoder(&lossless)],
                      &out->decode_sec[tw_coll_model_decoder(&lossless)]);
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
    const size_t bytes = CODEC_ELEMS * tw_type_bytes(TW_TYPE_BF16);

    for (int i = 0; i < CODEC_REPEATS; i++) {
        double start = tw_time_sec();
        memcpy(work, plain, bytes);
        double middle = tw_time_sec();
        tw_convert_add(TW_TYPE_BF16, plain, work, work, CODEC_ELEMS);
        keep_best(&out->copy_sec, i, (middle - start) / (double)bytes);
        keep_best(&out->reduce_sec, i, (tw_time_sec() - middle) / (double)bytes);
    }
}

tw_status_t tw_measure_processor(tw_cpu_sample_t *out)
{
    /* fp32-sized, so that no codec's output can be longer */
    uint16_t *plain = tw_buffer_alloc_zero(CODEC_ELEMS * sizeof(float));
    void *work = tw_buffer_alloc_zero(CODEC_ELEMS * sizeof(float));
    tw_status_t status = TW_ERR_NO_MEMORY;

    memset(out, 0, sizeof(*out));
    if (!plain || !work) {
        tw_error("out of memory measuring the codecs");
        goto err_buffers;
    }
    for (size_t i = 0; i < CODEC_ELEMS; i++) { /* bf16 between 1 and 2, both signs */
        plain[i] = (uint16_t)(0x3f80u | (i * 37u & 0x7fu) | (i & 1u) << 15);
    }
    measure_plain(plain, work, out);
    status = measure_all_blocks(plain, work, out);
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
