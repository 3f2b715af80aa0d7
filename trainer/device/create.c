/* Makes and destroys a model on a device, and allocates its memory. */
#include "trainer/device/device.h"

#include <stdlib.h>
#include <unistd.h>

#include "trainer/device/state.h"

/* ---- calls of ops.h ------------------------------------------------------------------------------------ */

static double unit_products(const tw_model_t *model, size_t unit, size_t seq_len)
{
    return tw_model_unit_products(((const tw_device_model_t *)model)->host, unit, seq_len);
}

/** Return the size in floats of n activations of `type`, rounded up so that adjacent arrays are aligned. */
static size_t x_elems_of(size_t n, tw_type_t type)
{
    size_t aligned =
        tw_size_add(n, TW_DEVICE_ALIGN_ELEMS - 1) / TW_DEVICE_ALIGN_ELEMS * TW_DEVICE_ALIGN_ELEMS;
    return aligned / (sizeof(float) / tw_type_bytes(type));
}

static tw_model_sizes_t sizes(const tw_model_t *model, size_t batch, size_t seq_len)
{
    const tw_device_model_t *m = (const tw_device_model_t *)model;
    const tw_device_sizes_t of = tw_device_sizes_of(&model->config, batch, seq_len);
    size_t device = tw_size_add(tw_device_scratch_bytes(m, &of), tw_device_slots_bytes(m));
    return (tw_model_sizes_t){
        .x_elems = x_elems_of(tw_size_mul(of.n, of.c), of.type),
        .saved_bytes = tw_device_saved_bytes(&of),
        .scratch_bytes = tw_size_add(device, m->device->products->memory_bytes),
        .host_bytes = tw_size_add(tw_device_slots_host_bytes(m), tw_size_mul(batch, sizeof(double)))};
}

static tw_model_sizes_t host_sizes(const tw_model_t *model, size_t batch, size_t seq_len)
{
    tw_model_t *host = ((const tw_device_model_t *)model)->host;
    /* sizes depend on the pool; the host's model is only asked for sizes */
    host->compute.pool = model->compute.pool;
    return tw_model_sizes_get(host, batch, seq_len);
}

static void device_give_up(tw_device_model_t *m)
{
    tw_device_t *device = m->device;
    tw_device_slots_cleanup(m);
    if (m->scratch.memory) {
        device->free(device, m->scratch.memory, 0);
    }
    if (m->losses) {
        device->free(device, m->losses, 1);
    }
    m->scratch = (tw_device_scratch_t){0};
    m->losses = NULL;
}

static tw_status_t device_reserve(tw_model_t *model)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    const tw_device_sizes_t of = tw_device_sizes_of(&model->config, model->batch, model->seq_len);
    TW_TRY(m->device->use(m->device));
    TW_TRY(tw_device_wait_for_all(m));
    device_give_up(m);
    TW_TRY(tw_device_slots_init(m));
    TW_TRY(m->device->alloc(m->device, of.batch * sizeof(*m->losses), 1, (void **)&m->losses));
    return tw_device_scratch_init(m, &of);
}

static tw_device_saved_t saved_of(const tw_device_model_t *m, const void *saved)
{
    const tw_device_sizes_t of = tw_device_sizes_of(&m->model.config, m->model.batch, m->model.seq_len);
    return tw_device_saved_at(&of, saved ? (void *)(uintptr_t)saved : m->scratch.saved);
}

/** Functions that compute a block of one kind of model. */
typedef struct kind {
    tw_status_t (*forward)(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                           const tw_values_t *x, tw_values_t *y);
    tw_status_t (*backward)(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                            const tw_values_t *x, tw_values_t *d);
} kind_t;

static const kind_t *kind_of(const tw_device_model_t *m)
{
    static const kind_t kinds[] = {
        [TW_MODEL_KIND_GPT2] = {tw_device_gpt2_forward, tw_device_gpt2_backward},
        [TW_MODEL_KIND_LLAMA] = {tw_device_llama_forward, tw_device_llama_backward}};
    return &kinds[tw_model_family_get(m->model.config.family)->kind];
}

