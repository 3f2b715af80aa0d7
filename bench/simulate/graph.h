/** Private to bench/simulate: what graph.c makes and net.c runs. */
#ifndef TW_BENCH_SIMULATE_GRAPH_H
#define TW_BENCH_SIMULATE_GRAPH_H

#include "bench/simulate/simulate.h"

TW_C_BEGIN

typedef enum sim_work { SIM_MOVE, SIM_ADD, SIM_ENCODE, SIM_DECODE } sim_work_t;

typedef struct sim_op {
    int from, at;   /**< ranks; of work the same */
    int hop, owner; /**< hops of spreading come after those of reducing */
    int times;      /**< shards of a row; inputs of work */
    uint32_t n_inputs;
    uint32_t lane;      /**< of a message */
    uint16_t index;     /**< in its owner's flow */
    uint8_t work, form; /**< sim_work_t, tw_form_t */
} sim_op_t;

/** Two ranks of which the one sends to the other: a connection. */
typedef struct sim_lane {
    int from, to;
} sim_lane_t;

struct sim_graph {
    int world, n_shards;
    const tw_flows_t *flows;
    sim_op_t *ops;
    size_t n_ops;
    sim_lane_t *lanes;
    size_t n_lanes;
    size_t *first_after; /**< [n_ops + 2]; of operation i: after[first_after[i] .. first_after[i + 1]) */
    uint32_t *after;
};

TW_C_END

#endif
