/** Makes and frees the GPU's part of a communicator. */
#include <stdlib.h>

#include "collectives/gpu/gpu.h"

#define N_SOURCES ((size_t)1024)

/** Choose the memory of the workspace. It is GPU memory for NCCL, and for a transport that takes GPU memory.
 *  For another transport it is host memory that kernels can use. */
static tw_status_t choose_workspace(tw_coll_t *coll)
{
    tw_gpu_t *gpu = coll->gpu;
    int asked = coll->options.gpu_workspace;

    coll->workspace_mem = gpu->device->mem;
    if (gpu->wire) {
        return TW_OK;
    }
    int takes = tw_transport_takes(coll->transport, gpu->device->wire);
    gpu->outcomes.pinned = 1;
    gpu->memory.pinned = !takes || asked == TW_COLL_GPU_WORKSPACE_PINNED;
    coll->workspace_mem = gpu->memory.pinned ? TW_MEM_HOST : gpu->device->wire;
    if (takes || asked != TW_COLL_GPU_WORKSPACE_DEVICE) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_UNSUPPORTED,
                   "rank %d: TW_COLL_GPU_WORKSPACE is device, but the transport takes no GPU memory (%s: %s)",
                   coll->topo.rank, tw_transport_name(coll->transport),
                   tw_transport_describe(coll->transport));
}

static tw_status_t create_queues(tw_gpu_t *gpu)
{
    const tw_gpu_device_t *device = gpu->device;
    TW_TRY(device->event_create(device, &gpu->computed));
    TW_TRY(device->event_create(device, &gpu->arrived));
    TW_TRY(device->event_create(device, &gpu->done[0]));
    TW_TRY(device->event_create(device, &gpu->done[1]));
    return device->stream_create(device, &gpu->wire_stream);
}

static void destroy_queues(tw_gpu_t *gpu)
{
    const tw_gpu_device_t *device = gpu->device;
    tw_gpu_event_t events[] = {gpu->computed, gpu->arrived, gpu->done[0], gpu->done[1]};

    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i]) {
            device->event_destroy(device, events[i]);
        }
    }
    if (gpu->wire_stream) {
        device->stream_destroy(device, gpu->wire_stream);
    }
}

static void detach(tw_coll_t *coll)
{
    tw_gpu_t *gpu = coll->gpu;

    tw_gpu_workspace_free(coll); /* this comes first, because it waits for the device */
    tw_gpu_shapes_cleanup(gpu);
    free(gpu->memory.blocks);
    free(gpu->packing.blocks);
    free(gpu->outcomes.blocks);
    destroy_queues(gpu);
    free(gpu->sources);
    if (gpu->wire) {
        gpu->wire->destroy(gpu->wire);
    }
    free(gpu);
    coll->gpu = NULL;
}

tw_status_t tw_gpu_attach(tw_coll_t *coll, const tw_gpu_device_t *device, tw_gpu_wire_t *wire)
{
    size_t world = (size_t)coll->topo.world;
    tw_gpu_t *gpu = calloc(1, sizeof(*gpu));

    if (!gpu) {
        if (wire) {
            wire->destroy(wire);
        }
        return TW_ERR_NO_MEMORY;
    }
    gpu->device = device;
    gpu->wire = wire;
    TAILQ_INIT(&gpu->shapes);
    coll->gpu = gpu;
    coll->engine = wire ? &tw_gpu_nccl_engine : &tw_gpu_transport_engine;
    coll->detach = detach;
    coll->codecs.mem = device->mem;
    coll->options.check &= !wire; /* signatures need a transport */
    gpu->n_sources = world > N_SOURCES ? world : N_SOURCES;
    gpu->sources = malloc(gpu->n_sources * sizeof(*gpu->sources));
    tw_status_t status = gpu->sources ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        status = choose_workspace(coll);
    }
    return status == TW_OK && wire ? create_queues(gpu) : status;
}
