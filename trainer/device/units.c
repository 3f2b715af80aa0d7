/* Copies a unit's weights to the device, and its gradients to host memory. */
#include <stdlib.h>
#include <string.h>

#include "trainer/device/state.h"
#include "trainer/pool.h"

/* ---- where tensors lie --------------------------------------------------------------------------------- */

static tw_status_t layout_init(const tw_model_t *model, size_t unit, tw_device_layout_t *layout)
{
    const tw_model_unit_t *of = &model->units[unit];
    layout->offsets = calloc(of->n_tensors, sizeof(*layout->offsets));
    TW_FAIL_IF(!layout->offsets, TW_ERR_NO_MEMORY, "device: out of memory for a unit's %zu tensors",
               of->n_tensors);
    for (size_t t = 0; t < of->n_tensors; t++) {
        size_t n = model->tensors[of->first_tensor + t].n_elems;
        layout->offsets[t] = layout->n_elems;
        layout->n_elems += (n + TW_DEVICE_ALIGN_ELEMS - 1) / TW_DEVICE_ALIGN_ELEMS * TW_DEVICE_ALIGN_ELEMS;
    }
    return TW_OK;
}

/** Make the layouts of the root and of a block. All blocks have the same layout. */
tw_status_t tw_device_layouts_init(tw_device_model_t *m)
{
    TW_TRY(layout_init(m->host, TW_MODEL_ROOT, &m->root));
    return layout_init(m->host, TW_MODEL_ROOT + 1, &m->block);
}

void tw_device_layouts_cleanup(tw_device_model_t *m)
{
    free(m->root.offsets);
    free(m->block.offsets);
}

static const tw_device_layout_t *layout_of(const tw_device_model_t *m, size_t unit)
{
    return unit == TW_MODEL_ROOT ? &m->root : &m->block;
}

static size_t slot_index(size_t unit)
{
    return unit == TW_MODEL_ROOT ? 0 : 1 + unit % (TW_DEVICE_SLOTS - 1);
}

/* ---- slots --------------------------------------------------------------------------------------------- */

static size_t all_elems(const tw_device_model_t *m)
{
    return tw_size_add(m->root.n_elems, tw_size_mul(TW_DEVICE_SLOTS - 1, m->block.n_elems));
}

size_t tw_device_slots_bytes(const tw_device_model_t *m)
{
    size_t rounded = m->rounds_gradients ? sizeof(uint16_t) : 0;
    return tw_size_mul(all_elems(m), tw_type_bytes(m->type) + sizeof(float) + rounded);
}

/** Return the bytes per element of gradients that are copied out. */
static size_t grad_bytes(const tw_device_model_t *m)
{
    return m->rounds_gradients ? sizeof(uint16_t) : sizeof(float);
}

size_t tw_device_slots_host_bytes(const tw_device_model_t *m)
{
    return tw_size_mul(all_elems(m), grad_bytes(m));
}

static tw_status_t slot_events(tw_device_model_t *m, tw_device_slot_t *slot)
{
    tw_device_t *device = m->device;
    TW_TRY(device->event_create(device, &slot->ready));
    TW_TRY(device->event_create(device, &slot->used));
    TW_TRY(device->event_create(device, &slot->computed));
    return device->event_create(device, &slot->out);
}

static tw_status_t slot_init(tw_device_model_t *m, tw_device_slot_t *slot, size_t unit)
{
    tw_device_t *device = m->device;
    size_t n = layout_of(m, unit)->n_elems, n_tensors = m->host->units[unit].n_tensors;
    slot->wanted = calloc(n_tensors, sizeof(*slot->wanted));
    TW_FAIL_IF(!slot->wanted, TW_ERR_NO_MEMORY, "device: out of memory for a unit's %zu tensors", n_tensors);
    TW_TRY(device->alloc(device, n * tw_type_bytes(m->type), 0, (void **)&slot->weights));
    TW_TRY(device->alloc(device, n * sizeof(*slot->grads), 0, (void **)&slot->grads));
    TW_TRY(m->rounds_gradients ? device->alloc(device, n * sizeof(*slot->rounded), 0, (void **)&slot->rounded)
                               : TW_OK);
    TW_TRY(device->alloc(device, n * grad_bytes(m), 1, &slot->staged));
    return slot_events(m, slot);
}

tw_status_t tw_device_slots_init(tw_device_model_t *m)
{
    for (size_t i = 0; i < TW_DEVICE_SLOTS; i++) {
        TW_TRY(slot_init(m, &m->slots[i], i == 0 ? TW_MODEL_ROOT : TW_MODEL_ROOT + 1));
    }
    return TW_OK;
}

