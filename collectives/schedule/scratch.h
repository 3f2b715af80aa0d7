/** Scratch memory of a communicator. Buffers are handed out by size class, and kept for the next operation.
 *
 *  The memory has a limit. A user reserves memory before it takes buffers, and asks again later if there is
 *  no room. The oldest user gets what it needs in any case, so that one can always proceed. */
#pragma once

#include <sys/queue.h>

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_scratch tw_scratch_t;

/** A user that reserves memory, such as a schedule. In the caller's storage, zeroed at first. */
typedef struct tw_scratch_user {
    TAILQ_ENTRY(tw_scratch_user) link;
    size_t reserved_bytes;
} tw_scratch_user_t;

tw_status_t tw_scratch_create(size_t limit_bytes, tw_scratch_t **out);
/** Destroy the scratch memory. All buffers must have been put back. Accepts NULL. */
void tw_scratch_destroy(tw_scratch_t *scratch);

/** Join the users as the youngest one. Leaving gives all reservations of the user back. */
void tw_scratch_enter(tw_scratch_t *scratch, tw_scratch_user_t *user);
void tw_scratch_leave(tw_scratch_t *scratch, tw_scratch_user_t *user);
/** Reserve `bytes` bytes. Returns 0 if all reservations would exceed the limit, or half of it if the user is
 *  not the oldest. is_needed 1: the user cannot proceed without them, so the oldest gets them in any case. */
int tw_scratch_reserve(tw_scratch_t *scratch, tw_scratch_user_t *user, size_t bytes, int is_needed);
void tw_scratch_release(tw_scratch_t *scratch, tw_scratch_user_t *user, size_t bytes);
/** Returns how many bytes of memory a buffer for `bytes` bytes takes: those of its size class. */
size_t tw_scratch_class_bytes(size_t bytes);

/** Get at least `bytes` bytes of uninitialised memory, aligned to 64 bytes. Returns NULL if memory is out. */
void *tw_scratch_get(tw_scratch_t *scratch, size_t bytes);
/** Give back a buffer that tw_scratch_get returned for the same `bytes`. Accepts NULL. */
void tw_scratch_put(tw_scratch_t *scratch, void *buffer, size_t bytes);
/** Free the buffers that are kept for later. */
void tw_scratch_trim(tw_scratch_t *scratch);

/** Bytes handed out; bytes handed out or kept; the most bytes that were ever handed out or kept. */
size_t tw_scratch_used_bytes(const tw_scratch_t *scratch);
size_t tw_scratch_held_bytes(const tw_scratch_t *scratch);
size_t tw_scratch_peak_bytes(const tw_scratch_t *scratch);

TW_C_END
