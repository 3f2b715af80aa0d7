#include "collectives/schedule/schedule.h"

#include <stdio.h>

#include "collectives/schedule/state.h"

/** The most bytes to one rank that are sent at once: without a handshake, to save its round trip. If a rank
 *  sends more to each of several nodes, it is busy with sending, and unrequested data of other ranks gets in
 *  the way. On 4 nodes with 1 Gb/s a reduce-scatter of up to this size was 7 to 13 % faster if sent at
 *  once, and 3 to 6 % slower from twice the size on. */
#define AT_ONCE_BYTES ((size_t)256 << 10)

static void sched_push(tw_sched_t *sched, tw_queue_t *queue, tw_task_t task)
{
    sched->tasks[task].next = TW_TASK_NONE;
    if (queue->first == TW_TASK_NONE) {
        queue->first = task;
    } else {
        sched->tasks[queue->last].next = task;
    }
    queue->last = task;
}

static tw_task_t pop(tw_sched_t *sched, tw_queue_t *queue)
{
    tw_task_t task = queue->first;
    if (task != TW_TASK_NONE) {
        queue->first = sched->tasks[task].next;
    }
    return task;
}

/** Queue a computation that no longer waits for another task. */
static void make_ready(tw_sched_t *sched, tw_task_t index)
{
    const tw_task_entry_t *task = &sched->tasks[index];
    if (task->round >= sched->n_begun) {
        sched_push(sched, &sched->rounds[task->round].held, index);
    } else {
        sched_push(sched, task->urgent ? &sched->urgent : &sched->lazy, index);
    }
}

/** Begin the next rounds, in order, as long as there is scratch memory for them. */
static void begin_rounds(tw_sched_t *sched, int *moved)
{
    while (sched->n_begun < sched->n_rounds) {
        tw_sched_round_t *round = &sched->rounds[sched->n_begun];
        int is_oldest = sched->n_begun == sched->oldest_round;
        tw_task_t task;
        if (round->bytes > 0 &&
            !tw_scratch_reserve(sched->env.scratch, &sched->user, round->bytes, is_oldest)) {
            return;
        }
        sched->n_begun++;
        *moved = 1;
        while ((task = pop(sched, &round->held)) != TW_TASK_NONE) {
            make_ready(sched, task);
        }
        while (sched->oldest_round < sched->n_begun && sched->rounds[sched->oldest_round].n_left == 0) {
            sched->oldest_round++;
        }
    }
}

static char *buffer_memory(tw_sched_t *sched, tw_sbuf_t index)
{
    tw_sched_buffer_entry_t *buffer = &sched->buffers[index];
    if (!buffer->memory) {
        buffer->memory = tw_scratch_get(sched->env.scratch, buffer->bytes);
    }
    return buffer->memory;
}

char *tw_sched_at(tw_sched_t *sched, tw_span_t span, size_t *contiguous)
{
    size_t n = span.n;
    char *at = span.view ? tw_view_at(span.view, span.first, n, &n) : buffer_memory(sched, span.buffer);
    if (contiguous) {
        *contiguous = n;
    }
    return span.view || !at ? at : at + span.first;
}

void tw_sched_fill(tw_sched_t *sched, tw_sbuf_t buffer, size_t bytes)
{
    sched->buffers[buffer].filled = bytes;
}

size_t tw_sched_filled(const tw_sched_t *sched, tw_sbuf_t buffer)
{
    return sched->buffers[buffer].filled;
}

static void put_stage(tw_sched_t *sched, tw_task_entry_t *task)
{
    tw_scratch_put(sched->env.scratch, task->stage, tw_span_bytes(&task->span));
    tw_scratch_release(sched->env.scratch, &sched->user, task->stage_bytes);
    task->stage = NULL;
}

static void put_buffer(tw_sched_t *sched, tw_sched_buffer_entry_t *buffer)
{
    tw_scratch_put(sched->env.scratch, buffer->memory, buffer->bytes);
    buffer->memory = NULL;
}

