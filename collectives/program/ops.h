/** A rank's program: what it does in the flows of all owners, in order, as ops, for chunks that are encoded
 *  alike: what it converts, adds up, sends and receives, and from where to where. It depends on the topology
 *  alone and is kept: an operation of any size runs it for each chunk of the shards. The host makes tasks of
 *  it (collectives/host.c), the GPU's planner ticks (gpu/plan.c).
 *
 *  A cell holds a chunk in one form; cells are counted for each owner. In an all-to-all there are two shards
 *  for each rank r of W: `owner` r is what goes to it, owner W + r what comes from it. */
#pragma once

#include "collectives/program/form.h"

TW_C_BEGIN

/** Stand for a cell: the chunk in the tensors that are read, or in those that are written (which are then
 *  also read). */
#define TW_CELL_SRC (-1)
#define TW_CELL_DST (-2)

/** How many rounds of a pipeline (schedule.h) lie between a chunk's hops. */
#define TW_HOP_ROUNDS 2

typedef enum tw_op_kind {
    TW_OP_CONVERT, /**< from one form to another; from plain to plain: a copy */
    TW_OP_SUM,
    TW_OP_SEND,
    TW_OP_RECV,
} tw_op_kind_t;

/** Which random numbers stochastic rounding uses. */
typedef enum tw_seed { TW_SEED_OP, TW_SEED_RANK, TW_SEED_NODE, TW_N_SEEDS } tw_seed_t;

typedef struct tw_op {
    tw_op_kind_t kind;
    int hop;      /**< within its phase: reducing, or spreading */
    int is_early; /**< 1: all that the op needs is there before its hop begins */
    /** The tick in which the op is done, if each move takes one, and so does each computation between two
     *  moves: own contributions are sent in tick 0, results are there at n_ticks - 1. It is the same on all
     *  ranks. */
    int tick;
    int owner, peer;
    tw_form_t in, out; /**< form of what is read, and of what is made; of a message */
    int from, to;      /**< cells; of a SUM: see inputs */
    int from_owner; /**< owner of the cell that is read; not always `owner` for a CONVERT of an all-to-all */
    int first_input, n_inputs;
    /** SUM: so many inputs, the first ones, are sums that have travelled; if the first one is an own
     *  contribution, all others are */
    int n_partial;
    int is_last;    /**< SUM: it adds up all contributions */
    int for_send;   /**< CONVERT: it makes an own contribution ready to send */
    tw_seed_t seed; /**< the seed with which an output is encoded */
} tw_op_t;

typedef struct tw_ops {
    /** Reducing ops come before spreading ones; then in order of hops, early ones first; in a hop the owners
     *  of the next node come first, those of the own one last. */
    tw_op_t *ops;
    int *inputs;   /**< cells */
    int *first_op; /**< [n_hops + 1] */
    int *n_cells;  /**< [n_owners] how many cells each owner has */
    int n_owners;
    int n_ops, n_inputs;
    size_t max_ops, max_inputs, max_hops;
    int n_hops, n_reduce_hops; /**< the first n_reduce_hops reduce */
    int n_ticks;
} tw_ops_t;

typedef struct tw_ops_params {
    const tw_topo_t *topo;
    const tw_flows_t *flows;
    tw_coding_t coding;
    int has_inner;   /**< there is a codec for the hop inside the node */
    int rounds_sums; /**< see tw_coll_rounds_sums */
    enum {
        TW_STAGE_NONE,
        TW_STAGE_SENT, /**< what is sent is in cells, never in the tensors */
        TW_STAGE_ALL,  /**< what comes, and what is added up, is in cells, too */
    } stages;
} tw_ops_params_t;

/** The programs of an algorithm that were made so far; zeroed: none. */
#define TW_OPS_KINDS (12 * TW_N_CODINGS)
typedef struct tw_kept_program {
    tw_ops_t *ops[TW_OPS_KINDS];
} tw_kept_program_t;

/** Make a program, which tw_ops_get keeps. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_ops_create(const tw_ops_params_t *params, tw_ops_t **out);
/** Get a program, which is made at its first use. All params of one `kept` must have the same topology and
 *  flows. TW_ERR_NO_MEMORY (logged). */
static inline tw_status_t tw_ops_get(tw_kept_program_t *kept, const tw_ops_params_t *params,
                                     const tw_ops_t **out)
{
    int coded = ((int)params->coding * 2 + !!params->has_inner) * 2 + !!params->rounds_sums;
    tw_ops_t **ops = &kept->ops[coded * 3 + (int)params->stages];
    tw_status_t status = *ops ? TW_OK : tw_ops_create(params, ops);
    *out = *ops;
    return status;
}
void tw_ops_cleanup(tw_kept_program_t *kept);

TW_C_END