static tw_status_t device_forward(tw_device_model_t *m, size_t unit, const void *const *weights,
                                  const float *x, float *y, void *saved)
{
    const tw_device_saved_t of_unit = saved_of(m, saved);
    TW_TRY(tw_device_bring(m, unit, weights));
    TW_TRY(kind_of(m)->forward(m, unit, &of_unit, (const tw_values_t *)x, (tw_values_t *)y));
    return tw_device_brought(m, unit);
}

static void block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                          float *y, void *saved)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (tw_device_is_well(m)) {
        tw_device_note(m, device_forward(m, unit, weights, x, y, saved));
    }
}

static tw_status_t device_backward(tw_device_model_t *m, size_t unit, const void *const *weights,
                                   const float *x, const void *saved, float *d, float *const *grads)
{
    /* `saved` is only read, though the struct is not const. */
    const tw_device_saved_t of_unit = saved_of(m, saved);
    TW_TRY(tw_device_bring(m, unit, weights));
    TW_TRY(tw_device_grads_begin(m, unit, grads));
    TW_TRY(kind_of(m)->backward(m, unit, &of_unit, (const tw_values_t *)x, (tw_values_t *)d));
    TW_TRY(tw_device_grads_end(m, unit, grads));
    return tw_device_brought(m, unit);
}

static void block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                           const void *saved, float *d, float *const *grads)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (tw_device_is_well(m)) {
        tw_device_note(m, device_backward(m, unit, weights, x, saved, d, grads));
    }
}

static void device_destroy(tw_model_t *model)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    tw_device_t *device = m->device;
    const tw_stream_t streams[] = {m->compute, m->in, m->out};
    (void)device->use(device);
    if (m->copied) {
        (void)tw_device_wait_for_all(m); /* enqueued work may use memory that is freed below */
        device->event_destroy(device, m->copied);
    }
    device_give_up(m);
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        if (streams[i]) {
            device->stream_destroy(device, streams[i]);
        }
    }
    tw_device_layouts_cleanup(m);
    m->model.tensors = NULL; /* the tables belong to the host's model */
    m->model.units = NULL;
    m->model.n_tensors = 0;
    tw_model_cleanup(&m->model);
    tw_model_destroy(m->host);
    free(m);
}

static const tw_model_ops_t ops = {.destroy = device_destroy,
                                   .unit_products = unit_products,
                                   .sizes = sizes,
                                   .reserve = device_reserve,
                                   .embed_forward = tw_device_embed_forward,
                                   .embed_backward = tw_device_embed_backward,
                                   .block_forward = block_forward,
                                   .block_backward = block_backward,
                                   .head = tw_device_head,
                                   .losses = tw_device_losses,
                                   .logits = tw_device_logits};

/* ---- memory and waiting -------------------------------------------------------------------------------- */

static tw_status_t device_take(tw_device_model_t *m, size_t bytes, void **out)
{
    TW_TRY(m->device->use(m->device));
    TW_TRY(m->device->alloc(m->device, bytes > 0 ? bytes : 1, 0, out));
    return m->device->zero(m->device, *out, bytes, m->compute);
}

static void *alloc(tw_model_t *model, size_t bytes)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    void *memory = NULL;
    if (device_take(m, bytes, &memory) != TW_OK && memory) {
        m->device->free(m->device, memory, 0);
        memory = NULL;
    }
    return memory;
}

/** Free memory of tw_model_alloc after the device has finished using it. */
static void free_memory(tw_model_t *model, void *memory)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (memory) {
        (void)m->device->use(m->device);
        (void)tw_device_wait_for(m, m->compute);
        m->device->free(m->device, memory, 0);
    }
}

static tw_status_t copy_now(tw_device_model_t *m, void *to, const void *from, size_t bytes)
{
    TW_TRY(m->device->use(m->device));
    TW_TRY(m->device->copy(m->device, to, from, bytes, m->compute));
    return tw_device_wait_for(m, m->compute);
}

