/** A schedule: what one operation does on this rank, as tasks with dependencies. Files, in the order of
 *  reading: view (tensors as one run of elements), emit (emitting tasks), sums (tasks that add up), scratch
 *  (memory), run (the executor).
 *
 *  An algorithm emits tasks in program order: sends, receives, and computations on the calling thread. A task
 *  starts when all tasks that it was put after have ended; nothing else orders them, except:
 *  - messages between two ranks match in the order in which both emit them (the k-th send to p, the k-th
 *    receive from here that p emits), and they start in that order, a few at a time (the window). So an
 *    algorithm is correct if its program would end when it is run task by task with buffered sends. Receives
 *    should depend on as little as possible, because one that is posted late costs a copy or a stall;
 *  - computations that a send waits for run before those that only this rank waits for.
 *
 *  Memory of a task is a span: a range of a view (tensors of the caller; scattered ones are packed and
 *  unpacked, contiguous ones travel straight from and to the caller's memory), or a range of a scratch
 *  buffer. A scratch buffer exists from the start of the first task that uses it to the end of the last one.
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
    size_t first; /**< index in the view of the element at `base` */
} tw_view_extent_t;

typedef struct tw_view {
    tw_view_extent_t *extents; /**< ascending; extents that touch are merged */
    size_t n_extents;
    size_t n_elems;
    size_t elem_bytes;
} tw_view_t;

/** Make an empty view. extents: the caller's, one for each tw_view_append. */
static inline void tw_view_init(tw_view_t *view, size_t elem_bytes, tw_view_extent_t *extents)
{
    tw_view_t empty = {extents, 0, 0, elem_bytes};
    *view = empty;
}

/** Append n elements at base; nothing for n = 0. Views that are only read take const memory, too. */
void tw_view_append(tw_view_t *view, const void *base, size_t n_elems);

/** The address of element `first`, and how many elements from it on are contiguous (n at most); n >= 1. */
char *tw_view_at(const tw_view_t *view, size_t first, size_t n, size_t *contiguous);
/** The address of a range if it is contiguous, else NULL; n >= 1. */
char *tw_view_contiguous(const tw_view_t *view, size_t first, size_t n);
/** Copy a range out of, or into, the view. */
void tw_view_read(const tw_view_t *view, size_t first, size_t n, void *dst);
void tw_view_write(const tw_view_t *view, size_t first, size_t n, const void *src);

/* ---- schedules ----------------------------------------------------------------------------------------- */

typedef struct tw_sched tw_sched_t;

/** Index of a task, in program order. TW_TASK_NONE stands for an empty message; waiting for it has no
 *  effect. */
typedef int tw_task_t;
#define TW_TASK_NONE (-1)

/** Index of a scratch buffer of the schedule. */
typedef int tw_sbuf_t;
#define TW_SBUF_NONE (-1)

