/* Sinks: stores or adds decoded values, also elements that a message of any codec holds as they are. */
#include "quant/lossless/lossless.h"

size_t tw_lossless_sink_bytes(tw_type_t type, tw_quant_sink_t sink)
{
    return sink == TW_QUANT_SINK_STORE ? tw_type_bytes(type) : sizeof(float);
}

void tw_lossless_sink_values(tw_type_t type, tw_quant_sink_t sink, const void *values, size_t n, uint8_t *dst)
{
    if (sink == TW_QUANT_SINK_STORE) {
        memcpy(dst, values, n * tw_type_bytes(type));
    } else if (sink == TW_QUANT_SINK_STORE_FP32) {
        tw_convert_to_fp32(type, values, (float *)dst, n);
    } else {
        tw_convert_add_fp32(type, values, (float *)dst, n);
    }
}

void tw_lossless_sink_zeros(tw_type_t type, tw_quant_sink_t sink, size_t n, uint8_t *dst)
{
    if (sink != TW_QUANT_SINK_ADD_FP32) {
        memset(dst, 0, n * tw_lossless_sink_bytes(type, sink));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        ((float *)dst)[i] += 0.0f;
    }
}

void tw_lossless_sink_plain(tw_quant_lossless_t *codec, tw_type_t type, tw_quant_sink_t sink,
                            const uint8_t *from, size_t n, uint8_t *dst)
{
    size_t elem_bytes = tw_type_bytes(type), most = TW_LOSSLESS_BLOCK_ELEMS;
    if (sink == TW_QUANT_SINK_STORE) {
        memcpy(dst, from, n * elem_bytes);
        return;
    }
    for (size_t i = 0; i < n; i += most) {
        size_t some = n - i < most ? n - i : most;
        memcpy(codec->body, from + i * elem_bytes, some * elem_bytes);
        tw_lossless_sink_values(type, sink, codec->body, some, dst + i * sizeof(float));
    }
}

void tw_lossless_sink_segments(tw_quant_lossless_t *codec, const tw_quant_message_args_t *args,
                               tw_quant_sink_t sink, const uint8_t *from)
{
    for (size_t s = 0; s < args->n_segments; s++) {
        size_t n = args->segments[s].n_elems;
        if (n) {
            tw_lossless_sink_plain(codec, args->type, sink, from, n, args->segments[s].dst);
        }
        from += n * tw_type_bytes(args->type);
    }
}
