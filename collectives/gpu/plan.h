/** A collective operation on a GPU as data: which bytes are encoded, sent, summed up and decoded, and when.
 *
 *  A plan is made from sizes and topology alone, so it holds for every call of the same shape. All its
 *  memory is one workspace; places in it are byte offsets. A plan runs in ticks. In one tick, computations
 *  and messages run at the same time, as they use different memory. Computations start when the messages of
 *  the tick before have ended, and messages start when the computations of the tick before have ended.
 *
 *  A round is one chunk of every shard. Its steps follow tick by tick: while one round is on the wire,
 *  another one is encoded and a third one decoded. Rounds in flight have different slots of the workspace.
 *
 *  The program (program/ops.h) says what a round does in each of its ticks. The host runs the same program,
 *  so algorithms, sums and bits are the same.
 *
 *  Sums of lossless chunks are made of plain values. A chunk that leaves a node is packed. The rank that
 *  gets it unpacks it by a separate computation in the tick of the sum. A chunk that is spread stays packed
 *  until it is delivered. The host learns the length of a packed chunk when the kernels that packed it, or
 *  the message that brought it, have ended. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/ops.h"
#include "collectives/quantized/chunks.h"

TW_C_BEGIN

/** An offset that means the caller's tensors: src for reading, dst for writing. */
#define TW_GPU_USER SIZE_MAX
/** An offset that means the caller's dst, for reading. */
#define TW_GPU_RESULT (SIZE_MAX - 1)

/** No cell: the data is not packed. */
#define TW_GPU_NOT_PACKED SIZE_MAX

/** A computation on one chunk. */
typedef struct tw_gpu_compute {
    size_t chunk; /**< index in the grid */
    /** PLAIN to PLAIN is a copy or a sum. PACKED only occurs together with PLAIN, and with one input. */
    tw_form_t in, out;
    int n_inputs; /**< number of inputs that are summed up in fp32, in order; 0: no sum, one input */
    float factor; /**< for a sum */
    tw_seed_t seed;
    size_t from;   /**< offset of the first input */
    size_t stride; /**< bytes from one input to the next */
    size_t to;
    size_t packed; /**< if `in` or `out` is PACKED: the message's cell, 0 to n_cells - 1; else unused */
} tw_gpu_compute_t;

/** A message. The k-th message from a to b in a's plan is the k-th message from a to b in b's plan. */
typedef struct tw_gpu_message {
    int peer;
    int is_send;
    size_t at, bytes; /**< bytes of the message; if it is PACKED, an upper bound */
    size_t packed;    /**< PACKED: the message's cell, 0 to n_cells - 1; else TW_GPU_NOT_PACKED */
} tw_gpu_message_t;

typedef struct tw_gpu_tick {
    size_t first_compute, n_computes;
    size_t first_message, n_messages;
} tw_gpu_tick_t;

typedef struct tw_gpu_plan {
    tw_grid_t grid;
    tw_gpu_compute_t *computes;
    tw_gpu_message_t *messages;
    tw_gpu_tick_t *ticks;
    size_t n_computes, max_computes, n_messages, max_messages, n_ticks;
    size_t n_rounds;
    /** number of cells in the workspace; a cell is a chunk's place, and the host notes a length for each */
    size_t n_cells;
    size_t slot_bytes, n_slots;
    size_t temp_at; /**< place of the fp32 sum of plain inputs that is then encoded, one chunk at a time */
    size_t workspace_bytes;
    uint64_t inter_node_bytes; /**< bytes that this rank sends to other nodes */
} tw_gpu_plan_t;

typedef struct tw_gpu_plan_params {
    const tw_topo_t *topo;
    const tw_flows_t *flows;    /**< the algorithm's flows */
    tw_kept_program_t *kept;    /**< programs that were made from the flows earlier */
    const tw_coll_args_t *args; /**< the segments' pointers are not used */
    size_t chunk_bytes;         /**< target size of a message */
    int rounds_sums;            /**< see tw_coll_rounds_sums */
    int in_place;               /**< all-to-all, 1: each segment's src and dst are the same memory */
} tw_gpu_plan_params_t;

/** TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_gpu_plan_init(tw_gpu_plan_t *plan, const tw_gpu_plan_params_t *params);
void tw_gpu_plan_cleanup(tw_gpu_plan_t *plan);

TW_C_END
