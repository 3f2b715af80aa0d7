/** Operations on the memory of replicas, host or GPU, as a table of functions. hpz/hpz.h includes it.
 *
 *  "Here" means host memory, "there" the table's memory. All calls come from the thread that calls the hpz.
 *  Operations are enqueued and run in the order of the calls. They are complete when `wait` returns; encode
 *  and decode wait themselves. Errors are logged where found. After an error the caller waits before it frees
 *  memory. */
#ifndef TW_HPZ_MEMORY_H
#define TW_HPZ_MEMORY_H

#include "collectives/collectives.h"
#include "quant/quant.h"

TW_C_BEGIN

typedef struct tw_hpz_memory {
    void *ctx;
    /** Allocate buffers for syncs. Called once, before the other functions. A slice has at most n_elems of a
     *  rank's elements, in at most n_segments segments. deltas 0: there will be no syncs; narrow, fresh,
     *  encode and decode are not called. TW_ERR_NO_MEMORY, TW_ERR_UNSUPPORTED. */
    tw_status_t (*reserve)(void *ctx, size_t n_elems, size_t n_segments, int deltas);
    /** Make a communicator of some of the parent's ranks, as tw_coll_group_create does, for tensors there.
     *  *stream becomes the stream that its operations run on. */
    tw_status_t (*group)(void *ctx, tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out,
                         tw_stream_t *stream);
    /** Copy n_bytes from here to there, from there to here, or from there to there. */
    tw_status_t (*copy)(void *ctx, void *to, const void *from, size_t n_bytes);
    tw_status_t (*zero)(void *ctx, void *at, size_t n_bytes);
    /** Write bf16(from[i]) to to[i] for n elements. `to` is there, `from` here or there. */
    tw_status_t (*narrow)(void *ctx, const float *from, uint16_t *to, size_t n);
    /** Return a buffer there for the new values of a slice, [n_elems]. It is valid until the next encode has
     *  ended. NULL in the host's table: not called there. */
    uint16_t *(*fresh)(void *ctx);
    /** As tw_quant_delta_encode and tw_quant_delta_decode, with segments there and the message here. */
    tw_status_t (*encode)(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments, void *dst,
                          size_t dst_bytes, size_t *bytes);
    tw_status_t (*decode)(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments,
                          const void *src, size_t src_bytes);
    tw_status_t (*wait)(void *ctx);
} tw_hpz_memory_t;

TW_C_END

#endif
