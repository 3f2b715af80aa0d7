/* Measures how fast one thread of this rank encodes with each codec. */
#include <string.h>

#include "doctor/state.h"
#include "quant/quant.h"

#define ELEMS ((size_t)1 << 20)
#define SECONDS 0.1
#define ROW_ELEMS 1024

const char *const tw_doctor_codec_names[TW_DOCTOR_CODECS] = {"int8", "int4", "lossless", "ecdq"};

/** Fill with bf16 values that are distributed about normally around 0, as weights are. */
static void doctor_fill(uint16_t *values)
{
    uint32_t state = 1;
    for (size_t i = 0; i < ELEMS; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) / 0x1p24f - 0.5f;
        }
        uint32_t bits;
        memcpy(&bits, &sum, sizeof(bits));
        values[i] = (uint16_t)(bits >> 16);
    }
}

/* One call of one codec, which is timed. Either `quant` or `messages` is set. */
typedef struct coder {
    tw_quant_t *quant;             /**< a codec of blocks, or NULL */
    tw_quant_messages_t *messages; /**< a codec of messages, or NULL */
    const uint16_t *values;
    void *encoded;
    size_t encoded_bytes;
} coder_t;

static tw_status_t doctor_encode(const coder_t *coder)
{
    if (coder->messages) {
        const tw_quant_message_segment_t segment = {
            .src = coder->values, .n_elems = ELEMS, .row_elems = ROW_ELEMS};
        const tw_quant_message_args_t args = {.type = TW_TYPE_BF16, .segments = &segment, .n_segments = 1};
        size_t bytes;
        return tw_quant_messages_encode(coder->messages, &args, coder->encoded, coder->encoded_bytes, &bytes);
    }
    const tw_quant_args_t args = {.type = TW_TYPE_BF16};
    const tw_quant_segment_t segment = {.src = coder->values, .dst = coder->encoded, .n_elems = ELEMS};
    return tw_quant_encode(coder->quant, &args, &segment, 1);
}

static tw_status_t time_codec(const char *name, coder_t *coder, double *gb_per_sec)
{
    tw_quant_params_t params = {.mem = TW_MEM_HOST};
    TW_TRY(tw_quant_codec_parse(name, &params.codec));
    TW_TRY(tw_quant_form(&params.codec) == TW_QUANT_MESSAGE
               ? tw_quant_messages_create(&params.codec, NULL, &coder->messages)
               : tw_quant_create(&params, &coder->quant));
    tw_status_t status = doctor_encode(coder); /* not timed: the first call fills the caches */
    double seconds = 0;
    int n = 0;
    for (const double start = tw_thread_sec(); status == TW_OK && seconds < SECONDS; n++) {
        status = doctor_encode(coder);
        seconds = tw_thread_sec() - start;
    }
    *gb_per_sec = status == TW_OK ? (double)n * (double)(ELEMS * sizeof(uint16_t)) / seconds / 1e9 : 0;
    tw_quant_messages_destroy(coder->messages);
    tw_quant_destroy(coder->quant);
    coder->messages = NULL;
    coder->quant = NULL;
    return status;
}

tw_status_t tw_doctor_codecs_measure(tw_doctor_facts_t *facts)
{
    const size_t bytes = ELEMS * sizeof(uint16_t), bound = tw_quant_lossless_bound_bytes(TW_TYPE_BF16, ELEMS);
    uint16_t *values = tw_buffer_alloc(bytes);
    coder_t coder = {.values = values, .encoded = tw_buffer_alloc(bound), .encoded_bytes = bound};
    tw_status_t status = values && coder.encoded ? TW_OK : TW_ERR_NO_MEMORY;
    if (status != TW_OK) {
        tw_error("rank %d: no memory for %zu bytes", facts->rank, bytes + bound);
    } else {
        doctor_fill(values);
    }
    for (int i = 0; i < TW_DOCTOR_CODECS && status == TW_OK; i++) {
        status = time_codec(tw_doctor_codec_names[i], &coder, &facts->encode_GBps[i]);
    }
    tw_buffer_free(coder.encoded);
    tw_buffer_free(values);
    return status;
}