typedef struct tw_span {
    const tw_view_t *view; /**< NULL: the span is in a buffer */
    size_t first;          /**< element of the view, or byte of the buffer */
    size_t n;              /**< elements of the view, or bytes of the buffer */
    tw_sbuf_t buffer;      /**< TW_SBUF_NONE and a NULL view: an empty message (a signal) */
    /** 1: n is only an upper bound; the message is as long as the buffer is filled: see tw_sched_fill */
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

/** The span of a message at the beginning of a buffer, whose length is known only when the buffer is
 *  filled. */
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

/** Counts of what was sent to a rank. */
typedef struct tw_sched_sent {
    uint64_t bytes, messages;
    /** by how much messages were shorter than their bound; added to `bytes` it gives what was planned */
    uint64_t spared_bytes;
} tw_sched_sent_t;

/** Count a message of `bytes`, for which `most_bytes` were planned. */
static inline void tw_sched_count(tw_sched_sent_t *sent, size_t bytes, size_t most_bytes)
{
    sent->bytes += bytes;
    sent->spared_bytes += most_bytes - bytes;
    sent->messages++;
}

/** Where a schedule runs. All of it is borrowed, and must outlive the schedule. */
typedef struct tw_sched_env {
    tw_transport_t *transport;
    tw_scratch_t *scratch; /**< NULL: no task needs buffers or packing */
    const int *peer;       /**< [world], transport rank of each communicator rank */
    int rank, world;
    int window;            /**< most messages in flight per peer and direction */
    uint64_t tag;          /**< tag of the first message: the low TW_SCHED_NUMBER_BITS are 0 */
    tw_sched_sent_t *sent; /**< [world], counts of what is sent to each rank; NULL: not counted */
} tw_sched_env_t;

#define TW_SCHED_NUMBER_BITS 24

/** Create a schedule. The caller ends it by tw_sched_destroy. */
tw_status_t tw_sched_create(const tw_sched_env_t *env, tw_sched_t **out);

/* ---- emitting ------------------------------------------------------------------------------------------ */

/** Allocate zeroed memory that lives as long as the schedule, for arguments of computations; NULL (the error
 *  sticks) when out of memory. */
void *tw_sched_alloc(tw_sched_t *sched, size_t bytes);

/** Make a span of memory that outlives the schedule; when out of memory it is the empty message (the
 *  signal). */
tw_span_t tw_sched_memory(tw_sched_t *sched, const void *at, size_t bytes);

/** Emit a send to, or a receive from, communicator rank `peer`. TW_TASK_NONE for a span of no elements (both
 *  sides skip it), except the signal, which is a message of 0 bytes. */
tw_task_t tw_sched_send(tw_sched_t *sched, int peer, tw_span_t from);
tw_task_t tw_sched_recv(tw_sched_t *sched, int peer, tw_span_t to);

/** A computation, which runs on the calling thread. It should take well under a millisecond, as nothing else
 *  makes progress meanwhile. arg lives as long as the schedule (tw_sched_alloc). An error that it returns
 *  (and logs) ends the operation. */
typedef tw_status_t (*tw_compute_fn_t)(tw_sched_t *sched, const void *arg);
tw_task_t tw_sched_compute(tw_sched_t *sched, tw_compute_fn_t fn, const void *arg);

/** Begin a new round with the tasks that follow. */
void tw_sched_next_round(tw_sched_t *sched);

/** Let `later` start only when `earlier` has ended. If either is TW_TASK_NONE, nothing happens. */
void tw_sched_after(tw_sched_t *sched, tw_task_t later, tw_task_t earlier);

/** Make a scratch buffer (0 bytes are allowed). Sends and receives declare their span's buffer themselves;
 *  computations declare which ones they use (below 0: none). */
tw_sbuf_t tw_sched_buffer(tw_sched_t *sched, size_t bytes);
void tw_sched_use(tw_sched_t *sched, tw_task_t task, tw_sbuf_t buffer);

/** Called by a computation: note how many bytes of message the buffer holds. A receive into a tw_span_bound
 *  does so itself. */
void tw_sched_fill(tw_sched_t *sched, tw_sbuf_t buffer, size_t bytes);
/** Bytes of such a message that the buffer holds. */
size_t tw_sched_filled(const tw_sched_t *sched, tw_sbuf_t buffer);

/** Let an error stick. */
void tw_sched_fail(tw_sched_t *sched, tw_status_t status);

/** Payload bytes that a sealed schedule sends to communicator rank `peer`; an upper bound if some messages
 *  are tw_span_bound. */
uint64_t tw_sched_sent_bytes(const tw_sched_t *sched, int peer);

/* ---- sums (sums.c) ------------------------------------------------------------------------------------- */

/* Computations of plain algorithms. Spans may be of views or of buffers, in any mixture; those of views count
 * elements, those of buffers bytes. */

/** Emit a copy. If both spans are the same memory nothing is to do; a partial overlap is not allowed.
 *  TW_TASK_NONE for no elements. */
tw_task_t tw_work_copy(tw_sched_t *sched, tw_span_t from, tw_span_t to);

/** A reduction of n elements. */
typedef struct tw_work_sum {
    tw_type_t type;
    const tw_span_t *inputs; /**< [n_inputs], copied */
    size_t n_inputs;
    size_t n_partial; /**< so many inputs, the first ones, are sums that have travelled, and were scaled */
    float scale;      /**< multiplies the other inputs */
    float factor;     /**< multiplies the result */
    float limit;      /**< limit of finite results; INFINITY: none */
    tw_span_t to;     /**< may be one of the inputs, if it is exactly the same memory */
} tw_work_sum_t;

/** Emit to = round(factor * (partial inputs + scale * other inputs)), within the limit: summed in fp32 in the
 *  order of inputs (with a scale, the others first), rounded once; without partial inputs, multiplied once by
 *  scale * factor. TW_TASK_NONE for no elements. */
tw_task_t tw_work_reduce(tw_sched_t *sched, const tw_work_sum_t *sum);

/* ---- running ------------------------------------------------------------------------------------------- */

/** End emitting: no more tasks come. Returns the first error of emitting, if there was one. */
tw_status_t tw_sched_seal(tw_sched_t *sched);
/** Test the messages in flight and start what can start, without progress on the transport. TW_OK: all is
 *  done; TW_IN_PROGRESS; or an error: what is in flight was canceled. *moved: set to 1 if anything started or
 *  ended. */
tw_status_t tw_sched_step(tw_sched_t *sched, int *moved);
/** Run one computation if one is ready, and set *moved to 1. */
tw_status_t tw_sched_compute_one(tw_sched_t *sched, int *moved);
/** What the schedule waits for, for a log line; returns buf. */
const char *tw_sched_describe(const tw_sched_t *sched, char *buf, size_t buf_bytes);
/** Destroy a schedule; what is in flight is canceled. Accepts NULL. */
void tw_sched_destroy(tw_sched_t *sched);

/** For computations: the address of a span's memory. In a view it is its first element, and *contiguous says
 *  how many are contiguous from there (NULL: not needed); in a buffer all is contiguous, counted in bytes.
 *  Valid while a task that uses it runs; NULL when out of memory. */
char *tw_sched_at(tw_sched_t *sched, tw_span_t span, size_t *contiguous);

TW_C_END
