/** What a collective on a GPU does, as data: which bytes are encoded, sent, summed up and decoded, and when.
 *
 *  A plan is made from sizes and topology alone, so it holds for every call of the same shape. All its memory
 *  is one workspace; places in it are byte offsets. It runs in ticks. In a tick computations and messages run
 *  at the same time, as they touch different memory. Computations start when the messages of the tick before
 *  have arrived, messages when the computations of the tick before have ended.
 *
 *  A round is one chunk of every shard. Its steps follow tick by tick: while one round is on the wire,
 *  another one is encoded and a third decoded. Rounds in flight have different slots of the workspace.
 *
 *  The program (program/ops.h) says what a round does in which of its ticks: the algorithms, the sums and the
 *  bits are those of the host.
 *
 *  Lossless chunks are summed up plain. A chunk that leaves a node is packed; the rank that gets it unpacks
 *  it, by a computation of its own in the tick of the sum. In a spread a chunk stays packed until it is
 *  delivered. The host learns the length of a packed chunk when the kernels that packed it have ended, or
 *  when it has come. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/ops.h"
#include "collectives/quantized/chunks.h"

TW_C_BEGIN

/** An offset that means the caller's tensors: src to read, dst to write. */
#define TW_GPU_USER SIZE_MAX
/** An offset that means the caller's dst, to read. */
#define TW_GPU_RESULT (SIZE_MAX - 1)

/** A cell that means that there is none: the data is not packed. */
#define TW_GPU_NOT_PACKED SIZE_MAX

/** A computation on one chunk. */
typedef struct tw_gpu_compute {
    size_t chunk; /**< index in the grid */
    /** From PLAIN to PLAIN: a copy, or a sum. PACKED only from and to PLAIN, with one input. */
    tw_form_t in, out;
    int n_inputs; /**< 0: no sum, one input; else how many are summed up in fp32, in order */
    float factor; /**< for a sum */
    tw_seed_t seed;
    size_t from;   /**< place of the first input */
    size_t stride; /**< bytes from one input to the next */
    size_t to;
    size_t packed; /**< PACKED in or out: the cell of the message, see n_cells; else unused */
} tw_gpu_compute_t;

/** A message. The k-th from a to b in a's plan is the k-th from a to b in b's. */
typedef struct tw_gpu_message {
    int peer;
    int is_send;
    size_t at, bytes; /**< if it is PACKED, the most bytes it may have */
    size_t packed;    /**< PACKED: its cell, see n_cells; else TW_GPU_NOT_PACKED */
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
    /** how many places chunks have in the workspace; they are numbered, and a packed chunk's length belongs
     *  to its place */
    size_t n_cells;
    size_t slot_bytes, n_slots;
    size_t temp_at; /**< fp32 sums of plain inputs that are then encoded, of one chunk at a time */
    size_t workspace_bytes;
    uint64_t inter_node_bytes; /**< bytes that this rank sends to other nodes */
} tw_gpu_plan_t;

typedef struct tw_gpu_plan_params {
    const tw_topo_t *topo;
    const tw_flows_t *flows;    /**< the algorithm's flows */
    tw_kept_program_t *kept;    /**< the programs made from them */
    const tw_coll_args_t *args; /**< its segments' pointers are not read */
    size_t chunk_bytes;         /**< target size of a message */
    int rounds_sums;            /**< see tw_coll_rounds_sums */
    int in_place;               /**< all-to-all: 1: a segment's src and dst are the same */
} tw_gpu_plan_params_t;

/** TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_gpu_plan_init(tw_gpu_plan_t *plan, const tw_gpu_plan_params_t *params);
void tw_gpu_plan_cleanup(tw_gpu_plan_t *plan);

TW_C_END