/** End a task. Gives back the memory that no later task uses, and releases the tasks that wait for it. */
static void end_task(tw_sched_t *sched, tw_task_entry_t *task)
{
    sched->n_ended++;
    for (int u = task->first_use; u >= 0; u = sched->uses.items[u].next) {
        tw_sched_buffer_entry_t *buffer = &sched->buffers[sched->uses.items[u].value];
        if (--buffer->n_users == 0) {
            put_buffer(sched, buffer);
            tw_scratch_release(sched->env.scratch, &sched->user, tw_scratch_class_bytes(buffer->bytes));
        }
    }
    for (int e = task->first_edge; e >= 0; e = sched->edges.items[e].next) {
        tw_task_t index = sched->edges.items[e].value;
        tw_task_entry_t *next = &sched->tasks[index];
        if (--next->n_waiting_for == 0 && next->kind == TW_TASK_COMPUTE) {
            make_ready(sched, index);
        }
    }
    sched->rounds[task->round].n_left--;
    while (sched->oldest_round < sched->n_begun && sched->rounds[sched->oldest_round].n_left == 0) {
        sched->oldest_round++;
    }
}

/** Cancel all messages in flight and give all memory back. */
static void cancel(tw_sched_t *sched)
{
    for (int i = 0; i < sched->n_tasks; i++) {
        tw_task_entry_t *task = &sched->tasks[i];
        if (task->request) {
            tw_transport_cancel(sched->env.transport, task->request);
        }
        task->request = NULL;
        tw_scratch_put(sched->env.scratch, task->stage, tw_span_bytes(&task->span));
        task->stage = NULL;
    }
    for (int i = 0; i < sched->n_buffers; i++) {
        put_buffer(sched, &sched->buffers[i]);
    }
    sched->n_busy = 0;
    if (sched->is_running) {
        tw_scratch_leave(sched->env.scratch, &sched->user);
        sched->is_running = 0;
    }
}

void tw_sched_destroy(tw_sched_t *sched)
{
    if (sched) {
        cancel(sched);
        tw_sched_free(sched);
    }
}

/** Get the memory that a message is sent from or received into: the span, or a contiguous copy of it. */
static tw_status_t message_memory(tw_sched_t *sched, tw_task_entry_t *task, char **memory)
{
    const tw_span_t *span = &task->span;
    if (!span->view) {
        int is_signal = span->buffer == TW_SBUF_NONE;
        *memory = is_signal ? NULL : tw_sched_at(sched, *span, NULL);
        return is_signal || *memory ? TW_OK : TW_ERR_NO_MEMORY;
    }
    *memory = tw_view_contiguous(span->view, span->first, span->n);
    if (*memory) {
        return TW_OK;
    }
    task->stage = tw_scratch_get(sched->env.scratch, tw_span_bytes(span));
    if (!task->stage) {
        return TW_ERR_NO_MEMORY;
    }
    if (task->kind == TW_TASK_SEND) {
        tw_view_read(span->view, span->first, span->n, task->stage);
    }
    *memory = task->stage;
    return TW_OK;
}

static tw_status_t start_message(tw_sched_t *sched, tw_task_entry_t *task)
{
    const tw_sched_env_t *env = &sched->env;
    int is_send = task->kind == TW_TASK_SEND, is_bound = task->span.is_bound;
    char *memory;
    TW_TRY(message_memory(sched, task, &memory));
    const tw_transport_message_t message = {
        .peer = env->peer[is_send ? task->lane : task->lane - env->world],
        .tag = env->tag | task->number,
        .buffer = memory,
        .bytes = is_send && is_bound ? tw_sched_filled(sched, task->span.buffer) : tw_span_bytes(&task->span),
        .mem = TW_MEM_HOST,
        .may_be_shorter = is_bound,
        .when_asked = sched->n_far > 1 && sched->lanes[task->lane].bytes > AT_ONCE_BYTES,
    };
    if (!is_send) {
        return tw_transport_message_recv(env->transport, &message, &task->request);
    }
    if (env->sent) {
        tw_sched_count(&env->sent[task->lane], message.bytes, tw_span_bytes(&task->span));
    }
    return tw_transport_message_send(env->transport, &message, &task->request);
}

