/** A rank's program: the ops of this rank in the flows of all owners, in order. An op converts, adds up,
 *  sends or receives one chunk. A program is for chunks of one coding. It depends on the topology alone and
 *  is kept: an operation of any size runs it for each chunk of the shards. The host makes tasks of it
 *  (collectives/host.c), the GPU's planner ticks (gpu/plan.c).
 *
 *  A cell holds a chunk in one form. Each owner's cells are numbered from 0. In an all-to-all, each rank r
 *  of W has two shards: `owner` r is the data for it, and owner W + r is the data from it. */
#pragma once

#include "collectives/program/form.h"

TW_C_BEGIN

/** These stand for a cell: the chunk in the source tensors, or in the target tensors (to write or read). */
#define TW_CELL_SRC (-1)
#define TW_CELL_DST (-2)

/** How many rounds of a pipeline (schedule.h) lie between a chunk's hops. */
#define TW_HOP_ROUNDS 2

typedef enum tw_op_kind {
    TW_OP_CONVERT, /**< from one form to another; from plain to plain it is a copy */
    TW_OP_SUM,
    TW_OP_SEND,
    TW_OP_RECV,
} tw_op_kind_t;

/** Selects the random numbers of stochastic rounding. */
typedef enum tw_seed { TW_SEED_OP, TW_SEED_RANK, TW_SEED_NODE, TW_N_SEEDS } tw_seed_t;

typedef struct tw_op {
    tw_op_kind_t kind;
    int hop;      /**< in the op's phase, which is reducing or spreading */
    int is_early; /**< 1: all inputs of the op are ready before its hop begins */
    /** The tick of the op, if each move takes one tick, and so does each computation between two moves. Own
     *  contributions are encoded in tick 0, results are ready in tick n_ticks - 1. Equal on all ranks. */
    int tick;
    int owner, peer;
    tw_form_t in, out; /**< form of the input and of the output; a message has one form */
    int from, to;      /**< cells; a SUM has `inputs` instead of `from` */
    int from_owner; /**< owner of the cell `from`; differs from `owner` only in a CONVERT of an all-to-all */
    int first_input, n_inputs;
    /** SUM: number of inputs that are received sums: the first ones, or all but the first one */
    int n_partial;
    int is_last;    /**< SUM, 1: it adds up all contributions */
    int for_send;   /**< CONVERT, 1: it prepares an own contribution for sending */
    tw_seed_t seed; /**< seed of the random numbers with which the output is encoded */
} tw_op_t;

typedef struct tw_ops {
    /** Reducing ops come before spreading ones. In each phase they are ordered by hop, and in a hop early
     *  ones come first. In a hop, the owners of the next node come first, those of the own node last. */
    tw_op_t *ops;
    int *inputs;   /**< cells */
    int *first_op; /**< [n_hops + 1] */
    int *n_cells;  /**< [n_owners], number of cells of each owner */
    int n_owners;
    int n_ops, n_inputs;
    size_t max_ops, max_inputs, max_hops;
    int n_hops, n_reduce_hops; /**< the first n_reduce_hops hops reduce */
    int n_ticks;
} tw_ops_t;

typedef struct tw_ops_params {
    const tw_topo_t *topo;
    const tw_flows_t *flows;
    tw_coding_t coding;
    int has_inner;   /**< 1: the hop inside the node has a codec */
    int rounds_sums; /**< see tw_coll_rounds_sums */
    enum {
        TW_STAGE_NONE,
        TW_STAGE_SENT, /**< data to send is in cells, never in the tensors */
        TW_STAGE_ALL,  /**< received data and sums are in cells, too */
    } stages;
} tw_ops_params_t;

/** The programs of an algorithm that were made so far. Zeroed: none. */
#define TW_OPS_KINDS (12 * TW_N_CODINGS)
typedef struct tw_kept_program {
    tw_ops_t *ops[TW_OPS_KINDS];
} tw_kept_program_t;

/** Make a program. tw_ops_get keeps it. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_ops_create(const tw_ops_params_t *params, tw_ops_t **out);
/** Get a program; the first call makes it. All calls with one `kept` must have the same topology and flows.
 *  TW_ERR_NO_MEMORY (logged). */
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
