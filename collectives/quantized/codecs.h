/** The codecs that a communicator has used: made once, kept with it. */
#ifndef TW_COLLECTIVES_QUANTIZED_CODECS_H
#define TW_COLLECTIVES_QUANTIZED_CODECS_H

#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_codecs {
    tw_quant_t **items;
    size_t n, max;
    tw_mem_t mem; /**< that all of them are bound to */
} tw_codecs_t;

/** Borrow a codec; made if it is the first of its kind. Zeroed codecs are an empty set, bound to host memory. */
tw_status_t tw_codecs_get(tw_codecs_t *codecs, const tw_quant_codec_t *codec, tw_quant_t **out);
/** Blocks with NaN or Inf that their encoders have met. */
uint64_t tw_codecs_nonfinite_blocks(const tw_codecs_t *codecs);
void tw_codecs_cleanup(tw_codecs_t *codecs);

#ifdef __cplusplus
}
#endif

#endif
