#include "collectives/model/measuring.h"

#include <sched.h>
#include <string.h>
#include <xxhash.h>

#include "core/line.h"

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_BYTES 64
#define CODEC_ELEMS ((size_t)96 << 10)
#define CODEC_REPEATS 2 /**< the first repeat warms the caches */
#define SHORT_ELEMS (TW_SAMPLE_SHORT_BYTES / sizeof(uint16_t))
#define SHORT_ROW_ELEMS 128

/** Keep the best of several readings. `n` is the number of earlier ones. */
static void keep_best(double *best, int n, double sec)
{
    *best = n == 0 || sec < *best ? sec : *best;
}

/** Measure a codec in seconds per byte of plain data. decode_sec NULL: do not measure decoding. plain, work:
 *  [CODEC_ELEMS] bf16. */
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

/** Measure a codec of blocks. Decoding is the same for all roundings: it is measured only with one. */
static tw_status_t measure_blocks(const tw_quant_codec_t *codec, void *plain, void *work,
                                  tw_cpu_sample_t *out)
{
    const tw_quant_params_t params = {.codec = *codec, .mem = TW_MEM_HOST};
    double *encode_sec = &out->encode_sec[tw_coll_model_encoder(codec)];
    double *decode_sec =
        codec->round == TW_QUANT_ROUND_NEAREST ? &out->decode_sec[tw_coll_model_decoder(codec)] : NULL;
    tw_quant_t *quant;
    TW_TRY(tw_quant_create(&params, &quant));
    tw_status_t status = time_codec(quant, plain, work, encode_sec, decode_sec);
    tw_quant_destroy(quant);
    return status;
}

/** Measure a kind of codec with each option that it has. */
static tw_status_t measure_kind(tw_quant_kind_t kind, void *plain, void *work, tw_cpu_sample_t *out)
{
    const tw_quant_row_t *row = tw_quant_row_get(kind);
    int rotations = row->has & TW_QUANT_HAS_HADAMARD ? 2 : 1;
    int n = row->has & TW_QUANT_HAS_STOCHASTIC ? 2 * rotations : rotations;
    for (int i = 0; i < n; i++) {
        const tw_quant_codec_t codec = {.kind = kind,
                                        .block = row->block,
                                        .round = (tw_quant_round_t)(i / rotations),
                                        .hadamard = i % rotations};
        TW_TRY(measure_blocks(&codec, plain, work, out));
    }
    return TW_OK;
}

static tw_status_t measure_all_blocks(void *plain, void *work, tw_cpu_sample_t *out)
{
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        if (tw_quant_row_get((tw_quant_kind_t)kind)->form == TW_QUANT_BLOCKS) {
            TW_TRY(measure_kind((tw_quant_kind_t)kind, plain, work, out));
        }
    }
    return TW_OK;
}

/** Measure encoding and decoding of two messages of equal size, in seconds per byte; the best of a few
 *  repeats. work: room for fp32[CODEC_ELEMS]. */
static tw_status_t time_messages(tw_quant_messages_t *coder, const tw_quant_message_segment_t messages[2],
                                 void *work, double *encode_sec, double *decode_sec)
{
    const double bytes_of_both = (double)(2 * messages[0].n_elems * sizeof(uint16_t));
    for (int i = 0; i < CODEC_REPEATS; i++) {
        double sec[2] = {0, 0};
        for (int m = 0; m < 2; m++) {
            const tw_quant_message_args_t args = {TW_TYPE_BF16, &messages[m], 1, .seed = 1};
            size_t bytes;
            double start = tw_time_sec();
            TW_TRY(tw_quant_messages_encode(coder, &args, work, CODEC_ELEMS * sizeof(float), &bytes));
            double middle = tw_time_sec();
            TW_TRY(tw_quant_messages_decode(coder, &args, TW_QUANT_SINK_STORE, work, bytes));
            sec[0] += (middle - start) / bytes_of_both;
            sec[1] += (tw_time_sec() - middle) / bytes_of_both;
        }
        keep_best(encode_sec, i, sec[0]);
        keep_best(decode_sec, i, sec[1]);
    }
    return TW_OK;
}

