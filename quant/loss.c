/* Measures the error of a lossy codec. */
#include "quant/loss.h"

#include <math.h>
#include <stdlib.h>

#include "quant/convert.h"

struct tw_quant_sampler {
    tw_quant_t *blocks; /* one of the two is NULL */
    tw_quant_messages_t *messages;
};

tw_status_t tw_quant_sampler_create(const tw_quant_codec_t *codec, tw_quant_sampler_t **out)
{
    const tw_quant_params_t params = {.codec = *codec, .mem = TW_MEM_HOST};
    tw_quant_sampler_t *sampler = calloc(1, sizeof(*sampler));
    TW_FAIL_IF(!sampler, TW_ERR_NO_MEMORY, "quant: out of memory");
    tw_status_t status = tw_quant_form(codec) == TW_QUANT_MESSAGE
                             ? tw_quant_messages_create(codec, NULL, &sampler->messages)
                             : tw_quant_create(&params, &sampler->blocks);
    if (status != TW_OK) {
        free(sampler);
        return status;
    }
    *out = sampler;
    return TW_OK;
}

void tw_quant_sampler_destroy(tw_quant_sampler_t *sampler)
{
    if (sampler) {
        tw_quant_messages_destroy(sampler->messages);
        tw_quant_destroy(sampler->blocks);
    }
    free(sampler);
}

/** Add the values and errors of a block or message to a loss, unless any is not finite. */
static void loss_count(const float *values, const float *decoded, size_t n, tw_quant_loss_t *loss)
{
    tw_quant_loss_t sum = {0};
    for (size_t i = 0; i < n; i++) {
        double value = values[i], error = (double)decoded[i] - value;
        sum.squares += value * value;
        sum.errors += error * error;
        sum.n_values += values[i] != 0;
        sum.n_vanished += values[i] != 0 && decoded[i] == 0;
    }
    if (isfinite(sum.squares) && isfinite(sum.errors)) {
        tw_quant_loss_merge(loss, &sum);
    }
}

/** Add elements first to first + n - 1 to the loss: whole blocks, or the segment's last elements. */
static tw_status_t add_run(tw_quant_t *quant, const tw_quant_args_t *args, const void *values, size_t first,
                           size_t n, tw_quant_loss_t *loss)
{
    unsigned char encoded[TW_QUANT_BLOCK_MAX * 2];
    float wide[TW_QUANT_BLOCK_MAX], decoded[TW_QUANT_BLOCK_MAX];
    const void *src = (const char *)values + first * tw_type_bytes(args->type);
    const tw_quant_args_t to_fp32 = {.type = TW_TYPE_FP32};
    size_t block = (size_t)tw_quant_codec_get(quant)->block;
    tw_quant_segment_t in = {.src = src, .dst = encoded, .n_elems = n, .first_elem = first};
    tw_quant_segment_t out = {.src = encoded, .dst = decoded, .n_elems = n};
    TW_TRY(tw_quant_encode(quant, args, &in, 1));
    TW_TRY(tw_quant_decode(quant, &to_fp32, &out, 1));
    tw_convert_to_fp32(args->type, src, wide, n);
    for (size_t at = 0; at < n; at += block) {
        loss_count(wide + at, decoded + at, n - at < block ? n - at : block, loss);
    }
    return TW_OK;
}

static tw_status_t loss_add_runs(tw_quant_t *quant, tw_type_t type, const tw_quant_message_segment_t *segment,
                                 size_t most_elems, tw_quant_loss_t *loss)
{
    const tw_quant_args_t args = {.type = type};
    size_t block = (size_t)tw_quant_codec_get(quant)->block, run = TW_QUANT_BLOCK_MAX / block * block;
    size_t n_elems = segment->n_elems;
    size_t n_runs = (n_elems + run - 1) / run, wanted = most_elems / run > 0 ? most_elems / run : 1;
    size_t step = n_runs > wanted ? n_runs / wanted : 1;
    for (size_t at = 0; at < n_runs; at += step) {
        size_t first = at * run, n = n_elems - first < run ? n_elems - first : run;
        TW_TRY(add_run(quant, &args, segment->src, first, n, loss));
    }
    return TW_OK;
}

static tw_status_t loss_add_message(tw_quant_messages_t *messages, tw_type_t type,
                                    const tw_quant_message_segment_t *segment, size_t most_elems,
                                    tw_quant_loss_t *loss)
{
    size_t most = TW_LARGER(most_elems, TW_QUANT_BLOCK_MAX), bytes;
    size_t n = segment->n_elems < most ? segment->n_elems : most;
    size_t bound = tw_quant_bound_bytes(tw_quant_messages_codec(messages), type, n);
    float *values = tw_buffer_alloc((2 * n + 1) * sizeof(*values));
    void *encoded = tw_buffer_alloc(bound);
    tw_quant_message_segment_t part = {segment->src, values + n, n, segment->row_elems, 0};
    const tw_quant_message_args_t args = {type, &part, 1, .seed = 1};
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (!values || !encoded) {
        tw_error("quant: out of memory for a sample of %zu elements", n);
        goto err_buffers;
    }
    status = tw_quant_messages_encode(messages, &args, encoded, bound, &bytes);
    if (status == TW_OK) {
        status = tw_quant_messages_decode(messages, &args, TW_QUANT_SINK_STORE_FP32, encoded, bytes);
    }
    if (status == TW_OK) {
        tw_convert_to_fp32(type, segment->src, values, n);
        loss_count(values, values + n, n, loss);
    }
err_buffers:
    tw_buffer_free(encoded);
    tw_buffer_free(values);
    return status;
}

tw_status_t tw_quant_loss_add(tw_quant_sampler_t *sampler, tw_type_t type,
                              const tw_quant_message_segment_t *segment, size_t most_elems,
                              tw_quant_loss_t *loss)
{
    return sampler->messages ? loss_add_message(sampler->messages, type, segment, most_elems, loss)
                             : loss_add_runs(sampler->blocks, type, segment, most_elems, loss);
}

double tw_quant_loss_error(const tw_quant_loss_t *loss)
{
    return loss->squares > 0 ? sqrt(loss->errors / loss->squares) : 0;
}

double tw_quant_loss_vanished(const tw_quant_loss_t *loss)
{
    return loss->n_values > 0 ? (double)loss->n_vanished / (double)loss->n_values : 0;
}
