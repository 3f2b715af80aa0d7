/* AdamW on a device. Gradients are copied in on the model's stream `in`, kernels run on `compute`, and new
 * weights are copied out on `out`. New weights use two buffers in turn: one is copied out while the next
 * unit's are computed into the other. */
#include "trainer/device/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/device/state.h"

enum { PLACES = 2, N_BINS = 2 * TW_CUDA_NORM_BINS };

/* A unit's shard, and its offsets in the arrays of all units. */
typedef struct shard {
    size_t n_elems, n_moments;
    size_t first, first_moment; /* offset among all units' elements; among all units' moments */
} shard_t;

typedef struct place {
    uint16_t *weights;
    tw_device_event_t stepped, out;
} place_t;

struct tw_device_optimizer {
    tw_device_model_t *m;
    shard_t *shards;
    size_t n_units;
    tw_type_t grad_type;
    float *master, *first, *second, *grad_scale; /* device memory, like bins and grads */
    uint64_t *bins;
    void *grads;
    place_t places[PLACES];
    /* came: gradients have been copied in; free: kernels have read the previous gradients */
    tw_device_event_t came, free;
    uint64_t host_bins[N_BINS];
    float host_scale;
};

static size_t optimizer_aligned(size_t n)
{
    return tw_size_mul(tw_size_add(n, TW_DEVICE_ALIGN_ELEMS - 1) / TW_DEVICE_ALIGN_ELEMS,
                       TW_DEVICE_ALIGN_ELEMS);
}

typedef struct totals {
    size_t elems, moments, largest;
} totals_t;

static tw_status_t init_shards(tw_device_optimizer_t *o, const tw_device_optimizer_params_t *params,
                               totals_t *totals)
{
    o->shards = calloc(params->n_units, sizeof(*o->shards));
    TW_FAIL_IF(!o->shards, TW_ERR_NO_MEMORY, "device: out of memory for the optimizer's %zu units",
               params->n_units);
    o->n_units = params->n_units;
    for (size_t u = 0; u < o->n_units; u++) {
        const tw_device_shard_t *unit = &params->units[u];
        o->shards[u] = (shard_t){unit->n_elems, unit->n_moments, totals->elems, totals->moments};
        totals->elems = tw_size_add(totals->elems, optimizer_aligned(unit->n_elems));
        totals->moments = tw_size_add(totals->moments, optimizer_aligned(unit->n_moments));
        totals->largest = unit->n_elems > totals->largest ? unit->n_elems : totals->largest;
    }
    return TW_OK;
}

static size_t state_bytes(const totals_t *totals)
{
    size_t elems = tw_size_add(totals->elems, tw_size_mul(2, totals->moments));
    return tw_size_mul(elems, sizeof(float));
}

/** Allocate all device memory. Bins and scale are a few KB. */
static tw_status_t optimizer_take_memory(tw_device_optimizer_t *o, const tw_device_optimizer_params_t *params,
                                         const totals_t *totals)
{
    size_t largest = optimizer_aligned(totals->largest);
    float *state = params->take(params->ctx, state_bytes(totals));
    o->grads = params->take(params->ctx, tw_size_mul(totals->elems, tw_type_bytes(params->grad_type)));
    o->bins = params->take(params->ctx, N_BINS * sizeof(*o->bins) + sizeof(float));
    if (!state || !o->grads || !o->bins) {
        return TW_ERR_NO_MEMORY;
    }
    o->grad_scale = (float *)(o->bins + N_BINS);
    o->master = state;
    o->first = o->master + totals->elems;
    o->second = o->first + totals->moments;
    if (params->leaves_masters) {
        return TW_OK;
    }
    uint16_t *weights = params->take(params->ctx, tw_size_mul(PLACES * sizeof(*weights), largest));
    for (size_t i = 0; i < PLACES && weights; i++) {
        o->places[i].weights = weights + i * largest;
    }
    return weights ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t create_events(tw_device_optimizer_t *o)
{
    tw_device_t *device = o->m->device;
    TW_TRY(device->event_create(device, &o->came));
    TW_TRY(device->event_create(device, &o->free));
    for (size_t i = 0; i < PLACES; i++) {
        TW_TRY(device->event_create(device, &o->places[i].stepped));
        TW_TRY(device->event_create(device, &o->places[i].out));
    }
    return TW_OK;
}

tw_status_t tw_device_optimizer_create(const tw_device_optimizer_params_t *params,
                                       tw_device_optimizer_t **out)
{
    totals_t totals = {0};
    tw_device_optimizer_t *o = calloc(1, sizeof(*o));
    TW_FAIL_IF(!o, TW_ERR_NO_MEMORY, "device: out of memory for an optimizer");
    o->m = (tw_device_model_t *)params->model;
    o->grad_type = params->grad_type;
    tw_status_t status = o->m->device->use(o->m->device);
    status = status == TW_OK ? init_shards(o, params, &totals) : status;
    status = status == TW_OK ? optimizer_take_memory(o, params, &totals) : status;
    status = status == TW_OK ? create_events(o) : status;
    if (status != TW_OK) {
        tw_device_optimizer_destroy(o);
        return status;
    }
    *out = o;
    return TW_OK;
}

void tw_device_optimizer_destroy(tw_device_optimizer_t *o)
{
    if (!o) {
        return;
    }
    tw_device_t *device = o->m->device;
    const tw_device_event_t events[] = {
        o->came, o->free, o->places[0].stepped, o->places[0].out, o->places[1].stepped, o->places[1].out};
    (void)device->use(device);
    if (o->came) { /* NULL: creation failed before any work was enqueued */
        (void)tw_device_wait_for_all(o->m);
    }
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i]) {
            device->event_destroy(device, events[i]);
        }
    }
    free(o->shards);
    free(o);
}