/** Explain a failed message. One of an unexpected size means that the other rank runs another operation. */
static tw_status_t explain_error(const tw_sched_t *sched, const tw_task_entry_t *task, tw_status_t status)
{
    if (status != TW_ERR_TRUNCATED || task->kind != TW_TASK_RECV) {
        return status;
    }
    return tw_fail(TW_ERR_MISMATCH,
                   "rank %d: rank %d sent a message of another size than the %zu bytes expected: the "
                   "ranks' arguments differ",
                   sched->env.rank, task->lane - sched->env.world, tw_span_bytes(&task->span));
}

/** End the lane's oldest message in flight if the transport has completed it. */
static tw_status_t end_message(tw_sched_t *sched, tw_lane_t *lane)
{
    tw_task_entry_t *task = &sched->tasks[lane->oldest];
    size_t bytes;
    tw_status_t status = tw_transport_test_bytes(sched->env.transport, task->request, &bytes);
    if (status == TW_IN_PROGRESS) {
        return status;
    }
    task->request = NULL;
    if (status != TW_OK) {
        return explain_error(sched, task, status);
    }
    if (task->stage) {
        if (task->kind == TW_TASK_RECV) {
            tw_view_write(task->span.view, task->span.first, task->span.n, task->stage);
        }
        put_stage(sched, task);
    }
    if (task->span.is_bound && task->kind == TW_TASK_RECV) {
        tw_sched_fill(sched, task->span.buffer, bytes);
    }
    lane->oldest = task->next;
    lane->n_in_flight--;
    end_task(sched, task);
    return TW_OK;
}

/** End messages that the transport has completed, and start messages that may start. */
static tw_status_t step_lane(tw_sched_t *sched, tw_lane_t *lane, int *moved)
{
    tw_status_t status = TW_OK;
    while (lane->n_in_flight > 0 && (status = end_message(sched, lane)) == TW_OK) {
        *moved = 1;
    }
    if (status < 0) {
        return status;
    }
    while (lane->next != TW_TASK_NONE && lane->n_in_flight < sched->env.window) {
        tw_task_entry_t *task = &sched->tasks[lane->next];
        if (task->n_waiting_for > 0 || task->round >= sched->n_begun) {
            break;
        }
        TW_TRY(start_message(sched, task));
        lane->next = task->next;
        lane->n_in_flight++;
        *moved = 1;
    }
    return TW_OK;
}

static tw_status_t run_status(const tw_sched_t *sched)
{
    if (sched->status != TW_OK) {
        return sched->status;
    }
    return sched->n_ended == sched->n_tasks ? TW_OK : TW_IN_PROGRESS;
}

/** Mark urgent computations: a message, or an urgent computation, waits for them. Tasks only wait for
 *  earlier tasks of the program, so one pass from the end suffices. */
static void mark_urgent(tw_sched_t *sched)
{
    for (int i = sched->n_tasks - 1; i >= 0; i--) {
        tw_task_entry_t *task = &sched->tasks[i];
        int edge = task->kind == TW_TASK_COMPUTE ? task->first_edge : -1;
        for (; edge >= 0 && !task->urgent; edge = sched->edges.items[edge].next) {
            const tw_task_entry_t *next = &sched->tasks[sched->edges.items[edge].value];
            task->urgent = next->kind != TW_TASK_COMPUTE || next->urgent;
        }
    }
}

