/** Rounded parts: their changes go through a block codec, with loss, and what all ranks get is the replica.
 *  Private to the folder and its white-box tests.
 *
 *  The owner encodes the difference of a part from its replica, and applies the decoded change to its replica
 *  as all ranks do, so that replicas stay equal bit for bit. The next change is measured from the replica, so
 *  it brings what this one lost. Then the replica is copied over the part in the owner's run, so that the
 *  change without loss that follows (change.h) has nothing of it. A part goes there instead if it must lose
 *  nothing, has NaN or Inf, or has moved by more than an eighth of its 2-norm. A part that is given unchanged
 *  stays as all ranks have it.
 *
 *  Message: for each rounded part a bit, low first, which is 1 if its change follows; then, from a multiple
 *  of 16 bytes on, the encoded changes one after the other. */
#pragma once

#include "hpz/keeper.h"

TW_C_BEGIN

/** The rounded parts of a unit. One thread at a time may encode, and one decode. */
typedef struct tw_hpz_round tw_hpz_round_t;

/** Make the state of a unit's rounded parts; *out is NULL if no part is rounded. The parts must fit into the
 *  run. TW_ERR_INVALID (logged): a rounded part has no codec, is of bytes, or does not begin at a multiple of
 *  its type's size; errors of tw_quant_create; TW_ERR_NO_MEMORY. */
tw_status_t tw_hpz_round_create(const tw_hpz_kept_params_t *params, tw_hpz_round_t **out);
/** Accepts NULL. */
void tw_hpz_round_destroy(tw_hpz_round_t *round);
/** Return the most bytes of a message, a multiple of 16; 0 for NULL. */
size_t tw_hpz_round_bound_bytes(const tw_hpz_round_t *round);

/** Note the run that a first gather sends as it is. */
void tw_hpz_round_begin(tw_hpz_round_t *round, const uint8_t *fresh);
/** Encode the changes of rounded parts from `run`, the replica, to `fresh`, and apply them to `run`; then
 *  copy those parts of `run` to `fresh`. lossless 1: encode nothing, only note what is given. *bytes is the
 *  message's length, a multiple of 16; *rounded: bytes of the parts in it. */
tw_status_t tw_hpz_round_encode(tw_hpz_round_t *round, uint8_t *run, uint8_t *fresh, int lossless,
                                uint8_t *message, size_t *bytes, size_t *rounded);
/** Apply the message that begins at `message` to `run`; *used is its length, at most `bytes`. The bytes need
 *  not be valid: TW_ERR_FORMAT (logged). */
tw_status_t tw_hpz_round_decode(tw_hpz_round_t *round, uint8_t *run, const uint8_t *message, size_t bytes,
                                size_t *used);

TW_C_END
