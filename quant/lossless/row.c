/* The lossless codec's row of the table: its functions, with the signatures of all codecs of messages. */
#include "quant/lossless/lossless.h"
#include "quant/message_ops.h"

static tw_status_t lossless_create(const tw_quant_codec_t *codec, const char *backend, void **coder)
{
    (void)codec;
    return tw_quant_lossless_create(backend, (tw_quant_lossless_t **)coder);
}

static void lossless_destroy(void *coder)
{
    tw_quant_lossless_destroy(coder);
}

static const char *lossless_backend_name(const void *coder)
{
    return tw_quant_lossless_backend_name(coder);
}

static tw_status_t lossless_encode(void *coder, const tw_quant_message_args_t *args, void *dst,
                                   size_t dst_bytes, size_t *bytes)
{
    return tw_quant_lossless_encode(coder, args->type, args->segments, args->n_segments, dst, dst_bytes,
                                    bytes);
}

static tw_status_t lossless_decode(void *coder, const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                                   const void *src, size_t src_bytes)
{
    return tw_lossless_decode(coder, args, sink, src, src_bytes);
}

const tw_quant_message_ops_t tw_quant_lossless_ops = {
    .backends = &tw_lossless_backends,
    .bound_bytes = tw_quant_lossless_bound_bytes,
    .create = lossless_create,
    .destroy = lossless_destroy,
    .backend_name = lossless_backend_name,
    .encode = lossless_encode,
    .decode = lossless_decode,
};
