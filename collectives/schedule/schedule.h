/** A schedule: what one operation does on this rank, as tasks with dependencies. The folder, in the order of
 *  reading: view (tensors as one run of elements), schedule (emitting tasks), sums (those that add up),
 *  scratch (memory), run (the executor).
 *
 *  An algorithm emits tasks in program order: sends, receives, and computations on the calling thread. A task
 *  starts when all tasks that it was put after have ended; nothing else orders them, except:
 *  - messages between two ranks match in the order in which both emit them (the k-th send to p, the k-th
 *    receive from here that p emits), and they start in that order, a few at a time (the window). So an
 *    algorithm is correct if the program, run task by task with buffered sends, would end; receives should
 *    depend on as little as possible, because a receive that is posted late costs a copy or a stall;
 *  - computations that a send waits for run before those that only this rank waits for.
 *
 *  Memory of a task is a span: a range of a view (a tensor of the caller, perhaps scattered: messages are
 *  packed and unpacked as needed, contiguous ones travel straight from and to the caller's memory), or a
 *  range of a scratch buffer. A scratch buffer exists from the start of the first task that uses it to the
 *  end of the last one.
 *
 *  Tasks belong to rounds, which begin in program order and as many at a time as the communicator's scratch
 *  memory has room for; the oldest one is always under way. So memory is bounded, and nothing waits for ever,
 *  if a message is of the same round on both of its ends (rounds without tasks may be left out).
 *
 *  Emitting never fails on the spot: the first error sticks and tw_sched_seal returns it. */
#pragma once

#include "collectives/schedule/scratch.h"
#include "transport/transport.h"

TW_C_BEGIN

/* ---- views (view.c) ------------------------------------------------------------------------------------ */

typedef struct tw_view_extent {
    char *base;
    size_t first; /**< index in the view of the element at base */
} tw_view_extent_t;

typedef struct tw_view {
    tw_view_extent_t *extents; /**< ascending; neighbours in memory are merged */
    size_t n_extents;
    size_t n_elems;
    size_t elem_bytes;
} tw_view_t;

/** An empty view. extents: the caller's, one for each tw_view_append. */
static inline void tw_view_init(tw_view_t *view, size_t elem_bytes, tw_view_extent_t *extents)
{
    tw_view_t empty = {extents, 0, 0, elem_bytes};
    *view = empty;
}

/** Append n elements at base; nothing for n = 0. Views that are only read take const memory, too. */
void tw_view_append(tw_view_t *view, const void *base, size_t n_elems);

/** Where element `first` lies, and how many elements from it on are contiguous (at most n); n >= 1. */
char *tw_view_at(const tw_view_t *view, size_t first, size_t n, size_t *contiguous);
/** The range's address if it is contiguous, else NULL; n >= 1. */
char *tw_view_contiguous(const tw_view_t *view, size_t first, size_t n);
/** Copy a range out of, or into, the view. */
void tw_view_read(const tw_view_t *view, size_t first, size_t n, void *dst);
void tw_view_write(const tw_view_t *view, size_t first, size_t n, const void *src);

/* ---- schedules ----------------------------------------------------------------------------------------- */

typedef struct tw_sched tw_sched_t;

/** Index of a task, in program order. TW_TASK_NONE stands for an empty message; waiting for it does
 *  nothing. */
typedef int tw_task_t;
#define TW_TASK_NONE (-1)

/** Index of a scratch buffer of the schedule. */
typedef int tw_sbuf_t;
#define TW_SBUF_NONE (-1)

typedef struct tw_span {
    const tw_view_t *view; /**< NULL: in a buffer */
    size_t first;          /**< element of the view, or byte of the buffer */
    size_t n;              /**< elements of the view, or bytes of the buffer */
    tw_sbuf_t buffer;      /**< TW_SBUF_NONE with view NULL: an empty message (a signal) */
    /** 1: a message of at most so many bytes, as many as the buffer holds: see tw_sched_fill */
    int is_bound;
} tw_span_t;

static inline tw_span_t tw_span_view(const tw_view_t *view, size_t first, size_t n_elems)
{
    tw_span_t span = {view, first, n_elems, TW_SBUF_NONE, 0};
    return span;
}

static inline tw_span_t tw_span_buffer(tw_sbuf_t buffer, size_t first_byte, size_t bytes)
{
    tw_span_t span = {NULL, first_byte, bytes, buffer, 0};
    return span;
}

/** A message from or to the begin of a buffer whose length is known once it is there. */
static inline tw_span_t tw_span_bound(tw_sbuf_t buffer, size_t bytes)
{
    tw_span_t span = {NULL, 0, bytes, buffer, 1};
    return span;
}

static inline tw_span_t tw_span_signal(void)
{
    tw_span_t span = {NULL, 0, 0, TW_SBUF_NONE, 0};
    return span;
}

/** Counts of what has been sent to a rank. */
typedef struct tw_sched_sent {
    uint64_t bytes, messages;
    /** by which messages were shorter than their bound: with `bytes`, what was planned */
    uint64_t spared_bytes;
} tw_sched_sent_t;

/** Count a message of `bytes`, for which `most_bytes` were planned. */
static inline void tw_sched_count(tw_sched_sent_t *sent, size_t bytes, size_t most_bytes)
{
    sent->bytes += bytes;
    sent->spared_bytes += most_bytes - bytes;
    sent->messages++;
}

/** Where a schedule runs. Borrowed: all of it outlives the schedule. */
typedef struct tw_sched_env {
    tw_transport_t *transport;
    tw_scratch_t *scratch; /**< NULL: no buffers are asked for, and nothing is packed */
    const int *peer;       /**< [world] transport rank of each communicator rank */
    int rank, world;
    int window;            /**< messages in flight per peer and direction */
    uint64_t tag;          /**< tag of the first message: the low TW_SCHED_NUMBER_BITS are 0 */
    tw_sched_sent_t *sent; /**< [world] what is sent to each rank is added here; NULL: nowhere */
} tw_sched_env_t;

