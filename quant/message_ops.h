/** The functions in the row of a codec of messages. Private to quant. */
#pragma once

#include "quant/backends.h"
#include "quant/quant.h"

TW_C_BEGIN

/** The functions of one codec. `create` returns the codec's own object, `coder`, which the others take. */
typedef struct tw_quant_message_ops {
    const tw_backends_t *backends;
    size_t (*bound_bytes)(tw_type_t type, size_t n_elems);
    tw_status_t (*create)(const tw_quant_codec_t *codec, const char *backend, void **coder);
    void (*destroy)(void *coder);
    const char *(*backend_name)(const void *coder);
    tw_status_t (*encode)(void *coder, const tw_quant_message_args_t *args, void *dst, size_t dst_bytes,
                          size_t *bytes);
    tw_status_t (*decode)(void *coder, const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                          const void *src, size_t src_bytes);
} tw_quant_message_ops_t;

extern const tw_quant_message_ops_t tw_quant_lossless_ops, tw_quant_ecdq_ops;

TW_C_END
