/* Codecs of messages: each call goes to the function in the codec's row of the table. */
#include "quant/message_ops.h"

#include <stdlib.h>

struct tw_quant_messages {
    tw_quant_codec_t codec;
    const tw_quant_message_ops_t *ops;
    void *coder;
};

/** The functions of a codec, or NULL if its form is not TW_QUANT_MESSAGE. */
static const tw_quant_message_ops_t *ops_of(const tw_quant_codec_t *codec)
{
    return tw_quant_form(codec) == TW_QUANT_MESSAGE ? tw_quant_row_get(codec->kind)->messages : NULL;
}

tw_status_t tw_quant_messages_create(const tw_quant_codec_t *codec, const char *backend,
                                     tw_quant_messages_t **out)
{
    TW_TRY(tw_quant_codec_check(codec));
    const tw_quant_message_ops_t *ops = ops_of(codec);
    TW_FAIL_IF(!ops, TW_ERR_INVALID, "quant: codec %s has no messages that say their length",
               tw_quant_row_get(codec->kind)->name);
    tw_quant_messages_t *messages = calloc(1, sizeof(*messages));
    TW_FAIL_IF(!messages, TW_ERR_NO_MEMORY, "quant: out of memory");
    *messages = (tw_quant_messages_t){.codec = *codec, .ops = ops};
    tw_status_t status = ops->create(codec, backend, &messages->coder);
    if (status != TW_OK) {
        free(messages);
        return status;
    }
    *out = messages;
    return TW_OK;
}

void tw_quant_messages_destroy(tw_quant_messages_t *messages)
{
    if (messages) {
        messages->ops->destroy(messages->coder);
    }
    free(messages);
}

const tw_quant_codec_t *tw_quant_messages_codec(const tw_quant_messages_t *messages)
{
    return &messages->codec;
}

const char *tw_quant_messages_backend_name(const tw_quant_messages_t *messages)
{
    return messages->ops->backend_name(messages->coder);
}

size_t tw_quant_messages_backends(const tw_quant_codec_t *codec, const char **names, size_t max)
{
    const tw_quant_message_ops_t *ops = ops_of(codec);
    return ops ? tw_backends_names(ops->backends, TW_MEM_HOST, names, max) : 0;
}

tw_status_t tw_quant_messages_encode(tw_quant_messages_t *messages, const tw_quant_message_args_t *args,
                                     void *dst, size_t dst_bytes, size_t *bytes)
{
    return messages->ops->encode(messages->coder, args, dst, dst_bytes, bytes);
}

tw_status_t tw_quant_messages_decode(tw_quant_messages_t *messages, const tw_quant_message_args_t *args,
                                     tw_quant_sink_t sink, const void *src, size_t src_bytes)
{
    return messages->ops->decode(messages->coder, args, sink, src, src_bytes);
}
