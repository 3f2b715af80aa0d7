/** Scratch memory of a communicator: buffers are handed out by size class and kept for the next operation. */
#ifndef TW_COLLECTIVES_SCHEDULE_SCRATCH_H
#define TW_COLLECTIVES_SCHEDULE_SCRATCH_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_scratch tw_scratch_t;

/** keep_bytes: how much unused memory may be held back. */
tw_status_t tw_scratch_create(size_t keep_bytes, tw_scratch_t **out);
/** All buffers must have been put back. Accepts NULL. */
void tw_scratch_destroy(tw_scratch_t *scratch);
/** At least `bytes` of uninitialised memory, aligned to 64 bytes; NULL when out of memory. */
void *tw_scratch_get(tw_scratch_t *scratch, size_t bytes);
/** Give back what tw_scratch_get returned for the same `bytes`; accepts NULL. */
void tw_scratch_put(tw_scratch_t *scratch, void *buffer, size_t bytes);
/** Bytes handed out now, and the most there ever were. */
size_t tw_scratch_used_bytes(const tw_scratch_t *scratch);
size_t tw_scratch_peak_bytes(const tw_scratch_t *scratch);

#ifdef __cplusplus
}
#endif

#endif
