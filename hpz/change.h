/** The difference between two versions of a run, encoded as a message. Private to the folder and its
 *  white-box tests. keeper.h explains runs and parts.
 *
 *  The types of a run's parts divide the run into fields. The bytes that differ are a list of pieces. A piece
 *  begins and ends at multiples of TW_HPZ_STEP_BYTES, but if that is inside an element, it includes the whole
 *  element.
 *
 *  Message, little-endian:
 *    u32 bytes of the list of pieces, u32 bytes of the first delta, of the second, of the third
 *    the list: for each piece its distance from the end of the piece before, and its length, both in steps,
 *    as numbers of 7 bits a byte, lowest first; the high bit is set in all bytes of a number but the last
 *    then, each at a multiple of 16 bytes:
 *    first: a lossless delta (quant.h) of all bf16 and fp16 elements in the pieces
 *    second: a lossless delta of the upper halves of all fp32 elements
 *    the lower halves of all fp32 elements, as they are; directly after them,
 *    third: a lossless delta of 8-bit numbers: all other bytes, which may be fp8 */
#pragma once

#include "hpz/keeper.h"

TW_C_BEGIN

#define TW_HPZ_STEP_BYTES ((size_t)128)
/** Two pieces are joined into one if at most this many steps lie between them. */
#define TW_HPZ_GAP_STEPS ((size_t)4)

/** A buffer that grows when needed and is reused. */
typedef struct tw_hpz_bytes {
    uint8_t *data;
    size_t room;
} tw_hpz_bytes_t;
/** Make room for n bytes; the contents are lost. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_hpz_bytes_need(tw_hpz_bytes_t *bytes, size_t n);
void tw_hpz_bytes_cleanup(tw_hpz_bytes_t *bytes);

/** How a field's elements are coded. The value is the size of an element in bytes. */
typedef enum tw_hpz_coding { TW_HPZ_AS_BYTES = 1, TW_HPZ_AS_HALF = 2, TW_HPZ_AS_WORD = 4 } tw_hpz_coding_t;

typedef struct tw_hpz_field {
    size_t offset, n_bytes; /**< place in the run */
    tw_hpz_coding_t coding;
    size_t first_state; /**< index of the state of the field's first element, among the run's states */
} tw_hpz_field_t;

/** The fields of a run. All runs of a unit have the same ones. */
typedef struct tw_hpz_form {
    size_t run_bytes, n_coded; /**< n_coded: number of elements that have a state */
    tw_hpz_field_t *fields;    /**< [n_fields]; together they cover the run */
    size_t n_fields;
} tw_hpz_form_t;
/** Divide a run into fields. TW_ERR_INVALID (logged): parts overlap or lie outside the run, or the run has 0
 *  bytes or more than TW_HPZ_RUN_BYTES_MAX; TW_ERR_NO_MEMORY. */
tw_status_t tw_hpz_form_init(tw_hpz_form_t *form, const tw_hpz_kept_params_t *params);
void tw_hpz_form_cleanup(tw_hpz_form_t *form);

/** An encoder and decoder with its scratch buffers. Only one thread may use it at a time. */
typedef struct tw_hpz_change tw_hpz_change_t;
tw_status_t tw_hpz_change_create(tw_hpz_change_t **out);
void tw_hpz_change_destroy(tw_hpz_change_t *change);

/** Write the difference from `run` to `fresh` to `message`, which has room for tw_hpz_change_bound_bytes.
 *  Then update `run` and its states to `fresh`. *bytes is the message's length, 0 if nothing differs.
 *  *changed is the number of the run's bytes that the message's pieces cover. */
tw_status_t tw_hpz_change_encode(tw_hpz_change_t *change, const tw_hpz_form_t *form, uint8_t *run,
                                 uint8_t *states, const uint8_t *fresh, uint8_t *message, size_t *bytes,
                                 size_t *changed);
/** Apply a message of exactly `bytes` bytes to `run` and its states. TW_ERR_FORMAT (logged): the message is
 *  invalid or was made from another run; `run` is then corrupt. */
tw_status_t tw_hpz_change_decode(tw_hpz_change_t *change, const tw_hpz_form_t *form, uint8_t *run,
                                 uint8_t *states, const uint8_t *message, size_t bytes);
/** Return the most bytes that a message can have. */
size_t tw_hpz_change_bound_bytes(const tw_hpz_form_t *form);

TW_C_END