/** Fill in rows of different scales. Their exponents have another distribution in each message, so each
 *  message needs its own tables, as those of gradients do. */
static void fill_short(uint16_t *elems, uint32_t message)
{
    for (uint32_t i = 0; i < SHORT_ELEMS; i++) {
        uint32_t bits = (i + 1) * 0x9e3779b1u, row = i / SHORT_ROW_ELEMS;
        uint32_t down = message ? bits >> 30 : (uint32_t)__builtin_ctz(bits >> 16 | 1u << 8);
        elems[i] = (uint16_t)((120u + row % 3 - down) << 7 | (bits >> 9 & 0x7f) | (bits >> 8 & 1) << 15);
    }
}

static tw_status_t measure_messages(const tw_quant_codec_t *codec,
                                    const tw_quant_message_segment_t messages[2], void *work,
                                    double *encode_sec, double *decode_sec)
{
    tw_quant_messages_t *coder;
    TW_TRY(tw_quant_messages_create(codec, NULL, &coder));
    tw_status_t status = time_messages(coder, messages, work, encode_sec, decode_sec);
    tw_quant_messages_destroy(coder);
    return status;
}

/** Measure all codecs of messages, and short messages of the lossless codec, which stand for those of all
 *  codecs. plain, work: room for fp32[CODEC_ELEMS]. plain is overwritten. */
static tw_status_t measure_all_messages(uint16_t *plain, void *work, tw_cpu_sample_t *out)
{
    const tw_quant_codec_t lossless = {.kind = TW_QUANT_LOSSLESS};
    tw_quant_message_segment_t halves[2], shorts[2];
    for (uint32_t m = 0; m < 2; m++) {
        uint16_t *half = plain + m * (CODEC_ELEMS / 2), *elems = plain + m * SHORT_ELEMS;
        halves[m] = (tw_quant_message_segment_t){.src = half, .dst = half, .n_elems = CODEC_ELEMS / 2};
        shorts[m] = (tw_quant_message_segment_t){
            .src = elems, .dst = elems, .n_elems = SHORT_ELEMS, .row_elems = SHORT_ROW_ELEMS};
    }
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_codec_t codec = {.kind = (tw_quant_kind_t)kind};
        if (tw_quant_form(&codec) == TW_QUANT_MESSAGE) {
            TW_TRY(measure_messages(&codec, halves, work, &out->encode_sec[tw_coll_model_encoder(&codec)],
                                    &out->decode_sec[tw_coll_model_decoder(&codec)]));
        }
    }
    for (uint32_t m = 0; m < 2; m++) {
        fill_short(plain + m * SHORT_ELEMS, m);
    }
    return measure_messages(&lossless, shorts, work, &out->encode_short_sec, &out->decode_short_sec);
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
    /* room for fp32 elements, so that the output of every codec fits */
    uint16_t *plain = tw_buffer_alloc_zero(CODEC_ELEMS * sizeof(float));
    void *work = tw_buffer_alloc_zero(CODEC_ELEMS * sizeof(float));
    tw_status_t status = TW_ERR_NO_MEMORY;
    memset(out, 0, sizeof(*out));
    if (!plain || !work) {
        tw_error("out of memory measuring the codecs");
        goto err_buffers;
    }
    for (size_t i = 0; i < CODEC_ELEMS; i++) { /* bf16 numbers between 1 and 2, with both signs */
        plain[i] = (uint16_t)(0x3f80u | (i * 37u & 0x7fu) | (i & 1u) << 15);
    }
    measure_plain(plain, work, out);
    status = measure_all_blocks(plain, work, out);
    status = status == TW_OK ? measure_all_messages(plain, work, out) : status;
err_buffers:
    tw_buffer_free(work);
    tw_buffer_free(plain);
    return status;
}

void tw_measure_host_init(tw_measure_host_t *out)
{
    char id[BOOT_ID_BYTES];
    cpu_set_t set;
    if (!tw_line_read(BOOT_ID_PATH, "", id, sizeof(id))) {
        tw_debug("%s cannot be read: taking all ranks to share this machine", BOOT_ID_PATH);
    }
    out->boot = XXH3_64bits(id, strlen(id));
    CPU_ZERO(&set);
    out->cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}
