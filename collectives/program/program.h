/** A rank's program: what it does in the flows of all owners, in the order in which it does it.
 *
 *  It is made from the topology alone and kept: an operation of any size runs it for each chunk of the
 *  shards. Values are counted for each owner: what comes to this rank, and what it adds up. */
#ifndef TW_COLLECTIVES_PROGRAM_PROGRAM_H
#define TW_COLLECTIVES_PROGRAM_PROGRAM_H

#include "collectives/program/form.h"

TW_C_BEGIN

typedef enum tw_step_kind {
    TW_STEP_SEND, /**< its input */
    TW_STEP_RECV, /**< makes a value */
    TW_STEP_SUM,  /**< makes a value of its inputs */
} tw_step_kind_t;

/** Instead of a value: what this rank has to begin with. */
#define TW_STEP_OWN (-1)

typedef struct tw_step {
    tw_step_kind_t kind;
    int hop, owner;
    int peer;                  /**< SEND, RECV */
    int is_sum;                /**< SEND, RECV: of what is a sum; else of one rank's contribution */
    int value;                 /**< that it makes, of the owner's */
    int first_input, n_inputs; /**< in the phase's inputs */
    int n_partial;             /**< SUM: the first so many inputs are sums that have travelled */
    int is_last;               /**< SUM: its value is the result */
    int is_early;              /**< what it needs is there before its hop begins */
    /** If each move takes one, and what is computed between two of them: when it is. What is sent of the own
     *  contributions is ready in tick 0. The same on all ranks. */
    int tick;
} tw_step_t;

typedef struct tw_phase {
    /** by hop; in a hop the owners of the next node come first, those of the own one last */
    tw_step_t *steps;
    int *inputs;     /**< values, or TW_STEP_OWN */
    int *first_step; /**< [n_hops + 1] */
    int *n_values;   /**< [world] of each owner */
    int n_steps, n_inputs, n_hops;
    size_t max_steps, max_inputs;
    int n_ticks; /**< of all ranks */
} tw_phase_t;

typedef struct tw_program {
    tw_phase_t reduce, spread; /**< of no steps where the flows have none */
} tw_program_t;

/** TW_ERR_NO_MEMORY (logged). tw_program_destroy ends it. */
tw_status_t tw_program_create(const tw_topo_t *topo, const tw_flows_t *flows, tw_program_t **out);
/** Accepts NULL. */
void tw_program_destroy(tw_program_t *program);

TW_C_END

#endif