static tw_status_t device_copy(tw_model_t *model, void *to, const void *from, size_t bytes)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (tw_device_is_well(m)) {
        tw_device_note(m, copy_now(m, to, from, bytes));
    }
    return m->status;
}

static void round_gradients(tw_model_t *model, int rounds)
{
    ((tw_device_model_t *)model)->rounds_gradients = rounds;
}

static tw_status_t device_finish(tw_model_t *model)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (tw_device_is_well(m)) {
        tw_device_note(m, tw_device_grads_collect(m));
    }
    return m->status;
}

static tw_status_t finish_unit(tw_model_t *model, size_t unit)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (tw_device_is_well(m)) {
        tw_device_note(m, tw_device_grads_collect_unit(m, unit));
    }
    return m->status;
}

/** Pin a buffer if it shares no page with other memory: a page cannot be pinned twice, and a copy cannot
 *  cross from pinned to unpinned pages. Small buffers, which share pages, are not worth pinning. */
static int pin(tw_model_t *model, void *start, size_t bytes)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    return bytes >= TW_BUFFER_OWN_PAGES_FROM && m->device->use(m->device) == TW_OK &&
           m->device->pin(m->device, start, whole);
}

static void unpin(tw_model_t *model, void *start)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    (void)m->device->use(m->device);
    (void)tw_device_wait_for_all(m);
    m->device->unpin(m->device, start);
}

static const tw_model_device_ops_t device_ops = {.host_sizes = host_sizes,
                                                 .alloc = alloc,
                                                 .free = free_memory,
                                                 .copy = device_copy,
                                                 .round_gradients = round_gradients,
                                                 .finish = device_finish,
                                                 .finish_unit = finish_unit,
                                                 .orthogonal = tw_device_orthogonal_of,
                                                 .orthogonalize = tw_device_orthogonalize,
                                                 .pin = pin,
                                                 .unpin = unpin};

/* ---- creating a model ---------------------------------------------------------------------------------- */

static tw_status_t device_init(tw_device_model_t *m)
{
    tw_device_t *device = m->device;
    TW_TRY(device->use(device));
    TW_TRY(device->stream_create(device, &m->compute));
    TW_TRY(device->stream_create(device, &m->in));
    TW_TRY(device->stream_create(device, &m->out));
    TW_TRY(device->event_create(device, &m->copied));
    return tw_device_layouts_init(m);
}

static tw_status_t check_heads(const tw_model_config_t *config)
{
    size_t width = tw_device_sizes_of(config, 1, 1).width;
    if (width > TW_CUDA_HEAD_WIDTH_MAX) {
        return tw_fail(TW_ERR_INVALID, "device: heads of %zu channels; on a device they have %d at most",
                       width, TW_CUDA_HEAD_WIDTH_MAX);
    }
    return TW_OK;
}

static tw_status_t device_create_host(const tw_model_config_t *config, tw_model_t **out)
{
    TW_TRY(tw_model_create(config, out));
    tw_status_t status = check_heads(config); /* the other fields have been checked */
    if (status != TW_OK) {
        tw_model_destroy(*out);
    }
    return status;
}

/** The new model shares the tables (tensors, units) of the host's model, which owns them. */
tw_status_t tw_device_model_create(const tw_model_config_t *config, tw_device_t *device, tw_model_t **out)
{
    tw_model_t *host;
    TW_TRY(device_create_host(config, &host));
    tw_device_model_t *m = calloc(1, sizeof(*m));
    if (!m) {
        tw_error("device: out of memory for a model");
        tw_model_destroy(host);
        return TW_ERR_NO_MEMORY;
    }
    m->model = *host;
    m->model.ops = &ops;
    m->model.device = &device_ops;
    m->type = tw_model_weight_type(host);
    m->model.config.products = m->type;
    m->model.compute = (tw_compute_t){0};
    m->host = host;
    m->device = device;
    m->logits_elems = TW_DEVICE_LOGITS_BYTES / tw_type_bytes(m->type);
    tw_status_t status = device_init(m);
    if (status != TW_OK) {
        device_destroy(&m->model);
        return status;
    }
    *out = &m->model;
    return TW_OK;
}
