/** Measures the error of a lossy codec on a sample of a tensor's values. */
#ifndef TW_QUANT_LOSS_H
#define TW_QUANT_LOSS_H

#include "quant/block_codec.h"
#include "quant/message_codec.h"

TW_C_BEGIN

/** Sums over sampled values. Zeroed: no values yet. */
typedef struct tw_quant_loss {
    double squares, errors; /**< sums of the squared values and of the squared errors */
    uint64_t n_values;      /**< values that are not 0 */
    uint64_t n_vanished;    /**< values that are not 0 but decode to 0 */
} tw_quant_loss_t;

/** Add the sums of another tensor or of another rank. */
static inline void tw_quant_loss_merge(tw_quant_loss_t *sum, const tw_quant_loss_t *more)
{
    sum->squares += more->squares;
    sum->errors += more->errors;
    sum->n_values += more->n_values;
    sum->n_vanished += more->n_vanished;
}

/** A codec of blocks or of messages that encodes and decodes samples in host memory. */
typedef struct tw_quant_sampler tw_quant_sampler_t;

/** Make a sampler. Errors, logged: TW_ERR_INVALID if the codec is invalid, or its form is not TW_QUANT_BLOCKS
 *  or TW_QUANT_MESSAGE; TW_ERR_NO_MEMORY. */
tw_status_t tw_quant_sampler_create(const tw_quant_codec_t *codec, tw_quant_sampler_t **out);
void tw_quant_sampler_destroy(tw_quant_sampler_t *sampler);

/** Encode and decode a sample of about most_elems of a segment, and add its errors to `loss`. The segment
 *  begins at the beginning of a tensor or of a part of a tensor; only its src, n_elems and row_elems are
 *  used. A codec of blocks samples runs at even distances, at least one, each of as many whole blocks as fit
 *  into TW_QUANT_BLOCK_MAX elements; blocks with NaN or Inf do not count. A codec of messages encodes the
 *  first elements, at least TW_QUANT_BLOCK_MAX, as one message, which does not count if it has NaN or Inf.
 *  Seeds are fixed, so the result is reproducible. TW_ERR_INVALID, TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_quant_loss_add(tw_quant_sampler_t *sampler, tw_type_t type,
                              const tw_quant_message_segment_t *segment, size_t most_elems,
                              tw_quant_loss_t *loss);
/** The 2-norm of the errors divided by the 2-norm of the values; 0 if there are no values. */
double tw_quant_loss_error(const tw_quant_loss_t *loss);
/** The share of non-zero values that decode to 0; 0 if there are no values. */
double tw_quant_loss_vanished(const tw_quant_loss_t *loss);

TW_C_END

#endif