void tw_device_slots_cleanup(tw_device_model_t *m)
{
    tw_device_t *device = m->device;
    for (size_t i = 0; i < TW_DEVICE_SLOTS; i++) {
        tw_device_slot_t *slot = &m->slots[i];
        const tw_device_event_t events[] = {slot->ready, slot->used, slot->computed, slot->out};
        for (size_t e = 0; e < sizeof(events) / sizeof(events[0]); e++) {
            if (events[e]) {
                device->event_destroy(device, events[e]);
            }
        }
        if (slot->weights) {
            device->free(device, slot->weights, 0);
        }
        if (slot->grads) {
            device->free(device, slot->grads, 0);
        }
        if (slot->rounded) {
            device->free(device, slot->rounded, 0);
        }
        if (slot->staged) {
            device->free(device, slot->staged, 1);
        }
        free(slot->wanted);
        *slot = (tw_device_slot_t){0};
    }
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/** Returns the size in bytes of the tensors from `first` on that are adjacent both in host memory and in the
 *  slot, so that one copy suffices. *next is the tensor after them. */
static size_t bytes_of_run(const tw_device_model_t *m, size_t unit, const void *const *weights, size_t first,
                           size_t *next)
{
    const tw_model_unit_t *of = &m->host->units[unit];
    const size_t *offsets = layout_of(m, unit)->offsets, width = tw_type_bytes(m->type);
    size_t bytes = 0;
    for (*next = first; *next < of->n_tensors; ++*next) {
        if ((const char *)weights[*next] != (const char *)weights[first] + bytes ||
            (offsets[*next] - offsets[first]) * width != bytes) {
            break;
        }
        bytes += m->host->tensors[of->first_tensor + *next].n_elems * width;
    }
    return bytes;
}

tw_status_t tw_device_bring(tw_device_model_t *m, size_t unit, const void *const *weights)
{
    tw_device_t *device = m->device;
    tw_device_slot_t *slot = &m->slots[slot_index(unit)];
    const tw_model_unit_t *of = &m->host->units[unit];
    TW_TRY(device->use(device));
    TW_TRY(device->stream_wait(device, m->in, slot->used));
    for (size_t t = 0, next = 0; t < of->n_tensors; t = next) {
        size_t bytes = bytes_of_run(m, unit, weights, t, &next);
        tw_values_t *to = tw_device_at(m, slot->weights, layout_of(m, unit)->offsets[t]);
        TW_TRY(device->copy(device, to, weights[t], bytes, m->in));
    }
    TW_TRY(device->event_record(device, slot->ready, m->in));
    return device->stream_wait(device, m->compute, slot->ready);
}

tw_status_t tw_device_brought(tw_device_model_t *m, size_t unit)
{
    tw_device_slot_t *slot = &m->slots[slot_index(unit)];
    TW_TRY(m->device->event_record(m->device, slot->used, m->compute));
    return m->device->event_wait(m->device, slot->ready);
}

const tw_values_t *tw_device_weight(const tw_device_model_t *m, size_t unit, int tensor)
{
    return tw_device_at(m, m->slots[slot_index(unit)].weights, layout_of(m, unit)->offsets[tensor]);
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

float *tw_device_grad(const tw_device_model_t *m, size_t unit, int tensor)
{
    const tw_device_slot_t *slot = &m->slots[slot_index(unit)];
    return slot->wanted[tensor] ? slot->grads + layout_of(m, unit)->offsets[tensor] : NULL;
}

static void want(tw_device_model_t *m, tw_device_slot_t *slot, size_t unit, float *const *grads)
{
    slot->unit = unit;
    for (size_t t = 0; t < m->host->units[unit].n_tensors; t++) {
        slot->wanted[t] = grads[t];
    }
}

/* Elements of adjacent tensors whose gradients are computed. */
typedef struct run {
    size_t first, n;
    size_t tensor; /* the tensor after the run */
} run_t;

/** Return the next run from `tensor` on. Its n is 0 if there is none. */
static run_t next_run(const tw_device_model_t *m, const tw_device_slot_t *slot, size_t tensor)
{
    const tw_device_layout_t *layout = layout_of(m, slot->unit);
    size_t n_tensors = m->host->units[slot->unit].n_tensors;
    while (tensor < n_tensors && !slot->wanted[tensor]) {
        tensor++;
    }
    run_t run = {.first = tensor < n_tensors ? layout->offsets[tensor] : layout->n_elems, .tensor = tensor};
    while (run.tensor < n_tensors && slot->wanted[run.tensor]) {
        run.tensor++;
    }
    run.n = (run.tensor < n_tensors ? layout->offsets[run.tensor] : layout->n_elems) - run.first;
    return run;
}

/* LEAST: fewest elements that a thread is given. STEP: a thread's range is a multiple of it. */
#define LEAST ((size_t)1 << 15)
#define STEP 64

/* Gradients in pinned memory, and the caller's gradients to which they are added (fp32) or written (bf16). */
typedef struct arrival {
    float *to;
    const void *from;
} arrival_t;

static void units_add(void *ctx, size_t first, size_t n, int thread)
{
    const arrival_t *arrival = ctx;
    const float *more = arrival->from;
    (void)thread;
    for (size_t i = first; i < first + n; i++) {
        arrival->to[i] += more[i];
    }
}

static void units_put(void *ctx, size_t first, size_t n, int thread)
{
    const arrival_t *arrival = ctx;
    (void)thread;
    memcpy((uint16_t *)arrival->to + first, (const uint16_t *)arrival->from + first, n * sizeof(uint16_t));
}

static tw_status_t collect(tw_device_model_t *m, tw_device_slot_t *slot)
{
    const tw_model_unit_t *of = &m->host->units[slot->unit];
    if (!slot->is_on_way) {
        return TW_OK;
    }
    slot->is_on_way = 0;
    TW_TRY(m->device->event_wait(m->device, slot->out));
    for (size_t t = 0; t < of->n_tensors; t++) {
        if (!slot->wanted[t]) {
            continue;
        }
        const char *from = (const char *)slot->staged + layout_of(m, slot->unit)->offsets[t] * grad_bytes(m);
        arrival_t arrival = {slot->wanted[t], from};
        tw_pool_ranges(tw_model_pool(&m->model), m->host->tensors[of->first_tensor + t].n_elems, STEP, LEAST,
                       m->rounds_gradients ? units_put : units_add, &arrival);
    }
    return TW_OK;
}

tw_status_t tw_device_grads_collect(tw_device_model_t *m)
{
    for (size_t i = 0; i < TW_DEVICE_SLOTS; i++) {
        TW_TRY(collect(m, &m->slots[i]));
    }
    return TW_OK;
}

tw_status_t tw_device_grads_collect_unit(tw_device_model_t *m, size_t unit)
{
    tw_device_slot_t *slot = &m->slots[slot_index(unit)];
    return slot->unit == unit ? collect(m, slot) : TW_OK;
}

/** collect() first waits for the slot's previous gradients to be copied out; then the slot can be reused. */
tw_status_t tw_device_grads_begin(tw_device_model_t *m, size_t unit, float *const *grads)
{
    tw_device_slot_t *slot = &m->slots[slot_index(unit)];
    TW_TRY(collect(m, slot));
    want(m, slot, unit, grads);
    for (run_t run = next_run(m, slot, 0); run.n > 0; run = next_run(m, slot, run.tensor)) {
        TW_TRY(m->device->zero(m->device, slot->grads + run.first, run.n * sizeof(*slot->grads), m->compute));
    }
    return TW_OK;
}

static tw_status_t round_run(tw_device_model_t *m, tw_device_slot_t *slot, const run_t *run)
{
    return m->rounds_gradients ? m->device->kernels->narrow(slot->grads + run->first, run->n, 1.0f,
                                                            slot->rounded + run->first, m->compute)
                               : TW_OK;
}

static tw_status_t send_run(tw_device_model_t *m, tw_device_slot_t *slot, const run_t *run)
{
    size_t first = run->first * grad_bytes(m);
    const char *from = m->rounds_gradients ? (const char *)slot->rounded : (const char *)slot->grads;
    return m->device->copy(m->device, (char *)slot->staged + first, from + first, run->n * grad_bytes(m),
                           m->out);
}

tw_status_t tw_device_grads_end(tw_device_model_t *m, size_t unit, float *const *grads)
{
    tw_device_t *device = m->device;
    tw_device_slot_t *slot = &m->slots[slot_index(unit)];
    want(m, slot, unit, grads);
    for (run_t run = next_run(m, slot, 0); run.n > 0; run = next_run(m, slot, run.tensor)) {
        TW_TRY(round_run(m, slot, &run));
    }
    TW_TRY(device->event_record(device, slot->computed, m->compute));
    TW_TRY(device->stream_wait(device, m->out, slot->computed));
    for (run_t run = next_run(m, slot, 0); run.n > 0; run = next_run(m, slot, run.tensor)) {
        TW_TRY(send_run(m, slot, &run));
    }
    TW_TRY(device->event_record(device, slot->out, m->out));
    slot->is_on_way = 1;
    return TW_OK;
}
