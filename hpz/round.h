/** Rounded parts: their changes go through a block codec, with loss, and what all ranks get is the replica.
 *  Private to the folder and its white-box tests.
 *
 *  The owner encodes what a part has more than its replica, and makes the replica follow like everybody else,
 *  so all replicas stay equal bit for bit; the next change is measured from the replica, so what one leaves
 *  out the next one brings. Then the part in the owner's run becomes the replica, so that nothing of it is
 *  left for the change without loss that follows (change.h). A part goes there instead if it is to lose
 *  nothing, has NaN or Inf, or has moved too far: by more than an eighth of its size, in the 2-norm. What is
 *  given unchanged stays as all ranks have it.
 *
 *  Message: a bit for each rounded part, low first, whether its change follows; from a multiple of 16 bytes
 *  on, the encoded changes one after the other. */
#pragma once

#include "hpz/keeper.h"

TW_C_BEGIN

/** The rounded parts of a unit. One thread at a time, but that one may encode while another decodes. */
typedef struct tw_hpz_round tw_hpz_round_t;

/** *out is NULL where no part is rounded. TW_ERR_INVALID (logged): a rounded part without a codec, of bytes,
 *  or that does not begin at a multiple of its type's size; errors of tw_quant_create; TW_ERR_NO_MEMORY. The
 *  parts fit into the run. */
tw_status_t tw_hpz_round_create(const tw_hpz_kept_params_t *params, tw_hpz_round_t **out);
/** Accepts NULL. */
void tw_hpz_round_destroy(tw_hpz_round_t *round);
/** Most bytes of a message, a multiple of 16; 0 for NULL. */
size_t tw_hpz_round_bound_bytes(const tw_hpz_round_t *round);

/** Note the run that a first gather sends as it is. */
void tw_hpz_round_begin(tw_hpz_round_t *round, const uint8_t *fresh);
/** Encode the changes of rounded parts: `run`, the replica, follows `fresh`, and `fresh` becomes the replica.
 *  lossless: 1: encode nothing, only note what is given. *bytes: of the message, a multiple of 16; *rounded:
 *  bytes of the parts in it. */
tw_status_t tw_hpz_round_encode(tw_hpz_round_t *round, uint8_t *run, uint8_t *fresh, int lossless,
                                uint8_t *message, size_t *bytes, size_t *rounded);
/** Make `run` follow the message that begins at `message`; *used: its bytes, of the `bytes` that are there.
 *  These may be any: TW_ERR_FORMAT (logged). */
tw_status_t tw_hpz_round_decode(tw_hpz_round_t *round, uint8_t *run, const uint8_t *message, size_t bytes,
                                size_t *used);

TW_C_END