static int sched_is_far(const tw_sched_env_t *env, int rank)
{
    return tw_transport_node_of(env->transport, env->peer[rank]) !=
           tw_transport_node_of(env->transport, env->peer[env->rank]);
}

tw_status_t tw_sched_seal(tw_sched_t *sched)
{
    if (sched->status != TW_OK) {
        return sched->status;
    }
    for (int c = 0; c < 2 * sched->env.world; c++) {
        tw_lane_t *lane = &sched->lanes[c];
        lane->oldest = lane->next = lane->first;
        if (lane->n_messages > (uint64_t)1 << TW_SCHED_NUMBER_BITS) {
            tw_error("rank %d: %llu messages to one peer in one operation; TW_COLL_CHUNK is too "
                     "small",
                     sched->env.rank, (unsigned long long)lane->n_messages);
            return sched->status = TW_ERR_INVALID;
        }
        if (lane->first != TW_TASK_NONE) {
            sched->busy_lanes[sched->n_busy++] = c;
            sched->n_far += c < sched->env.world && sched_is_far(&sched->env, c);
        }
    }
    mark_urgent(sched);
    for (int i = 0; i < sched->n_tasks; i++) {
        if (sched->tasks[i].kind == TW_TASK_COMPUTE && sched->tasks[i].n_waiting_for == 0) {
            make_ready(sched, i);
        }
    }
    return TW_OK;
}

tw_status_t tw_sched_step(tw_sched_t *sched, int *moved)
{
    if (sched->needs_scratch && !sched->is_running && sched->status == TW_OK) {
        sched->is_running = 1;
        tw_scratch_enter(sched->env.scratch, &sched->user);
    }
    if (sched->status == TW_OK) {
        begin_rounds(sched, moved);
    }
    for (int i = 0; i < sched->n_busy && sched->status == TW_OK;) {
        tw_lane_t *lane = &sched->lanes[sched->busy_lanes[i]];
        tw_status_t status = step_lane(sched, lane, moved);
        if (status != TW_OK) {
            sched->status = status;
            cancel(sched);
        }
        if (lane->oldest == TW_TASK_NONE) {
            sched->busy_lanes[i] = sched->busy_lanes[--sched->n_busy];
        } else {
            i++;
        }
    }
    return run_status(sched);
}

tw_status_t tw_sched_compute_one(tw_sched_t *sched, int *moved)
{
    tw_queue_t *queue = sched->urgent.first != TW_TASK_NONE ? &sched->urgent : &sched->lazy;
    tw_task_t index = sched->status == TW_OK ? pop(sched, queue) : TW_TASK_NONE;
    if (index == TW_TASK_NONE) {
        return run_status(sched);
    }
    tw_task_entry_t *task = &sched->tasks[index];
    tw_status_t status = task->fn(sched, task->arg);
    *moved = 1;
    if (status != TW_OK) {
        sched->status = status;
        cancel(sched);
        return status;
    }
    end_task(sched, task);
    return run_status(sched);
}

const char *tw_sched_describe(const tw_sched_t *sched, char *buf, size_t buf_bytes)
{
    size_t used = (size_t)snprintf(buf, buf_bytes, "%d of %d tasks ended", sched->n_ended, sched->n_tasks);
    for (int i = 0; i < sched->n_busy && used < buf_bytes; i++) {
        int index = sched->busy_lanes[i];
        const tw_lane_t *lane = &sched->lanes[index];
        if (lane->n_in_flight == 0) {
            continue;
        }
        const tw_task_entry_t *task = &sched->tasks[lane->oldest];
        int is_send = task->kind == TW_TASK_SEND;
        used +=
            (size_t)snprintf(buf + used, buf_bytes - used, "; %s message %llu (%zu bytes) %s rank %d",
                             is_send ? "sending" : "waiting for", (unsigned long long)task->number,
                             tw_span_bytes(&task->span), is_send ? "to" : "from", index % sched->env.world);
    }
    return buf;
}
