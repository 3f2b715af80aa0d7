/* What is measured: codecs by their texts, and which tensors each may have. */
#include <string.h>

#include "bench/codecs/codecs.h"

int cb_codec_is_blocks(const cb_codec_t *codec)
{
    return !codec->is_delta && tw_quant_form(&codec->codec) == TW_QUANT_BLOCKS;
}

tw_status_t cb_codec_parse(const char *text, cb_codec_t *codec)
{
    *codec = (cb_codec_t){.is_delta = strcmp(text, "delta") == 0};
    return codec->is_delta ? TW_OK : tw_quant_codec_parse(text, &codec->codec);
}

const char *cb_codec_format(const cb_codec_t *codec, char *text, size_t text_bytes)
{
    if (codec->is_delta) {
        snprintf(text, text_bytes, "delta");
        return text;
    }
    return tw_quant_codec_format(&codec->codec, text, text_bytes);
}

int cb_codec_takes(const cb_codec_t *codec, const cb_set_t *set)
{
    return !codec->is_delta || set->has_old;
}

size_t cb_codec_backends(const cb_codec_t *codec, const char **names, size_t max)
{
    return codec->is_delta                                    ? tw_quant_delta_backends(names, max)
           : tw_quant_form(&codec->codec) == TW_QUANT_MESSAGE ? tw_quant_lossless_backends(names, max)
                                                              : tw_quant_backends(TW_MEM_HOST, names, max);
}
