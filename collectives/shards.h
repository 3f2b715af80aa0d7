/** An operation in host memory while its program is turned into tasks: the shards of all owners, and where
 *  their chunks are. Private to collectives. */
#pragma once

#include "collectives/quantized/operation.h"

TW_C_BEGIN

/** A cell: where a chunk lies, in one form (plain, encoded, packed). */
typedef struct tw_host_cell {
    tw_span_t span;
    tw_task_t task; /**< task that writes the cell */
    int is_src;     /**< 1: the cell lies in the tensors that are read */
} tw_host_cell_t;

typedef struct tw_host_shard {
    size_t first_chunk; /**< index in the grid */
    tw_span_t spans[2]; /**< the whole shard, in what is read and in what is written */
    size_t n_elems, n_chunks;
    tw_task_t sent[2];     /**< the latest messages to the owner, of even and of odd chunks */
    tw_task_t *read;       /**< [n_chunks], the last task that reads the chunk from the source */
    tw_host_cell_t *cells; /**< [n_chunks][n_cells], TW_CELL_DST, TW_CELL_SRC, then those of the ops */
    size_t n_cells;
} tw_host_shard_t;

typedef struct tw_host_run {
    tw_coll_request_t *request;
    tw_coll_args_t *args; /**< the request's arguments, without codecs that were declined */
    tw_sched_t *sched;
    const tw_topo_t *topo;
    const tw_flows_t *flows;
    /** The views that are read and written, and [W + 1] where shards begin in them (NULL: they have one
     *  shard). */
    const tw_view_t *views[2];
    size_t *firsts[2];
    size_t chunk_elems; /**< the most elements in a message; >= 1 */
    float scale;        /**< factor of a rank's contribution to a sum that travels: see tw_coll_scale */
    float factor;       /**< factor of a reduction's last step, besides scale */
    const tw_ops_t *ops[TW_N_CODINGS]; /**< NULL: no chunk is coded in this way */
    const tw_ops_t *first;             /**< one of `ops`, for the hops, in which all agree */
    int is_mixed;                      /**< 1: `ops` has several */
    tw_qop_t *op;                      /**< NULL: everything is plain */
    tw_host_shard_t *shards;           /**< [n_owners of the ops] */
    size_t n_chunks;                   /**< most chunks of a shard */
    int swaps;          /**< all-to-all in place: everything is read before anything is written */
    tw_task_t all_read; /**< with swaps: this task, and those before it, read everything */
    tw_span_t *row;     /**< the rest of a row's buffer, for the next results; NULL: none */
} tw_host_run_t;

/** Complete a run whose request, arguments, schedule and flows are set: find its programs, which are made if
 *  `kept` has none yet, and make its shards. TW_ERR_NO_MEMORY. */
tw_status_t tw_host_run_init(tw_host_run_t *run, tw_kept_program_t *kept);

TW_C_END
