/** Emits tasks: their kinds, their order and their memory. */
#include "collectives/schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/schedule/state.h"

#define ARENA_BYTES 16384
#define ARENA_ALIGN 16

tw_status_t tw_sched_create(const tw_sched_env_t *env, tw_sched_t **out)
{
    tw_sched_t *sched = calloc(1, sizeof(*sched));
    size_t n_lanes = 2 * (size_t)env->world;
    if (!sched) {
        return TW_ERR_NO_MEMORY;
    }
    sched->env = *env;
    sched->urgent = sched->lazy = (tw_queue_t){TW_TASK_NONE, TW_TASK_NONE};
    sched->lanes = tw_sched_alloc(sched, n_lanes * sizeof(*sched->lanes));
    sched->busy_lanes = tw_sched_alloc(sched, n_lanes * sizeof(*sched->busy_lanes));
    if (!sched->lanes || !sched->busy_lanes) {
        tw_sched_free(sched);
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_lanes; i++) {
        tw_lane_t *lane = &sched->lanes[i];
        lane->first = lane->last = lane->oldest = lane->next = TW_TASK_NONE;
    }
    *out = sched;
    return TW_OK;
}

void tw_sched_free(tw_sched_t *sched)
{
    while (sched->arena) {
        tw_arena_block_t *block = sched->arena;
        sched->arena = block->next;
        free(block);
    }
    free(sched->tasks);
    free(sched->edges.items);
    free(sched->uses.items);
    free(sched->buffers);
    free(sched->rounds);
    free(sched);
}

void tw_sched_fail(tw_sched_t *sched, tw_status_t status)
{
    if (sched->status == TW_OK) {
        sched->status = status;
    }
}

/** Make room for one more item. If memory is out, notes the error in the schedule and returns 0. */
static int sched_grow(tw_sched_t *sched, void *items, int n, size_t *max, size_t item_bytes)
{
    if ((size_t)n < *max || tw_grow(items, max, (size_t)n + 1, item_bytes)) {
        return 1;
    }
    tw_sched_fail(sched, TW_ERR_NO_MEMORY);
    return 0;
}

