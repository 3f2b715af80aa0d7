/** Memory that replicas lie in, as a table of operations: the host's, or a GPU's. In hpz/hpz.h.
 *
 *  "Here" is the host's memory, "there" the table's. Calls are of the thread that calls the hpz. What they
 *  enqueue happens in the order of the calls, and is over when `wait` returns; encode and decode wait by
 *  themselves. Errors are logged by who finds them; after one the caller waits before it frees anything. */
#ifndef TW_HPZ_MEMORY_H
#define TW_HPZ_MEMORY_H

#include "collectives/collectives.h"
#include "quant/quant.h"

TW_C_BEGIN

typedef struct tw_hpz_memory {
    void *ctx;
    /** Called once, before the others. A sync has at most n_elems of a rank's elements at a time, in at most
     *  n_segments segments. deltas 0: there are no syncs; narrow, fresh, encode and decode are not called.
     *  TW_ERR_NO_MEMORY, TW_ERR_UNSUPPORTED. */
    tw_status_t (*reserve)(void *ctx, size_t n_elems, size_t n_segments, int deltas);
    /** Make a communicator of some of the parent's ranks, as tw_coll_group_create does, for tensors there;
     *  *stream: where its operations are enqueued. */
    tw_status_t (*group)(void *ctx, tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out,
                         tw_stream_t *stream);
    /** Copy n_bytes from here to there, from there to here, or from there to there. */
    tw_status_t (*copy)(void *ctx, void *to, const void *from, size_t n_bytes);
    tw_status_t (*zero)(void *ctx, void *at, size_t n_bytes);
    /** Write bf16(from) to `to`: n elements. `to` is there, `from` here or there. */
    tw_status_t (*narrow)(void *ctx, const float *from, uint16_t *to, size_t n);
    /** Room there for the new values of a sync: [n_elems], until the next call of encode has ended. NULL in
     *  host memory: never called there. */
    uint16_t *(*fresh)(void *ctx);
    /** As tw_quant_delta_encode and tw_quant_delta_decode, of segments there; the message is here. */
    tw_status_t (*encode)(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments, void *dst,
                          size_t dst_bytes, size_t *bytes);
    tw_status_t (*decode)(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments,
                          const void *src, size_t src_bytes);
    tw_status_t (*wait)(void *ctx);
} tw_hpz_memory_t;

TW_C_END

#endif