#define TW_SCHED_NUMBER_BITS 24

/** Create a schedule, to be ended by tw_sched_destroy. */
tw_status_t tw_sched_create(const tw_sched_env_t *env, tw_sched_t **out);

/* ---- emitting ------------------------------------------------------------------------------------------ */

/** Zeroed memory that lives as long as the schedule, for arguments of computations; NULL (the error sticks)
 *  when out of memory. */
void *tw_sched_alloc(tw_sched_t *sched, size_t bytes);

/** Bytes of memory that outlives the schedule, as a span; the signal when out of memory. */
tw_span_t tw_sched_memory(tw_sched_t *sched, const void *at, size_t bytes);

/** Send to, receive from communicator rank `peer`. TW_TASK_NONE for a span of no elements (both sides skip
 *  it), except the signal, which is a message of 0 bytes. */
tw_task_t tw_sched_send(tw_sched_t *sched, int peer, tw_span_t from);
tw_task_t tw_sched_recv(tw_sched_t *sched, int peer, tw_span_t to);

/** A computation on the calling thread. It should take well under a millisecond, as nothing moves meanwhile.
 *  arg: lives as long as the schedule (tw_sched_alloc). An error that it returns (and logs) ends the
 *  operation. */
typedef tw_status_t (*tw_compute_fn_t)(tw_sched_t *sched, const void *arg);
tw_task_t tw_sched_compute(tw_sched_t *sched, tw_compute_fn_t fn, const void *arg);

/** The tasks that follow are of a new round. */
void tw_sched_next_round(tw_sched_t *sched);

/** `later` starts when `earlier` has ended. Either may be TW_TASK_NONE: nothing happens. */
void tw_sched_after(tw_sched_t *sched, tw_task_t later, tw_task_t earlier);

/** A scratch buffer (of 0 bytes is allowed). Sends and receives use their span's buffer by themselves;
 *  computations say which ones they use (below 0: none). */
tw_sbuf_t tw_sched_buffer(tw_sched_t *sched, size_t bytes);
void tw_sched_use(tw_sched_t *sched, tw_task_t task, tw_sbuf_t buffer);

/** Called by a computation: say how many bytes of message the buffer holds. A receive into a tw_span_bound
 *  does so by itself. */
void tw_sched_fill(tw_sched_t *sched, tw_sbuf_t buffer, size_t bytes);
/** Bytes of such a message that the buffer holds. */
size_t tw_sched_filled(const tw_sched_t *sched, tw_sbuf_t buffer);

/** Make an error stick. */
void tw_sched_fail(tw_sched_t *sched, tw_status_t status);

/** Payload bytes that a sealed schedule sends to communicator rank `peer`: at most, where some messages are
 *  tw_span_bound. */
uint64_t tw_sched_sent_bytes(const tw_sched_t *sched, int peer);

/* ---- sums (sums.c) ------------------------------------------------------------------------------------- */

/* Computations that plain algorithms emit. Spans may be of views or of buffers, in any mixture; those of
 * views count elements, those of buffers bytes. */

/** to = from. Same memory: nothing to do; a partial overlap is not allowed. TW_TASK_NONE for nothing. */
tw_task_t tw_work_copy(tw_sched_t *sched, tw_span_t from, tw_span_t to);

/** One reduction of n elements. */
typedef struct tw_work_sum {
    tw_type_t type;
    const tw_span_t *inputs; /**< [n_inputs] copied */
    size_t n_inputs;
    size_t n_partial; /**< the first so many inputs are sums that travel, and have been scaled */
    float scale;      /**< of the other inputs */
    float factor;     /**< of the result */
    float limit;      /**< of finite results; INFINITY: none */
    tw_span_t to;     /**< may be one of the inputs, element for element */
} tw_work_sum_t;

/** to = round(factor * (partial inputs + scale * other inputs)), not beyond the limit: summed in fp32 in the
 *  order of inputs (with a scale, the others first), rounded once; without partial inputs, multiplied once
 *  with scale * factor. TW_TASK_NONE for nothing. */
tw_task_t tw_work_reduce(tw_sched_t *sched, const tw_work_sum_t *sum);

/* ---- running ------------------------------------------------------------------------------------------- */

/** End emitting: no more tasks come. Returns the first error of emitting, if there was one. */
tw_status_t tw_sched_seal(tw_sched_t *sched);
/** Look at the messages in flight and start what can start; does not progress the transport. TW_OK: all done;
 *  TW_IN_PROGRESS; or an error: what is in flight is canceled. *moved: set to 1 if anything started or
 *  ended. */
tw_status_t tw_sched_step(tw_sched_t *sched, int *moved);
/** Run one computation, if one is ready: *moved is set to 1. */
tw_status_t tw_sched_compute_one(tw_sched_t *sched, int *moved);
/** What the schedule waits for, for a log line; returns buf. */
const char *tw_sched_describe(const tw_sched_t *sched, char *buf, size_t buf_bytes);
/** Cancels what is in flight. Accepts NULL. */
void tw_sched_destroy(tw_sched_t *sched);

/** For computations: address of a span's memory. For a view: of its first element, and how many elements are
 *  contiguous from there (NULL: not asked); for a buffer: all of it is contiguous, counted in bytes. Valid
 *  while a task that uses it runs; NULL when out of memory. */
char *tw_sched_at(tw_sched_t *sched, tw_span_t span, size_t *contiguous);

TW_C_END
