/** A schedule: the tasks of one operation on this rank, with their dependencies. The files, in the order to
 *  read them: view.c (tensors as one run of elements), emit.c (emitting tasks), sums.c (tasks that add up),
 *  scratch.c (memory), run.c (running the tasks).
 *
 *  An algorithm emits tasks in program order: sends, receives, and computations on the calling thread. A
 *  task starts when all tasks that it must follow (tw_sched_after) have ended. Nothing else orders the
 *  tasks, with two exceptions:
 *  - The k-th send to rank p matches the k-th receive from this rank that p emits. Messages between two
 *    ranks start in that order, a few at a time (the window). So an algorithm is correct if its program
 *    would end when run task by task with buffered sends. A receive should depend on few tasks, because a
 *    receive that is posted late costs a copy or a stall.
 *  - Computations for which a message waits run before the other ones.
 *
 *  The memory of a task is a span. It is a range of a view (the caller's tensors) or of a scratch buffer. A
 *  contiguous range of a view is sent and received in place; a scattered one is packed and unpacked. A
 *  scratch buffer has memory from the start of the first task that uses it to the end of the last one.
 *
 *  Each task belongs to a round. Rounds begin in program order, as many as the communicator's scratch memory
 *  has room for; the oldest round is always under way. So memory is bounded. Nothing waits for ever if a
 *  message is in the same round on both of its ends (rounds without tasks may be left out).
 *
 *  Emitting never fails at once: the schedule keeps the first error, and tw_sched_seal returns it. */
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
    tw_view_extent_t *extents; /**< in ascending order of `first`; adjacent extents are merged */
    size_t n_extents;
    size_t n_elems;
    size_t elem_bytes;
} tw_view_t;

/** Make an empty view. extents: the caller's memory, one extent for each tw_view_append. */
static inline void tw_view_init(tw_view_t *view, size_t elem_bytes, tw_view_extent_t *extents)
{
    tw_view_t empty = {extents, 0, 0, elem_bytes};
    *view = empty;
}

/** Append n elements at `base`; does nothing if n is 0. `base` may be const if the view is only read. */
void tw_view_append(tw_view_t *view, const void *base, size_t n_elems);

/** Returns the address of element `first`. *contiguous: how many of n >= 1 elements are contiguous there. */
char *tw_view_at(const tw_view_t *view, size_t first, size_t n, size_t *contiguous);
/** Returns the address of a range if the range is contiguous, else NULL. n >= 1. */
char *tw_view_contiguous(const tw_view_t *view, size_t first, size_t n);
/** Copy a range of the view to dst, or from src. */
void tw_view_read(const tw_view_t *view, size_t first, size_t n, void *dst);
void tw_view_write(const tw_view_t *view, size_t first, size_t n, const void *src);

/* ---- schedules ----------------------------------------------------------------------------------------- */

typedef struct tw_sched tw_sched_t;

/** Index of a task, in program order. TW_TASK_NONE stands for the task of a span without elements. Waiting
 *  for it has no effect. */
typedef int tw_task_t;
#define TW_TASK_NONE (-1)

/** Index of a scratch buffer of the schedule. */
typedef int tw_sbuf_t;
#define TW_SBUF_NONE (-1)

