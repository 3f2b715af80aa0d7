/** Memory that replicas lie in, the host's or a GPU's, as a table of operations. hpz/hpz.h includes it.
 *
 *  "Here" is the host's memory, "there" the table's. The thread that calls the hpz makes all calls. What they
 *  enqueue happens in the order of the calls, and has ended when `wait` returns; encode and decode wait by
 *  themselves. Whoever finds an error logs it; after an error the caller waits before it frees anything. */
#ifndef TW_HPZ_MEMORY_H
#define TW_HPZ_MEMORY_H

#include "collectives/collectives.h"
#include "quant/quant.h"

TW_C_BEGIN

typedef struct tw_hpz_memory {
    void *ctx;
    /** Allocate what syncs need. Called once, before the others. A sync has at most n_elems of a rank's
     *  elements at a time, in at most n_segments segments. deltas 0: there are no syncs; narrow, fresh,
     *  encode and decode are not called. TW_ERR_NO_MEMORY, TW_ERR_UNSUPPORTED. */
    tw_status_t (*reserve)(void *ctx, size_t n_elems, size_t n_segments, int deltas);
    /** Make a communicator of some of the parent's ranks, as tw_coll_group_create does, for tensors there;
     *  its operations are enqueued on *stream. */
    tw_status_t (*group)(void *ctx, tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out,
                         tw_stream_t *stream);
    /** Copy n_bytes from here to there, from there to here, or from there to there. */
    tw_status_t (*copy)(void *ctx, void *to, const void *from, size_t n_bytes);
    tw_status_t (*zero)(void *ctx, void *at, size_t n_bytes);
    /** Write bf16(from) to `to`: n elements. `to` is there, `from` here or there. */
    tw_status_t (*narrow)(void *ctx, const float *from, uint16_t *to, size_t n);
    /** Return room there for the new values of a sync, [n_elems], valid until the next call of encode has
     *  ended. The entry is NULL for host memory, where it is never called. */
    uint16_t *(*fresh)(void *ctx);
    /** Do as tw_quant_delta_encode and tw_quant_delta_decode, with segments there and the message here. */
    tw_status_t (*encode)(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments, void *dst,
                          size_t dst_bytes, size_t *bytes);
    tw_status_t (*decode)(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments,
                          const void *src, size_t src_bytes);
    tw_status_t (*wait)(void *ctx);
} tw_hpz_memory_t;

TW_C_END

#endif