/* ---- the state, whole ---------------------------------------------------------------------------------- */

/** Record a status in the model, and return the first error of the model and the optimizer. */
static tw_status_t noted(tw_device_optimizer_t *o, tw_status_t status)
{
    tw_device_note(o->m, status);
    return o->m->status;
}

static tw_status_t optimizer_move(tw_device_optimizer_t *o, size_t unit, const tw_device_state_copy_t *copy,
                                  int is_in)
{
    const shard_t *shard = &o->shards[unit];
    tw_device_t *device = o->m->device;
    float *const there[] = {o->master + shard->first, o->first + shard->first_moment,
                            o->second + shard->first_moment};
    float *const here[] = {copy->master, copy->m, copy->v};
    const size_t n[] = {shard->n_elems, shard->n_moments, shard->n_moments};
    TW_TRY(device->use(device));
    for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
        TW_TRY(device->copy(device, is_in ? there[i] : here[i], is_in ? here[i] : there[i],
                            n[i] * sizeof(float), o->m->compute));
    }
    return tw_device_wait_for(o->m, o->m->compute);
}

tw_status_t tw_device_optimizer_load(tw_device_optimizer_t *o, size_t unit,
                                     const tw_device_state_copy_t *from)
{
    return tw_device_is_well(o->m) ? noted(o, optimizer_move(o, unit, from, 1)) : o->m->status;
}

tw_status_t tw_device_optimizer_store(tw_device_optimizer_t *o, size_t unit, const tw_device_state_copy_t *to)
{
    return tw_device_is_well(o->m) ? noted(o, optimizer_move(o, unit, to, 0)) : o->m->status;
}