void *tw_sched_alloc(tw_sched_t *sched, size_t bytes)
{
    bytes = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (bytes > sched->arena_left || !sched->arena_at) {
        size_t header = (sizeof(tw_arena_block_t) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
        size_t room = bytes > ARENA_BYTES ? bytes : ARENA_BYTES;
        tw_arena_block_t *block = malloc(header + room);
        if (!block) {
            tw_sched_fail(sched, TW_ERR_NO_MEMORY);
            return NULL;
        }
        block->next = sched->arena;
        sched->arena = block;
        sched->arena_at = (char *)block + header;
        sched->arena_left = room;
    }
    void *at = sched->arena_at;
    sched->arena_at += bytes;
    sched->arena_left -= bytes;
    return memset(at, 0, bytes);
}

tw_span_t tw_sched_memory(tw_sched_t *sched, const void *at, size_t bytes)
{
    tw_view_t *view = tw_sched_alloc(sched, sizeof(*view));
    tw_view_extent_t *extent = tw_sched_alloc(sched, sizeof(*extent));
    if (!view || !extent) {
        return tw_span_signal();
    }
    tw_view_init(view, 1, extent);
    tw_view_append(view, at, bytes);
    return tw_span_view(view, 0, bytes);
}

void tw_sched_next_round(tw_sched_t *sched)
{
    int is_empty = sched->n_rounds > 0 && sched->rounds[sched->n_rounds - 1].n_left == 0;
    if (sched->status != TW_OK || is_empty) {
        return;
    }
    if (sched_grow(sched, &sched->rounds, sched->n_rounds, &sched->max_rounds, sizeof(*sched->rounds))) {
        sched->rounds[sched->n_rounds++] = (tw_sched_round_t){.held = {TW_TASK_NONE, TW_TASK_NONE}};
    }
}

static tw_task_entry_t *add_task(tw_sched_t *sched, tw_task_kind_t kind, tw_task_t *index)
{
    *index = TW_TASK_NONE;
    if (sched->n_rounds == 0) {
        tw_sched_next_round(sched);
    }
    if (sched->status != TW_OK ||
        !sched_grow(sched, &sched->tasks, sched->n_tasks, &sched->max_tasks, sizeof(*sched->tasks))) {
        return NULL;
    }
    *index = sched->n_tasks++;
    tw_task_entry_t *task = &sched->tasks[*index];
    memset(task, 0, sizeof(*task));
    task->kind = kind;
    task->next = TW_TASK_NONE;
    task->first_edge = task->first_use = -1;
    task->round = sched->n_rounds - 1;
    sched->rounds[task->round].n_left++;
    return task;
}

/** Put `value` in front of the list that starts at *first. */
static void add_link(tw_sched_t *sched, tw_sched_links_t *links, int *first, int value)
{
    if (!sched_grow(sched, &links->items, links->n, &links->max, sizeof(*links->items))) {
        return;
    }
    links->items[links->n] = (tw_sched_link_t){value, *first};
    *first = links->n++;
}

/** Count scratch memory for the round of the task that uses it first. */
static void sched_add_bytes(tw_sched_t *sched, const tw_task_entry_t *task, size_t bytes)
{
    sched->rounds[task->round].bytes += bytes;
    sched->needs_scratch = 1;
}

static tw_task_t add_message(tw_sched_t *sched, tw_task_kind_t kind, int peer, tw_span_t span)
{
    tw_task_t index;
    int is_signal = !span.view && span.buffer == TW_SBUF_NONE;
    if (span.n == 0 && !is_signal) {
        return TW_TASK_NONE;
    }
    tw_task_entry_t *task = add_task(sched, kind, &index);
    if (!task) {
        return TW_TASK_NONE;
    }
    task->lane = kind == TW_TASK_SEND ? peer : sched->env.world + peer;
    tw_lane_t *lane = &sched->lanes[task->lane];
    task->span = span;
    task->number = lane->n_messages++;
    lane->bytes += tw_span_bytes(&span);
    if (lane->first == TW_TASK_NONE) {
        lane->first = index;
    } else {
        sched->tasks[lane->last].next = index;
    }
    lane->last = index;
    if (!span.view) {
        tw_sched_use(sched, index, span.buffer);
    } else if (!tw_view_contiguous(span.view, span.first, span.n)) {
        task->stage_bytes = tw_scratch_class_bytes(tw_span_bytes(&span));
        sched_add_bytes(sched, task, task->stage_bytes);
    }
    return index;
}

tw_task_t tw_sched_send(tw_sched_t *sched, int peer, tw_span_t from)
{
    return add_message(sched, TW_TASK_SEND, peer, from);
}

tw_task_t tw_sched_recv(tw_sched_t *sched, int peer, tw_span_t to)
{
    return add_message(sched, TW_TASK_RECV, peer, to);
}

tw_task_t tw_sched_compute(tw_sched_t *sched, tw_compute_fn_t fn, const void *arg)
{
    tw_task_t index;
    tw_task_entry_t *task = add_task(sched, TW_TASK_COMPUTE, &index);
    if (task) {
        task->fn = fn;
        task->arg = arg;
    }
    return index;
}

void tw_sched_after(tw_sched_t *sched, tw_task_t later, tw_task_t earlier)
{
    if (later == TW_TASK_NONE || earlier == TW_TASK_NONE || sched->status != TW_OK) {
        return;
    }
    if (later <= earlier) {
        tw_error("rank %d: schedule: task %d cannot wait for task %d", sched->env.rank, later, earlier);
        tw_sched_fail(sched, TW_ERR_INTERNAL);
        return;
    }
    add_link(sched, &sched->edges, &sched->tasks[earlier].first_edge, later);
    sched->tasks[later].n_waiting_for++;
}

tw_sbuf_t tw_sched_buffer(tw_sched_t *sched, size_t bytes)
{
    if (sched->status != TW_OK ||
        !sched_grow(sched, &sched->buffers, sched->n_buffers, &sched->max_buffers, sizeof(*sched->buffers))) {
        return TW_SBUF_NONE;
    }
    sched->buffers[sched->n_buffers] = (tw_sched_buffer_entry_t){.bytes = bytes};
    return sched->n_buffers++;
}

void tw_sched_use(tw_sched_t *sched, tw_task_t task, tw_sbuf_t buffer)
{
    if (task == TW_TASK_NONE || buffer < 0 || sched->status != TW_OK) {
        return;
    }
    add_link(sched, &sched->uses, &sched->tasks[task].first_use, buffer);
    tw_sched_buffer_entry_t *entry = &sched->buffers[buffer];
    if (entry->n_users++ == 0) {
        sched_add_bytes(sched, &sched->tasks[task], tw_scratch_class_bytes(entry->bytes));
    }
}

uint64_t tw_sched_sent_bytes(const tw_sched_t *sched, int peer)
{
    return sched->lanes[peer].bytes;
}
