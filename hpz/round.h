/** Rounded parts of kept units: their changes are quantized by a block codec, and all ranks get the replica
 *  instead of the owner's values. Private to the folder and its white-box tests.
 *
 *  The owner encodes the difference of a part from its replica, then applies the decoded change to its
 *  replica as all ranks do, so that replicas stay equal bit for bit. The next change is measured from the
 *  replica, so it also sends what this change lost. Then the owner copies the replica over the part in its
 *  run, so that the lossless change that follows (change.h) finds no difference in the part. But a part goes
 *  into the lossless change if it must lose nothing, has NaN or Inf, or has moved by more than an eighth of
 *  its 2-norm. A part that has not changed stays as all ranks have it.
 *
 *  Message: one bit for each rounded part, lowest first, which is 1 if its change follows; then, from a
 *  multiple of 16 bytes on, the encoded changes one after the other. */
#pragma once

#include "hpz/keeper.h"

TW_C_BEGIN

/** The rounded parts of a unit. One thread at a time may encode, and one may decode. */
typedef struct tw_hpz_round tw_hpz_round_t;

/** Make the state of a unit's rounded parts; *out is NULL if no part is rounded. The parts must fit into the
 *  run. TW_ERR_INVALID (logged): a rounded part has no codec, has type TW_TYPE_BYTE, or does not begin at a
 *  multiple of its element size; errors of tw_quant_create; TW_ERR_NO_MEMORY. */
tw_status_t tw_hpz_round_create(const tw_hpz_kept_params_t *params, tw_hpz_round_t **out);
/** Accepts NULL. */
void tw_hpz_round_destroy(tw_hpz_round_t *round);
/** Return the most bytes of a message, a multiple of 16; 0 for NULL. */
size_t tw_hpz_round_bound_bytes(const tw_hpz_round_t *round);

/** Remember the run that the first gather sends as it is, as the state that later runs are compared with. */
void tw_hpz_round_begin(tw_hpz_round_t *round, const uint8_t *fresh);
/** Encode the changes of rounded parts from `run`, the replica, to `fresh`, and apply them to `run`. Then
 *  copy those parts of `run` to `fresh`. lossless 1: encode nothing, only remember `fresh`. *bytes is the
 *  message's length, a multiple of 16. *rounded is the number of bytes in the parts that it covers. */
tw_status_t tw_hpz_round_encode(tw_hpz_round_t *round, uint8_t *run, uint8_t *fresh, int lossless,
                                uint8_t *message, size_t *bytes, size_t *rounded);
/** Apply the message at `message` to `run`. *used is its length, at most `bytes`. TW_ERR_FORMAT (logged): the
 *  message is invalid. */
tw_status_t tw_hpz_round_decode(tw_hpz_round_t *round, uint8_t *run, const uint8_t *message, size_t bytes,
                                size_t *used);

TW_C_END