const float *tw_device_optimizer_masters(const tw_device_optimizer_t *o, size_t unit)
{
    return o->master + o->shards[unit].first;
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

static char *grad_at(const tw_device_optimizer_t *o, size_t unit, size_t first)
{
    return (char *)o->grads + (o->shards[unit].first + first) * tw_type_bytes(o->grad_type);
}

static tw_status_t bring(tw_device_optimizer_t *o, size_t unit, const void *grads)
{
    tw_device_t *device = o->m->device;
    TW_TRY(device->use(device));
    TW_TRY(device->stream_wait(device, o->m->in, o->free));
    TW_TRY(device->copy(device, grad_at(o, unit, 0), grads,
                        o->shards[unit].n_elems * tw_type_bytes(o->grad_type), o->m->in));
    TW_TRY(device->event_record(device, o->came, o->m->in));
    return device->stream_wait(device, o->m->compute, o->came);
}

tw_status_t tw_device_optimizer_gradients(tw_device_optimizer_t *o, size_t unit, const void *grads)
{
    return tw_device_is_well(o->m) ? noted(o, bring(o, unit, grads)) : o->m->status;
}

tw_status_t tw_device_optimizer_norm(tw_device_optimizer_t *o, size_t unit, size_t first, size_t n)
{
    const tw_device_kernels_t *kernels = o->m->device->kernels;
    return tw_device_is_well(o->m) ? noted(o, kernels->norm_bins(o->grad_type, grad_at(o, unit, first), n,
                                                                 o->bins, o->m->compute))
                                   : o->m->status;
}

static tw_status_t take_bins(tw_device_optimizer_t *o)
{
    tw_device_t *device = o->m->device;
    TW_TRY(device->use(device));
    TW_TRY(device->copy(device, o->host_bins, o->bins, sizeof(o->host_bins), o->m->compute));
    TW_TRY(device->zero(device, o->bins, sizeof(o->host_bins), o->m->compute));
    return tw_device_wait_for(o->m, o->m->compute);
}

tw_status_t tw_device_optimizer_bins(tw_device_optimizer_t *o, uint64_t *bins)
{
    TW_TRY(tw_device_is_well(o->m) ? noted(o, take_bins(o)) : o->m->status);
    memcpy(bins, o->host_bins, sizeof(o->host_bins));
    return TW_OK;
}

/* ---- the update ---------------------------------------------------------------------------------------- */

static tw_status_t set_scale(tw_device_optimizer_t *o, float grad_scale)
{
    tw_device_t *device = o->m->device;
    o->host_scale = grad_scale;
    TW_TRY(device->use(device));
    return device->copy(device, o->grad_scale, &o->host_scale, sizeof(o->host_scale), o->m->compute);
}

tw_status_t tw_device_optimizer_begin(tw_device_optimizer_t *o, float grad_scale)
{
    return tw_device_is_well(o->m) ? noted(o, set_scale(o, grad_scale)) : o->m->status;
}

static place_t *optimizer_place_of(tw_device_optimizer_t *o, size_t unit)
{
    return &o->places[unit % PLACES];
}

static tw_status_t step_piece(tw_device_optimizer_t *o, size_t unit, const tw_device_piece_t *piece,
                              const tw_device_news_t *news)
{
    const shard_t *shard = &o->shards[unit];
    tw_quant_adamw_t adamw = piece->adamw;
    adamw.grad_type = o->grad_type;
    adamw.grad_scale = o->grad_scale;
    const tw_cuda_adamw_tensor_t tensor = {
        .grad = grad_at(o, unit, piece->first),
        .master = o->master + shard->first + piece->first,
        .m = o->first + shard->first_moment + piece->first_moment,
        .v = o->second + shard->first_moment + piece->first_moment,
        .weights = news->weights ? optimizer_place_of(o, unit)->weights + piece->first : NULL,
        .weight_type = TW_TYPE_BF16,
        .n_elems = piece->n_elems};
    return o->m->device->kernels->adamw(&adamw, &tensor, o->m->compute);
}

/** Return the end of the adjacent pieces from `first` on. They are copied out together. */
static size_t run_end(const tw_device_piece_t *pieces, size_t n_pieces, size_t first)
{
    size_t end = first + 1;
    while (end < n_pieces && pieces[end].first == pieces[end - 1].first + pieces[end - 1].n_elems) {
        end++;
    }
    return end;
}

static tw_status_t send_run(tw_device_optimizer_t *o, size_t unit, size_t first, size_t n,
                            const tw_device_news_t *news)
{
    tw_device_t *device = o->m->device;
    const uint16_t *weights = optimizer_place_of(o, unit)->weights + first;
    const float *masters = o->master + o->shards[unit].first + first;
    TW_TRY(news->weights
               ? device->copy(device, news->weights + first, weights, n * sizeof(*weights), o->m->out)
               : TW_OK);
    return news->masters
               ? device->copy(device, news->masters + first, masters, n * sizeof(*masters), o->m->out)
               : TW_OK;
}

static tw_status_t send(tw_device_optimizer_t *o, size_t unit, const tw_device_piece_t *pieces,
                        size_t n_pieces, const tw_device_news_t *news)
{
    tw_device_t *device = o->m->device;
    place_t *place = optimizer_place_of(o, unit);
    TW_TRY(device->event_record(device, place->stepped, o->m->compute));
    TW_TRY(device->stream_wait(device, o->m->out, place->stepped));
    for (size_t i = 0, end; i < n_pieces; i = end) {
        end = run_end(pieces, n_pieces, i);
        size_t first = pieces[i].first, n = pieces[end - 1].first + pieces[end - 1].n_elems - first;
        TW_TRY(send_run(o, unit, first, n, news));
    }
    return device->event_record(device, place->out, o->m->out);
}

/** Update a unit, and begin to copy the results out. Masters need no second buffer: they do not change before
 *  the next step, which the host begins after it has received all masters. */
static tw_status_t optimizer_step(tw_device_optimizer_t *o, size_t unit, const tw_device_piece_t *pieces,
                                  size_t n_pieces, const tw_device_news_t *news)
{
    tw_device_t *device = o->m->device;
    TW_TRY(device->use(device));
    TW_TRY(device->stream_wait(device, o->m->compute, optimizer_place_of(o, unit)->out));
    for (size_t i = 0; i < n_pieces; i++) {
        TW_TRY(step_piece(o, unit, &pieces[i], news));
    }
    TW_TRY(device->event_record(device, o->free, o->m->compute));
    return send(o, unit, pieces, n_pieces, news);
}

tw_status_t tw_device_optimizer_step(tw_device_optimizer_t *o, size_t unit, const tw_device_piece_t *pieces,
                                     size_t n_pieces, const tw_device_news_t *news)
{
    return tw_device_is_well(o->m) ? noted(o, optimizer_step(o, unit, pieces, n_pieces, news)) : o->m->status;
}

static tw_status_t wait_for_news(tw_device_optimizer_t *o, size_t unit)
{
    tw_device_t *device = o->m->device;
    TW_TRY(device->use(device));
    return device->event_wait(device, optimizer_place_of(o, unit)->out);
}

tw_status_t tw_device_optimizer_wait(tw_device_optimizer_t *o, size_t unit)
{
    return tw_device_is_well(o->m) ? noted(o, wait_for_news(o, unit)) : o->m->status;
}
