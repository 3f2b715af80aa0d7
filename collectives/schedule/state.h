/** The inside of a schedule, shared by emit.c and run.c. */
#pragma once

#include "collectives/schedule/schedule.h"

TW_C_BEGIN

typedef enum tw_task_kind { TW_TASK_SEND, TW_TASK_RECV, TW_TASK_COMPUTE } tw_task_kind_t;

typedef struct tw_task_entry {
    tw_task_kind_t kind;
    int urgent; /**< computation, 1: a message waits for it, perhaps by way of other computations */
    int round;
    int n_waiting_for; /**< number of tasks that must end before this one starts */
    int first_edge;    /**< list in `edges`: the tasks that wait for this one */
    int first_use;     /**< list in `uses`: the scratch buffers of the task */
    tw_task_t next;    /**< next message of the lane, or next computation of the ready queue */
    int lane;
    uint64_t number; /**< message: its index in its lane */
    tw_span_t span;
    void *stage;        /**< message in flight: contiguous copy of a scattered span */
    size_t stage_bytes; /**< scratch memory of `stage`; 0: no copy is needed */
    tw_transport_request_t *request;
    tw_compute_fn_t fn;
    const void *arg;
} tw_task_entry_t;

/** One link of a list of integers; edges and uses are such lists. */
typedef struct tw_sched_link {
    int value, next;
} tw_sched_link_t;

typedef struct tw_sched_links {
    tw_sched_link_t *items;
    int n;
    size_t max;
} tw_sched_links_t;

typedef struct tw_sched_buffer_entry {
    void *memory;
    size_t bytes;
    size_t filled; /**< see tw_sched_fill */
    int n_users;   /**< number of tasks that use this buffer and have not ended */
} tw_sched_buffer_entry_t;

typedef struct tw_queue {
    tw_task_t first, last;
} tw_queue_t;

typedef struct tw_sched_round {
    int n_left;      /**< number of the round's tasks that have not ended */
    size_t bytes;    /**< scratch memory that tasks of this round are the first to use */
    tw_queue_t held; /**< computations that became ready before the round began */
} tw_sched_round_t;

/** All messages to one peer, or from one peer, in program order: ended ones, those in flight, the rest. */
typedef struct tw_lane {
    tw_task_t first, last;  /**< all messages of the lane */
    tw_task_t oldest, next; /**< the first message in flight; the first message that has not started */
    int n_in_flight;
    uint64_t n_messages, bytes;
} tw_lane_t;

typedef struct tw_arena_block {
    struct tw_arena_block *next;
} tw_arena_block_t;

struct tw_sched {
    tw_sched_env_t env;
    tw_status_t status; /**< the first error of emitting or running */
    tw_task_entry_t *tasks;
    int n_tasks, n_ended;
    size_t max_tasks;
    tw_sched_links_t edges, uses;
    tw_sched_buffer_entry_t *buffers;
    int n_buffers;
    size_t max_buffers;
    tw_lane_t *lanes; /**< [2 * world]: sends to each rank, then receives from each rank */
    int *busy_lanes;  /**< [n_busy], lanes that still have messages */
    int n_busy;
    int n_far;               /**< number of ranks on other nodes to which this rank sends */
    tw_queue_t urgent, lazy; /**< computations that are ready to run */
    tw_sched_round_t *rounds;
    int n_rounds;
    size_t max_rounds;
    int oldest_round;       /**< the first round that has not ended */
    int n_begun;            /**< number of rounds that have begun */
    int needs_scratch;      /**< 1: some task uses scratch memory */
    int is_running;         /**< 1: the schedule was stepped, and is a user of the scratch memory */
    tw_scratch_user_t user; /**< the schedule as a user of the scratch memory */
    tw_arena_block_t *arena;
    char *arena_at;
    size_t arena_left;
};

static inline size_t tw_span_bytes(const tw_span_t *span)
{
    return span->view ? span->n * span->view->elem_bytes : span->n;
}

/** Free the memory of a schedule. It must not be running. */
void tw_sched_free(tw_sched_t *sched);

TW_C_END
