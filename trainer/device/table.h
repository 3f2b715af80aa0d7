/** Private to trainer/device: the operations of a GPU that a model needs, as tables of functions: memory,
 *  streams and copies here, kernels (cuda.h), and products (products.h). The rest of trainer/device calls
 *  only these, so that tests run it without a GPU. Every operation logs its errors. */
#pragma once

#include "collectives/collectives.h"
#include "quant/quant.h"
#include "trainer/cuda/attention.h"
#include "trainer/cuda/cuda.h"
#include "trainer/cuda/embedding.h"
#include "trainer/cuda/loss.h"
#include "trainer/cuda/optimizer.h"
#include "trainer/device/products.h"

TW_C_BEGIN

/** The functions tw_cuda_NAME that a model calls. */
#define TW_DEVICE_KERNELS(X) \
    X(gelu_forward)          \
    X(gelu_backward)         \
    X(swiglu_forward)        \
    X(swiglu_backward)       \
    X(norm_forward)          \
    X(norm_backward)         \
    X(bias_backward)         \
    X(embedding_forward)     \
    X(embedding_backward)    \
    X(heads_forward)         \
    X(heads_backward)        \
    X(attention_forward)     \
    X(attention_backward)    \
    X(loss_add)              \
    X(loss_sums)             \
    X(loss_backward)         \
    X(narrow)                \
    X(norm_bins)             \
    X(adamw)

typedef struct tw_device_kernels {
#define TW_DEVICE_KERNEL(name) __typeof__(&tw_cuda_##name) name;
    TW_DEVICE_KERNELS(TW_DEVICE_KERNEL)
#undef TW_DEVICE_KERNEL
} tw_device_kernels_t;

typedef void *tw_device_event_t;

/** Streams and events work as in CUDA: a wait is for the last record of the event, and returns at once if the
 *  event was never recorded. */
typedef struct tw_device tw_device_t;
struct tw_device {
    const tw_device_kernels_t *kernels;
    tw_device_products_t *products;
    /** Make this GPU the calling thread's current GPU. */
    tw_status_t (*use)(tw_device_t *device);
    /** Allocate device memory aligned to 256 bytes, or pinned host memory if `pinned` is 1. */
    tw_status_t (*alloc)(tw_device_t *device, size_t bytes, int pinned, void **out);
    void (*free)(tw_device_t *device, void *memory, int pinned);
    /** Pin existing host memory (whole pages) until unpin. Returns 0 if not pinned; copies work anyway. */
    int (*pin)(tw_device_t *device, void *start, size_t bytes);
    void (*unpin)(tw_device_t *device, void *start);
    tw_status_t (*stream_create)(tw_device_t *device, tw_stream_t *out);
    void (*stream_destroy)(tw_device_t *device, tw_stream_t stream);
    tw_status_t (*stream_wait)(tw_device_t *device, tw_stream_t stream, tw_device_event_t event);
    tw_status_t (*event_create)(tw_device_t *device, tw_device_event_t *out);
    void (*event_destroy)(tw_device_t *device, tw_device_event_t event);
    tw_status_t (*event_record)(tw_device_t *device, tw_device_event_t event, tw_stream_t stream);
    /** Let the host wait for an event. Returns errors of work enqueued before it. */
    tw_status_t (*event_wait)(tw_device_t *device, tw_device_event_t event);
    /** Enqueue a copy between host and device memory in any direction. Host memory must not change or be
     *  freed before the stream has finished the copy. */
    tw_status_t (*copy)(tw_device_t *device, void *to, const void *from, size_t bytes, tw_stream_t stream);
    tw_status_t (*zero)(tw_device_t *device, void *at, size_t bytes, tw_stream_t stream);
    /** Record that a kernel or a product has failed and logged its error. Later failures are not logged. */
    void (*note_failure)(tw_device_t *device);
    /** Make the codec of lossless changes in device memory. */
    tw_status_t (*delta_create)(tw_device_t *device, tw_quant_delta_stream_t **out);
    /** Make a communicator of some of the parent's ranks, for device memory, by tw_coll_group_create_for. */
    tw_status_t (*group)(tw_device_t *device, tw_coll_t *parent, const int *ranks, int n_ranks,
                         tw_coll_t **out);
    void (*destroy)(tw_device_t *device);
};

TW_C_END
