#include "collectives/quantized/codecs.h"

#include <stdlib.h>
#include <string.h>

tw_status_t tw_codecs_get(tw_codecs_t *codecs, const tw_quant_codec_t *codec, tw_quant_t **out)
{
    for (size_t i = 0; i < codecs->n; i++) {
        if (tw_quant_codec_equal(tw_quant_codec_get(codecs->items[i]), codec)) {
            *out = codecs->items[i];
            return TW_OK;
        }
    }
    if (codecs->n == codecs->max) {
        size_t max = codecs->max > 0 ? 2 * codecs->max : 4;
        tw_quant_t **items = realloc(codecs->items, max * sizeof(*items));
        if (items == NULL) {
            tw_error("out of memory for a codec");
            return TW_ERR_NO_MEMORY;
        }
        codecs->items = items;
        codecs->max = max;
    }
    tw_quant_params_t params = {.codec = *codec, .mem = codecs->mem};
    tw_status_t status = tw_quant_create(&params, &codecs->items[codecs->n]);
    if (status == TW_OK) {
        *out = codecs->items[codecs->n++];
    }
    return status;
}

uint64_t tw_codecs_nonfinite_blocks(const tw_codecs_t *codecs)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < codecs->n; i++) {
        sum += tw_quant_nonfinite_blocks(codecs->items[i]);
    }
    return sum;
}

void tw_codecs_cleanup(tw_codecs_t *codecs)
{
    for (size_t i = 0; i < codecs->n; i++) {
        tw_quant_destroy(codecs->items[i]);
    }
    free(codecs->items);
    memset(codecs, 0, sizeof(*codecs));
}
