/** The loss of a lossy codec on a tensor, measured on a sample of its numbers. */
#ifndef TW_QUANT_LOSS_H
#define TW_QUANT_LOSS_H

#include "quant/block_codec.h"
#include "quant/message_codec.h"

TW_C_BEGIN

/** Zeroed: no numbers yet. */
typedef struct tw_quant_loss {
    double squares, errors; /**< sums of squares: of the values; of their errors */
    uint64_t n_values;      /**< values that are not 0 */
    uint64_t n_vanished;    /**< those of them that become 0 */
} tw_quant_loss_t;

/** Add another tensor's loss, or another rank's. */
static inline void tw_quant_loss_merge(tw_quant_loss_t *sum, const tw_quant_loss_t *more)
{
    sum->squares += more->squares;
    sum->errors += more->errors;
    sum->n_values += more->n_values;
    sum->n_vanished += more->n_vanished;
}

/** A codec of blocks or of messages that encodes and decodes samples in host memory. */
typedef struct tw_quant_sampler tw_quant_sampler_t;

/** Make a sampler. TW_ERR_INVALID: the codec has another form, or is wrong; TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_sampler_create(const tw_quant_codec_t *codec, tw_quant_sampler_t **out);
void tw_quant_sampler_destroy(tw_quant_sampler_t *sampler);

/** Encode and decode about most_elems of a segment (src, n_elems and row_elems of it), the beginning of a
 *  tensor or of its part, and add their loss. For blocks it takes runs at even distances, at least one, which
 *  has tw_quant_loss_run_elems; blocks with NaN or Inf do not count. For messages it takes the first
 *  elements, at least TW_QUANT_BLOCK_MAX, as a message of their own, which does not count if it has NaN or
 *  Inf. Random numbers depend on the place alone. TW_ERR_INVALID, TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_quant_loss_add(tw_quant_sampler_t *sampler, tw_type_t type,
                              const tw_quant_message_segment_t *segment, size_t most_elems,
                              tw_quant_loss_t *loss);
/** Elements of a run: whole blocks, 4096 at most. */
size_t tw_quant_loss_run_elems(const tw_quant_codec_t *codec);
/** The 2-norm of the errors divided by that of the values; 0 without values. */
double tw_quant_loss_error(const tw_quant_loss_t *loss);
/** The share of values that became 0; 0 without values. */
double tw_quant_loss_vanished(const tw_quant_loss_t *loss);

TW_C_END

#endif
