/* Replicas in the device's memory: encodes their changes, decodes other nodes' changes, and copies. */
#include "trainer/device/replicas.h"

#include <stdlib.h>

#include "trainer/device/state.h"

/* Most masters that are converted to bf16 at a time. */
#define WIDE_ELEMS ((size_t)1 << 20)

struct tw_device_replicas {
    tw_hpz_memory_t memory;
    tw_device_replicas_params_t params;
    tw_device_model_t *m;
    tw_stream_t stream, gathers;
    tw_device_event_t passed;
    tw_quant_delta_stream_t *codec;
    tw_quant_outcome_t *outcome; /* pinned host memory */
    float *wide;                 /* [wide_elems] masters; device memory, like the pointers below */
    size_t wide_elems;
    uint16_t *fresh;
    uint8_t *message;
    void *workspace;
    size_t message_bytes, workspace_bytes;
};

/** Record a status in the model, and return the model's first error. Replicas keep no status themselves. */
static tw_status_t noted(tw_device_replicas_t *r, tw_status_t status)
{
    tw_device_note(r->m, status);
    return r->m->status;
}

static tw_status_t wait_here(tw_device_replicas_t *r)
{
    tw_device_t *device = r->m->device;
    TW_TRY(device->use(device));
    TW_TRY(device->event_record(device, r->passed, r->stream));
    return device->event_wait(device, r->passed);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/** Allocate the device memory that encoding and decoding need. */
static tw_status_t replicas_reserve(void *ctx, size_t n_elems, size_t n_segments, int deltas)
{
    tw_device_replicas_t *r = ctx;
    if (!deltas) {
        return TW_OK;
    }
    r->workspace_bytes = TW_LARGER(tw_quant_delta_encode_workspace_bytes(NULL, n_elems, n_segments),
                                   tw_quant_delta_decode_workspace_bytes(NULL, n_elems, n_segments));
    r->message_bytes = tw_quant_delta_bound_bytes(n_elems);
    r->wide_elems = n_elems < WIDE_ELEMS ? n_elems : WIDE_ELEMS;
    TW_FAIL_IF(r->workspace_bytes == SIZE_MAX, TW_ERR_UNSUPPORTED,
               "device: %zu weights are too many for a change of replicas", n_elems);
    r->wide = r->params.take(r->params.ctx, tw_size_mul(r->wide_elems, sizeof(*r->wide)));
    r->fresh = r->params.take(r->params.ctx, tw_size_mul(n_elems, sizeof(*r->fresh)));
    r->message = r->params.take(r->params.ctx, r->message_bytes);
    r->workspace = r->params.take(r->params.ctx, r->workspace_bytes);
    return r->wide && r->fresh && r->message && r->workspace ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t replicas_group(void *ctx, tw_coll_t *parent, const int *ranks, int n_ranks,
                                  tw_coll_t **out, tw_stream_t *stream)
{
    tw_device_replicas_t *r = ctx;
    tw_device_t *device = r->m->device;
    *stream = r->gathers;
    TW_TRY(device->use(device));
    return device->group(device, parent, ranks, n_ranks, out);
}

static uint16_t *fresh(void *ctx)
{
    return ((tw_device_replicas_t *)ctx)->fresh;
}

/* ---- copies -------------------------------------------------------------------------------------------- */

static tw_status_t enqueue_copy(tw_device_replicas_t *r, void *to, const void *from, size_t n_bytes)
{
    tw_device_t *device = r->m->device;
    if (n_bytes == 0) {
        return TW_OK;
    }
    TW_TRY(device->use(device));
    return device->copy(device, to, from, n_bytes, r->stream);
}

static tw_status_t replicas_copy(void *ctx, void *to, const void *from, size_t n_bytes)
{
    tw_device_replicas_t *r = ctx;
    return tw_device_is_well(r->m) ? noted(r, enqueue_copy(r, to, from, n_bytes)) : r->m->status;
}

static tw_status_t enqueue_zeros(tw_device_replicas_t *r, void *at, size_t n_bytes)
{
    tw_device_t *device = r->m->device;
    if (n_bytes == 0) {
        return TW_OK;
    }
    TW_TRY(device->use(device));
    return device->zero(device, at, n_bytes, r->stream);
}

static tw_status_t replicas_zero(void *ctx, void *at, size_t n_bytes)
{
    tw_device_replicas_t *r = ctx;
    return tw_device_is_well(r->m) ? noted(r, enqueue_zeros(r, at, n_bytes)) : r->m->status;
}

/** Convert masters to bf16. They may be on the host or the device, so they are copied to r->wide first. */
static tw_status_t enqueue_narrow(tw_device_replicas_t *r, const float *from, uint16_t *to, size_t n)
{
    const tw_device_kernels_t *kernels = r->m->device->kernels;
    for (size_t at = 0, some; at < n; at += some) {
        some = n - at < r->wide_elems ? n - at : r->wide_elems;
        TW_TRY(enqueue_copy(r, r->wide, from + at, some * sizeof(*from)));
        TW_TRY(kernels->narrow(r->wide, some, 1.0f, to + at, r->stream));
    }
    return TW_OK;
}

static tw_status_t replicas_narrow(void *ctx, const float *from, uint16_t *to, size_t n)
{
    tw_device_replicas_t *r = ctx;
    return tw_device_is_well(r->m) ? noted(r, enqueue_narrow(r, from, to, n)) : r->m->status;
}

static tw_status_t wait(void *ctx)
{
    tw_device_replicas_t *r = ctx;
    tw_status_t status = wait_here(r); /* even after an error: the caller may free memory of these copies */
    return tw_device_is_well(r->m) ? noted(r, status) : r->m->status;
}

/* ---- coding -------------------------------------------------------------------------------------------- */

static tw_quant_stream_args_t args_of(const tw_device_replicas_t *r)
{
    return (tw_quant_stream_args_t){.stream = r->stream,
                                    .workspace = r->workspace,
                                    .workspace_bytes = r->workspace_bytes,
                                    .host = r->outcome};
}

/** Encode, and wait, as the message's length is known only at the end. */
static tw_status_t encode_now(tw_device_replicas_t *r, const tw_quant_delta_segment_t *segments,
                              size_t n_segments, void *dst, size_t *bytes)
{
    const tw_quant_stream_args_t args = args_of(r);
    TW_TRY(r->m->device->use(r->m->device));
    TW_TRY(tw_quant_delta_stream_encode(r->codec, &args, segments, n_segments, r->message, r->message_bytes));
    TW_TRY(wait_here(r));
    *bytes = r->outcome->bytes;
    TW_TRY(enqueue_copy(r, dst, r->message, *bytes));
    return wait_here(r);
}

static tw_status_t replicas_encode(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments,
                                   void *dst, size_t dst_bytes, size_t *bytes)
{
    tw_device_replicas_t *r = ctx;
    (void)dst_bytes; /* the caller has allocated the upper bound, which no message exceeds */
    return tw_device_is_well(r->m) ? noted(r, encode_now(r, segments, n_segments, dst, bytes)) : r->m->status;
}

static tw_status_t decode_now(tw_device_replicas_t *r, const tw_quant_delta_segment_t *segments,
                              size_t n_segments, const void *src, size_t src_bytes)
{
    const tw_quant_stream_args_t args = args_of(r);
    TW_TRY(r->m->device->use(r->m->device));
    TW_TRY(enqueue_copy(r, r->message, src, src_bytes));
    const tw_quant_message_t message = {.src = r->message, .src_bytes = src_bytes};
    TW_TRY(tw_quant_delta_stream_decode(r->codec, &args, segments, n_segments, message));
    return wait_here(r);
}

/** Decode a message. A message that does not match the replicas is an error, but not one of the device. */
static tw_status_t replicas_decode(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments,
                                   const void *src, size_t src_bytes)
{
    tw_device_replicas_t *r = ctx;
    if (src_bytes > r->message_bytes) {
        return TW_ERR_FORMAT;
    }
    TW_TRY(tw_device_is_well(r->m) ? noted(r, decode_now(r, segments, n_segments, src, src_bytes))
                                   : r->m->status);
    return (tw_status_t)r->outcome->status;
}

/* ---- create and destroy -------------------------------------------------------------------------------- */

static const tw_hpz_memory_t operations = {.reserve = replicas_reserve,
                                           .group = replicas_group,
                                           .copy = replicas_copy,
                                           .zero = replicas_zero,
                                           .narrow = replicas_narrow,
                                           .fresh = fresh,
                                           .encode = replicas_encode,
                                           .decode = replicas_decode,
                                           .wait = wait};

static tw_status_t replicas_init(tw_device_replicas_t *r)
{
    tw_device_t *device = r->m->device;
    TW_TRY(device->use(device));
    TW_TRY(device->stream_create(device, &r->stream));
    TW_TRY(device->stream_create(device, &r->gathers));
    TW_TRY(device->event_create(device, &r->passed));
    TW_TRY(device->alloc(device, sizeof(*r->outcome), 1, (void **)&r->outcome));
    return device->delta_create(device, &r->codec);
}

tw_status_t tw_device_replicas_create(const tw_device_replicas_params_t *params, tw_device_replicas_t **out)
{
    tw_device_replicas_t *r = calloc(1, sizeof(*r));
    TW_FAIL_IF(!r, TW_ERR_NO_MEMORY, "device: out of memory for replicas");
    r->params = *params;
    r->m = (tw_device_model_t *)params->model;
    r->memory = operations;
    r->memory.ctx = r;
    tw_status_t status = replicas_init(r);
    if (status != TW_OK) {
        tw_device_replicas_destroy(r);
        return status;
    }
    *out = r;
    return TW_OK;
}

void tw_device_replicas_destroy(tw_device_replicas_t *r)
{
    if (!r) {
        return;
    }
    tw_device_t *device = r->m->device;
    (void)device->use(device);
    if (r->passed) { /* NULL: creation failed before any work was enqueued */
        (void)wait_here(r);
        device->event_destroy(device, r->passed);
    }
    tw_quant_delta_stream_destroy(r->codec);
    if (r->outcome) {
        device->free(device, r->outcome, 1);
    }
    if (r->gathers) {
        device->stream_destroy(device, r->gathers);
    }
    if (r->stream) {
        device->stream_destroy(device, r->stream);
    }
    free(r);
}

const tw_hpz_memory_t *tw_device_replicas_memory(const tw_device_replicas_t *r)
{
    return &r->memory;
}

size_t tw_device_replicas_host_bytes(void)
{
    return sizeof(tw_quant_outcome_t);
}
