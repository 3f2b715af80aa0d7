/** What a lossy code makes of a tensor's numbers, measured on a sample of them. */
#ifndef TW_QUANT_LOSS_H
#define TW_QUANT_LOSS_H

#include "quant/block_codec.h"
#include "quant/message_codec.h"

TW_C_BEGIN

/** Zeroed: of none yet. Those of several tensors, or ranks, are added by their members. */
typedef struct tw_quant_loss {
    double squares, errors; /**< sums of squares: of the values; of decoded less values */
    uint64_t n_values;      /**< that are not 0 */
    uint64_t n_vanished;    /**< of those: that are 0 once decoded */
} tw_quant_loss_t;

/** Encode and decode runs of whole blocks at even distances, about most_elems in all (at least a run, which
 *  has tw_quant_loss_run_elems), and add what becomes of them. quant: for host memory; values: type[n_elems],
 *  the beginning of a tensor or of its part; blocks with NaN or Inf do not count. Stochastic rounding is
 *  keyed by the place alone. TW_ERR_INVALID (logged): as of tw_quant_encode. */
tw_status_t tw_quant_loss_add(tw_quant_t *quant, tw_type_t type, const void *values, size_t n_elems,
                              size_t most_elems, tw_quant_loss_t *loss);
/** The same for a codec of messages: the first most_elems of a segment (src, n_elems and row_elems of it),
 *  encoded as a message of their own. Messages with NaN or Inf do not count. TW_ERR_INVALID,
 *  TW_ERR_NO_MEMORY (logged): as of tw_quant_messages_encode. */
tw_status_t tw_quant_loss_add_message(tw_quant_messages_t *messages, tw_type_t type,
                                      const tw_quant_message_segment_t *segment, size_t most_elems,
                                      tw_quant_loss_t *loss);
/** Elements of a run: whole blocks, 4096 at most. */
size_t tw_quant_loss_run_elems(const tw_quant_codec_t *codec);
/** The error's 2-norm by that of the values; 0: of none. */
double tw_quant_loss_error(const tw_quant_loss_t *loss);
/** The share of values that became 0; 0: of none. */
double tw_quant_loss_vanished(const tw_quant_loss_t *loss);

TW_C_END

#endif