typedef struct tw_span {
    const tw_view_t *view; /**< NULL: the span is in a buffer */
    size_t first;          /**< element of the view, or byte of the buffer */
    size_t n;              /**< elements of the view, or bytes of the buffer */
    tw_sbuf_t buffer;      /**< TW_SBUF_NONE with a NULL view: a message of 0 bytes (the signal) */
    /** 1: n is an upper bound; the message has the length that tw_sched_fill notes for the buffer */
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

/** Make the span of a message at the start of a buffer. Its length is known only when the buffer is filled;
 *  `bytes` is the upper bound. */
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

/** What was sent to one rank. */
typedef struct tw_sched_sent {
    uint64_t bytes, messages;
    /** bytes by which messages were shorter than their bounds; with `bytes` it gives the planned bytes */
    uint64_t spared_bytes;
} tw_sched_sent_t;

/** Count a message of `bytes`, for which `most_bytes` were planned. */
static inline void tw_sched_count(tw_sched_sent_t *sent, size_t bytes, size_t most_bytes)
{
    sent->bytes += bytes;
    sent->spared_bytes += most_bytes - bytes;
    sent->messages++;
}

/** What a schedule runs with. Everything is borrowed, and must outlive the schedule. */
typedef struct tw_sched_env {
    tw_transport_t *transport;
    tw_scratch_t *scratch; /**< NULL: no task needs buffers or packing */
    const int *peer;       /**< [world], transport rank of each communicator rank */
    int rank, world;
    int window;            /**< the most messages in flight to, or from, one peer */
    uint64_t tag;          /**< tag of the first message; its low TW_SCHED_NUMBER_BITS are 0 */
    tw_sched_sent_t *sent; /**< [world], counts what is sent to each rank; NULL: nothing is counted */
} tw_sched_env_t;

#define TW_SCHED_NUMBER_BITS 24

/** Create a schedule. The caller destroys it with tw_sched_destroy. */
tw_status_t tw_sched_create(const tw_sched_env_t *env, tw_sched_t **out);

/* ---- emitting ------------------------------------------------------------------------------------------ */

/** Allocate zeroed memory that lives as long as the schedule, for arguments of computations. If memory is
 *  out, notes the error in the schedule and returns NULL. */
void *tw_sched_alloc(tw_sched_t *sched, size_t bytes);

/** Make a span of memory that outlives the schedule. Returns tw_span_signal() if memory is out. */
tw_span_t tw_sched_memory(tw_sched_t *sched, const void *at, size_t bytes);

/** Emit a send to, or a receive from, communicator rank `peer`. Returns TW_TASK_NONE for a span without
 *  elements, which both sides skip. The signal is not skipped: it is a message of 0 bytes. */
tw_task_t tw_sched_send(tw_sched_t *sched, int peer, tw_span_t from);
tw_task_t tw_sched_recv(tw_sched_t *sched, int peer, tw_span_t to);

/** A computation. It runs on the calling thread, and should take well under a millisecond, as nothing else
 *  makes progress meanwhile. arg must live as long as the schedule (tw_sched_alloc). If it returns an error,
 *  which it logs, the operation ends. */
typedef tw_status_t (*tw_compute_fn_t)(tw_sched_t *sched, const void *arg);
tw_task_t tw_sched_compute(tw_sched_t *sched, tw_compute_fn_t fn, const void *arg);

/** Begin a new round. Later tasks belong to it. */
void tw_sched_next_round(tw_sched_t *sched);

/** Let `later` start only when `earlier` has ended. Does nothing if either is TW_TASK_NONE. */
void tw_sched_after(tw_sched_t *sched, tw_task_t later, tw_task_t earlier);

/** Make a scratch buffer; 0 bytes are allowed. Sends and receives use the buffer of their span. For a
 *  computation, the caller declares each buffer that it uses with tw_sched_use (negative: none). */
tw_sbuf_t tw_sched_buffer(tw_sched_t *sched, size_t bytes);
void tw_sched_use(tw_sched_t *sched, tw_task_t task, tw_sbuf_t buffer);

/** Note how many bytes of message the buffer has. For computations; a receive into a tw_span_bound does it
 *  itself. */
void tw_sched_fill(tw_sched_t *sched, tw_sbuf_t buffer, size_t bytes);
/** Returns the bytes of message that tw_sched_fill has noted. */
size_t tw_sched_filled(const tw_sched_t *sched, tw_sbuf_t buffer);

/** Note an error of emitting, unless there is an earlier one. */
void tw_sched_fail(tw_sched_t *sched, tw_status_t status);

/** Returns the payload bytes that a sealed schedule sends to communicator rank `peer`. It is an upper bound
 *  if some messages are tw_span_bound. */
uint64_t tw_sched_sent_bytes(const tw_sched_t *sched, int peer);

/* ---- sums (sums.c) ------------------------------------------------------------------------------------- */

/* Computations of plain algorithms. A span may be of a view, in elements, or of a buffer, in bytes. */

/** Emit a copy. If both spans are the same memory, it does nothing; they must not overlap partially. Returns
 *  TW_TASK_NONE for spans without elements. */
tw_task_t tw_work_copy(tw_sched_t *sched, tw_span_t from, tw_span_t to);

/** A reduction of n elements. */
typedef struct tw_work_sum {
    tw_type_t type;
    const tw_span_t *inputs; /**< [n_inputs], copied */
    size_t n_inputs;
    size_t n_partial; /**< the first n_partial inputs are received sums, which have been scaled already */
    float scale;      /**< multiplies the other inputs */
    float factor;     /**< multiplies the result */
    float limit;      /**< limit to which finite results are clipped; INFINITY: none */
    tw_span_t to;     /**< may be exactly the memory of one of the inputs */
} tw_work_sum_t;

/** Emit to = round(factor * (partial inputs + scale * other inputs)), clipped to the limit. The sum is made
 *  in fp32 in the order of inputs (with a scale, the other inputs come first), and rounded once. Without
 *  partial inputs, the sum is multiplied once by scale * factor. TW_TASK_NONE for no elements. */
tw_task_t tw_work_reduce(tw_sched_t *sched, const tw_work_sum_t *sum);

/* ---- running ------------------------------------------------------------------------------------------- */

/** End emitting. Returns the first error of emitting, if there was one. */
tw_status_t tw_sched_seal(tw_sched_t *sched);
/** Test the messages in flight, and start tasks that can start. Makes no progress on the transport. Returns
 *  TW_OK if all tasks have ended, TW_IN_PROGRESS, or an error; then all messages in flight were canceled.
 *  Sets *moved to 1 if a task started or ended. */
tw_status_t tw_sched_step(tw_sched_t *sched, int *moved);
/** Run one computation if one is ready, and set *moved to 1. */
tw_status_t tw_sched_compute_one(tw_sched_t *sched, int *moved);
/** Describe what the schedule waits for, for a log line. Returns buf. */
const char *tw_sched_describe(const tw_sched_t *sched, char *buf, size_t buf_bytes);
/** Destroy a schedule, and cancel its messages in flight. Accepts NULL. */
void tw_sched_destroy(tw_sched_t *sched);

/** Returns the address of a span's memory; called by computations. *contiguous (may be NULL): how many
 *  elements of a view are contiguous from there; in a buffer, all bytes of the span. The address is valid
 *  while a task that uses it runs. Returns NULL if memory is out. */
char *tw_sched_at(tw_sched_t *sched, tw_span_t span, size_t *contiguous);

TW_C_END
