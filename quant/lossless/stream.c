/* The lossless codec on streams: of the host's memory, where a call works at once. */
#include "quant/quant.h"

#include <stdlib.h>

struct tw_quant_lossless_stream {
    tw_quant_lossless_t *host;
};

tw_status_t tw_quant_lossless_stream_create(tw_mem_t mem, tw_quant_lossless_stream_t **out)
{
    if (mem != TW_MEM_HOST) {
        tw_error("quant: lossless: there are no kernels for CUDA memory yet");
        return TW_ERR_UNSUPPORTED;
    }
    tw_quant_lossless_stream_t *codec = calloc(1, sizeof(*codec));
    if (!codec) {
        tw_error("quant: lossless: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_quant_lossless_create(NULL, &codec->host);
    if (status != TW_OK) {
        free(codec);
        return status;
    }
    *out = codec;
    return TW_OK;
}

void tw_quant_lossless_stream_destroy(tw_quant_lossless_stream_t *codec)
{
    if (codec) {
        tw_quant_lossless_destroy(codec->host);
    }
    free(codec);
}

size_t tw_quant_lossless_encode_workspace_bytes(tw_quant_lossless_stream_t *codec, tw_type_t type,
                                                const tw_quant_lossless_segment_t *segments,
                                                size_t n_segments)
{
    (void)codec, (void)type, (void)segments, (void)n_segments;
    return 0;
}

size_t tw_quant_lossless_decode_workspace_bytes(tw_quant_lossless_stream_t *codec, tw_type_t type,
                                                size_t n_elems, size_t n_segments)
{
    (void)codec, (void)type, (void)n_elems, (void)n_segments;
    return 0;
}

static void put_outcome(const tw_quant_lossless_args_t *args, size_t bytes, tw_status_t status)
{
    tw_quant_outcome_t outcome = {status == TW_OK ? (uint32_t)bytes : 0, status};
    if (args->outcome) {
        *args->outcome = outcome;
    }
    if (args->host) {
        *args->host = outcome;
    }
}

static tw_status_t decode_on_host(tw_quant_lossless_stream_t *codec, const tw_quant_lossless_args_t *args,
                                  tw_quant_sink_t sink, const tw_quant_lossless_segment_t *segments,
                                  size_t n_segments, const void *src, size_t src_bytes, int at_most)
{
    size_t bytes = src_bytes;
    tw_status_t status = TW_OK;
    if (at_most) {
        status = tw_quant_lossless_message_bytes(src, src_bytes, &bytes);
        bytes = bytes < src_bytes ? bytes : src_bytes; /* too short is found below */
    }
    if (status == TW_OK) {
        status = sink == TW_QUANT_SINK_STORE
                     ? tw_quant_lossless_decode(codec->host, args->type, segments, n_segments, src, bytes)
                     : tw_quant_lossless_decode_fp32(codec->host, args->type, sink == TW_QUANT_SINK_ADD_FP32,
                                                     segments, n_segments, src, bytes);
    }
    put_outcome(args, bytes, status);
    return status == TW_ERR_INVALID || status == TW_ERR_NO_MEMORY ? status : TW_OK;
}

tw_status_t tw_quant_lossless_stream_encode(tw_quant_lossless_stream_t *codec,
                                            const tw_quant_lossless_args_t *args,
                                            const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                            void *dst, size_t dst_bytes)
{
    size_t bytes = 0;
    TW_TRY(tw_quant_lossless_encode(codec->host, args->type, segments, n_segments, dst, dst_bytes, &bytes));
    put_outcome(args, bytes, TW_OK);
    return TW_OK;
}

tw_status_t tw_quant_lossless_stream_decode(tw_quant_lossless_stream_t *codec,
                                            const tw_quant_lossless_args_t *args, tw_quant_sink_t sink,
                                            const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                            const void *src, size_t src_bytes, int at_most)
{
    return decode_on_host(codec, args, sink, segments, n_segments, src, src_bytes, at_most);
}
