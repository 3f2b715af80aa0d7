/** Inside of a schedule, shared by emit.c and run.c. */
#pragma once

#include "collectives/schedule/schedule.h"

TW_C_BEGIN

typedef enum tw_task_kind { TW_TASK_SEND, TW_TASK_RECV, TW_TASK_COMPUTE } tw_task_kind_t;

typedef struct tw_task_entry {
    tw_task_kind_t kind;
    int urgent; /**< computation: 1: a send waits for it */
    int round;
    int n_waiting_for; /**< number of tasks that must end first */
    int first_edge;    /**< list in `edges`: tasks that wait for this one */
    int first_use;     /**< list in `uses`: its scratch buffers */
    tw_task_t next;    /**< message: next in its lane; computation: next in the ready queue */
    int lane;
    uint64_t number; /**< message: its number in its lane */
    tw_span_t span;
    void *stage;        /**< while in flight: packed copy of a span that is not contiguous */
    size_t stage_bytes; /**< scratch memory of that copy; 0: none is needed */
    tw_transport_request_t *request;
    tw_compute_fn_t fn;
    const void *arg;
} tw_task_entry_t;

/** Link of a list of integers: edges and uses. */
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
    int n_users;   /**< number of tasks with this buffer that have not ended */
} tw_sched_buffer_entry_t;

typedef struct tw_queue {
    tw_task_t first, last;
} tw_queue_t;

typedef struct tw_sched_round {
    int n_left;      /**< tasks that have not ended */
    size_t bytes;    /**< scratch memory that is first used by its tasks */
    tw_queue_t held; /**< computations that became ready before the round has begun */
} tw_sched_round_t;

/** All messages to, or from, one peer, in program order: [those that ended | in flight | not started]. */
typedef struct tw_lane {
    tw_task_t first, last;  /**< while emitting: all of them */
    tw_task_t oldest, next; /**< the first one in flight; the first one that has not started */
    int n_in_flight;
    uint64_t n_messages, bytes;
} tw_lane_t;

typedef struct tw_arena_block {
    struct tw_arena_block *next;
} tw_arena_block_t;

struct tw_sched {
    tw_sched_env_t env;
    tw_status_t status; /**< the error that stuck, or the result of the run */
    tw_task_entry_t *tasks;
    int n_tasks, n_ended;
    size_t max_tasks;
    tw_sched_links_t edges, uses;
    tw_sched_buffer_entry_t *buffers;
    int n_buffers;
    size_t max_buffers;
    tw_lane_t *lanes; /**< [2 * world]: sends to each rank, then receives from each rank */
    int *busy_lanes;  /**< [n_busy] lanes with messages left */
    int n_busy;
    int n_far;               /**< number of ranks on other nodes to which something is sent */
    tw_queue_t urgent, lazy; /**< computations that are ready */
    tw_sched_round_t *rounds;
    int n_rounds;
    size_t max_rounds;
    int oldest_round;       /**< the first round that has not ended */
    int n_begun;            /**< number of rounds that have begun */
    int needs_scratch;      /**< 1: some task uses scratch memory */
    int is_running;         /**< 1: the schedule was stepped, and has joined the scratch memory's users */
    tw_scratch_user_t user; /**< the schedule's reservations */
    tw_arena_block_t *arena;
    char *arena_at;
    size_t arena_left;
};

static inline size_t tw_span_bytes(const tw_span_t *span)
{
    return span->view ? span->n * span->view->elem_bytes : span->n;
}

/** Free the memory of a schedule that is not running. */
void tw_sched_free(tw_sched_t *sched);

TW_C_END
