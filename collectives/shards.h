/** The shards of all owners, and the places of their chunks, while the program of an operation in host
 *  memory is turned into tasks. Private to collectives. */
#pragma once

#include "collectives/quantized/operation.h"

TW_C_BEGIN

/** A cell: the place of a chunk in one form (plain, encoded or packed). */
typedef struct tw_host_cell {
    tw_span_t span;
    tw_task_t task; /**< the task that writes the cell */
    int is_src;     /**< 1: the cell is in the source tensors */
} tw_host_cell_t;

typedef struct tw_host_shard {
    size_t first_chunk; /**< index in the grid */
    tw_span_t spans[2]; /**< the whole shard, in the source view and in the target view */
    size_t n_elems, n_chunks;
    tw_task_t sent[2];     /**< the latest sends of the shard: of an even chunk, and of an odd one */
    tw_task_t *read;       /**< [n_chunks], the last task that reads the chunk from the source tensors */
    tw_host_cell_t *cells; /**< [n_chunks][n_cells], TW_CELL_DST, TW_CELL_SRC, then the cells of the ops */
    size_t n_cells;
} tw_host_shard_t;

typedef struct tw_host_run {
    tw_coll_request_t *request;
    tw_coll_args_t *args; /**< the request's arguments, without codecs that were declined */
    tw_sched_t *sched;
    const tw_topo_t *topo;
    const tw_flows_t *flows;
    /** The views that are read and written, and [W + 1] where shards begin in them (NULL: one shard). */
    const tw_view_t *views[2];
    size_t *firsts[2];
    size_t chunk_elems; /**< the most elements of a message; >= 1 */
    float scale;        /**< factor of each contribution to a sum that travels: see tw_coll_scale */
    float factor;       /**< factor of the last sum, in addition to scale */
    const tw_ops_t *ops[TW_N_CODINGS]; /**< NULL: no chunk has this coding */
    const tw_ops_t *first;             /**< one of `ops`; all have the same hops and owners */
    int is_mixed;                      /**< 1: there are several `ops` */
    tw_qop_t *op;                      /**< NULL: everything is plain */
    tw_host_shard_t *shards;           /**< [n_owners of the ops] */
    size_t n_chunks;                   /**< the most chunks of a shard */
    int swaps; /**< 1: all-to-all in place, so everything is read before anything is written */
    /** with swaps: when this task has ended, everything that was emitted before has been read */
    tw_task_t all_read;
    tw_span_t *row; /**< the part of a row's buffer that is left for its next sums; NULL: no row */
} tw_host_run_t;

/** Complete a run. Its request, arguments, schedule and flows must be set. Gets the programs from `kept`, or
 *  makes them, and makes the shards. TW_ERR_NO_MEMORY. */
tw_status_t tw_host_run_init(tw_host_run_t *run, tw_kept_program_t *kept);

TW_C_END
