/** Private to tests/bench/simulate: the graph of operations, which graph.c makes and net.c runs. */
#pragma once

#include "tests/bench/simulate/simulate.h"

TW_C_BEGIN

typedef enum sim_work { SIM_MOVE, SIM_ADD, SIM_ENCODE, SIM_DECODE } sim_work_t;

typedef struct sim_op {
    int from, at;   /**< sender and receiver; both are the working rank where nothing is sent */
    int hop, owner; /**< hop in the owner's flow; hops of spreading follow those of reducing */
    int times;      /**< how many shards a message has, or inputs a sum has */
    uint32_t n_inputs;
    uint32_t lane;      /**< number of the connection that a message takes */
    uint16_t index;     /**< place in its owner's flow */
    uint16_t turn;      /**< place of its owner's flow in the rank's program */
    uint8_t work, form; /**< sim_work_t, tw_form_t */
    uint8_t is_spread;
} sim_op_t;

/** A connection: one rank sends to another. */
typedef struct sim_lane {
    int from, to;
} sim_lane_t;

/** An algorithm on a cluster: what each rank does, and what it waits for. */
typedef struct sim_graph {
    int world, n_shards;
    const tw_flows_t *flows;
    sim_op_t *ops;
    size_t n_ops;
    sim_lane_t *lanes;
    size_t n_lanes;
    uint32_t *sends;    /**< messages, lane by lane, each by hop, then by turn, then by index */
    size_t *first_send; /**< [n_lanes + 1] */
    int n_reduce_hops, n_spread_hops;
    int is_pipelined;    /**< 1: each chunk is spread once it is reduced (see sim_round) */
    size_t *first_after; /**< [n_ops + 2]; of operation i: after[first_after[i] .. first_after[i + 1]) */
    uint32_t *after;
} sim_graph_t;

/** Make the graph of an operation on a tensor of `bytes` in messages of at most chunk_bytes.
 *  TW_ERR_NO_MEMORY (logged). */
tw_status_t sim_graph_create(const sim_cluster_t *cluster, const tw_algo_t *algo, double bytes,
                             double chunk_bytes, sim_graph_t **out);
/** Accepts NULL. */
void sim_graph_destroy(sim_graph_t *graph);

/** Return 1 if all hops of a chunk come before the next chunk, as if a root spreads plain values. */
static inline int sim_is_by_chunk(const sim_graph_t *g, const sim_op_t *op)
{
    return op->is_spread && !g->is_pipelined && g->flows->of == TW_FLOWS_ROOT;
}

/** Return the round of an operation's chunk c in a rank's program, as the library emits it
 *  (collectives/host.c): chunk follows chunk, and a hop is TW_HOP_ROUNDS behind the hop before. But plain
 *  values are spread after everything is reduced: hop by hop, or from a root chunk by chunk. */
static inline uint64_t sim_round(const sim_graph_t *g, const sim_op_t *op, size_t c, size_t n_chunks)
{
    const uint64_t hop = (uint64_t)op->hop, last = (uint64_t)TW_HOP_ROUNDS * (uint64_t)g->n_reduce_hops;
    if (!op->is_spread || g->is_pipelined) { /* a result is spread in the round that makes it */
        return c + TW_HOP_ROUNDS * (op->is_spread && g->n_reduce_hops > 0 ? hop - 1 : hop);
    }
    const uint64_t n_hops = (uint64_t)g->n_spread_hops, spread = hop - (uint64_t)g->n_reduce_hops;
    return last + n_chunks + (sim_is_by_chunk(g, op) ? c * n_hops + spread : spread * n_chunks + c);
}

TW_C_END
