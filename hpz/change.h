/** The difference between two runs as a message. Private to the folder and its white-box tests.
 *
 *  The types of its parts divide a run into fields. What differs is a list of pieces, which begin and end at
 *  multiples of TW_HPZ_STEP_BYTES; where a piece ends inside an element, it takes the whole element.
 *
 *  Message, little-endian:
 *    u32 bytes of the list of pieces, u32 bytes of the first delta, of the second, of the third
 *    the list: for each piece its distance from the end of the one before, and its length, in steps: 7 bits
 *    a byte, low first, the high bit set on all but the last
 *    from a multiple of 16 bytes on each:
 *    a lossless delta (quant.h) of all bf16 and fp16 in the pieces
 *    a lossless delta of the upper halves of all fp32
 *    the lower halves of all fp32, as they are, and a lossless delta of 8 bits of all other bytes, which may
 *    be fp8 */
#pragma once

#include "hpz/keeper.h"

TW_C_BEGIN

#define TW_HPZ_STEP_BYTES ((size_t)128)
/** Pieces at most this many steps apart are joined. */
#define TW_HPZ_GAP_STEPS ((size_t)4)

/** A buffer that grows and is used again. */
typedef struct tw_hpz_bytes {
    uint8_t *data;
    size_t room;
} tw_hpz_bytes_t;
/** Make room for n bytes; the contents are lost. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_hpz_bytes_need(tw_hpz_bytes_t *bytes, size_t n);
void tw_hpz_bytes_cleanup(tw_hpz_bytes_t *bytes);

/** How a field's elements are coded. The value is the number of bytes of an element. */
typedef enum tw_hpz_coding { TW_HPZ_AS_BYTES = 1, TW_HPZ_AS_HALF = 2, TW_HPZ_AS_WORD = 4 } tw_hpz_coding_t;

typedef struct tw_hpz_field {
    size_t offset, n_bytes; /**< place in the run */
    tw_hpz_coding_t coding;
    size_t first_state; /**< index of its first element's state in the run's states */
} tw_hpz_field_t;

/** The fields that the runs of a unit consist of. */
typedef struct tw_hpz_form {
    size_t run_bytes, n_coded; /**< n_coded: how many elements have a state */
    tw_hpz_field_t *fields;    /**< [n_fields], they cover the run */
    size_t n_fields;
} tw_hpz_form_t;
/** Make the fields. TW_ERR_INVALID (logged): parts overlap or lie outside the run, or the run has 0 bytes or
 *  too many; TW_ERR_NO_MEMORY. */
tw_status_t tw_hpz_form_init(tw_hpz_form_t *form, const tw_hpz_kept_params_t *params);
void tw_hpz_form_cleanup(tw_hpz_form_t *form);

/** A coder with its scratch. One thread at a time. */
typedef struct tw_hpz_change tw_hpz_change_t;
tw_status_t tw_hpz_change_create(tw_hpz_change_t **out);
void tw_hpz_change_destroy(tw_hpz_change_t *change);

/** Write the difference from `run` to `fresh` to `message`, [tw_hpz_change_bound_bytes], and bring `run` and
 *  its states up to date. *bytes is its length, 0 if nothing differs; *changed: bytes in its pieces. */
tw_status_t tw_hpz_change_encode(tw_hpz_change_t *change, const tw_hpz_form_t *form, uint8_t *run,
                                 uint8_t *states, const uint8_t *fresh, uint8_t *message, size_t *bytes,
                                 size_t *changed);
/** Apply a message of exactly `bytes` bytes, which need not be valid, to `run` and its states. TW_ERR_FORMAT
 *  (logged): no encoder writes such a message, or it was made of another run; the run is spoilt then. */
tw_status_t tw_hpz_change_decode(tw_hpz_change_t *change, const tw_hpz_form_t *form, uint8_t *run,
                                 uint8_t *states, const uint8_t *message, size_t bytes);
/** Return the most bytes that a message can have. */
size_t tw_hpz_change_bound_bytes(const tw_hpz_form_t *form);

TW_C_END
