/** Operations: a shape with pointers, the workspace, and progress. */
#include <stdlib.h>
#include <string.h>

#include "collectives/gpu/gpu.h"

/* ---- workspace ----------------------------------------------------------------------------------------- */

/** Allocate a larger block. It is at least 1.5 times as large as the last one, so that all outgrown blocks
 *  together are at most twice as large as the one in use. */
static tw_status_t gpu_run_grow(const tw_gpu_t *gpu, tw_gpu_memory_t *memory, size_t bytes)
{
    size_t wanted = memory->bytes + memory->bytes / 2;
    void *block;

    if (bytes <= memory->bytes) {
        return TW_OK;
    }
    wanted = wanted > bytes ? wanted : bytes;
    if (!tw_grow(&memory->blocks, &memory->max_blocks, memory->n_blocks + 1, sizeof(*memory->blocks))) {
        return TW_ERR_NO_MEMORY;
    }
    TW_TRY(gpu->device->alloc(gpu->device, wanted, memory->pinned, &block));
    memory->blocks[memory->n_blocks++] = block;
    memory->bytes = wanted;
    return TW_OK;
}

static tw_status_t gpu_run_reserve(tw_coll_t *coll, const tw_gpu_shape_t *shape)
{
    tw_gpu_t *gpu = coll->gpu;
    size_t outcomes = coll->codecs.n_messages ? 2 * shape->plan.n_cells * sizeof(tw_quant_outcome_t) : 0;
    TW_TRY(gpu_run_grow(gpu, &gpu->memory, shape->plan.workspace_bytes));
    TW_TRY(gpu_run_grow(gpu, &gpu->packing, shape->packing_bytes));
    return gpu_run_grow(gpu, &gpu->outcomes, outcomes);
}

static void *last_block(const tw_gpu_memory_t *memory)
{
    return memory->n_blocks > 0 ? memory->blocks[memory->n_blocks - 1] : NULL;
}

void tw_gpu_take_workspace(tw_gpu_call_t *call)
{
    const tw_gpu_t *gpu = call->coll->gpu;

    call->workspace = last_block(&gpu->memory);
    call->packing = last_block(&gpu->packing);
    call->outcomes = last_block(&gpu->outcomes);
}

size_t tw_gpu_workspace_bytes(const tw_coll_t *coll)
{
    const tw_gpu_t *gpu = coll->gpu;

    return gpu->memory.bytes + gpu->packing.bytes + gpu->outcomes.bytes;
}

static void free_memory(const tw_gpu_device_t *device, tw_gpu_memory_t *memory)
{
    while (memory->n_blocks > 0) {
        device->free(device, memory->blocks[--memory->n_blocks], memory->pinned);
    }
    memory->bytes = 0;
}

void tw_gpu_workspace_free(tw_coll_t *coll)
{
    tw_gpu_t *gpu = coll->gpu;

    free_memory(gpu->device, &gpu->memory);
    free_memory(gpu->device, &gpu->packing);
    free_memory(gpu->device, &gpu->outcomes);
}

void tw_gpu_enter(tw_coll_t *coll)
{
    const tw_gpu_device_t *device = coll->gpu->device;

    (void)device->use(device, coll->device_index);
}

tw_status_t tw_gpu_prepare(tw_coll_t *coll, const tw_coll_args_t *args)
{
    tw_coll_request_t *request;
    tw_gpu_shape_t *shape;
    TW_TRY(tw_gpu_shape_get(coll, args, &request, &shape));
    tw_status_t status = gpu_run_reserve(coll, shape);
    tw_request_destroy(request);
    return status;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/** Refuse to capture an operation that was not prepared. A capture cannot allocate memory, and the workspace
 *  must not move afterwards. */
static tw_status_t check_capture(const tw_coll_t *coll, const tw_coll_args_t *args,
                                 const tw_gpu_shape_t *shape, uint64_t *capture)
{
    const tw_gpu_t *gpu = coll->gpu;
    tw_status_t status = gpu->device->capture_id(gpu->device, args->stream, capture);

    if (status != TW_OK || *capture == 0) {
        return status;
    }
    TW_FAIL_IF(!gpu->wire, TW_ERR_UNSUPPORTED,
               "rank %d: %s: a graph cannot be captured over a transport: the host moves the bytes",
               coll->topo.rank, tw_coll_op_name(args->op));
    TW_FAIL_IF(shape->plan.workspace_bytes > gpu->memory.bytes, TW_ERR_INVALID,
               "rank %d: %s: call tw_coll_prepare before a graph is captured", coll->topo.rank,
               tw_coll_op_name(args->op));
    return TW_OK;
}

/** Make the run. Over NCCL it uses the shape's copy of the tensors, as work may outlive the request. */
static tw_status_t create_run(tw_coll_request_t *request, tw_gpu_shape_t *shape)
{
    tw_coll_t *coll = request->coll;
    const tw_coll_args_t *args = &request->args;
    const tw_grid_tensor_t *tensors = request->tensors;
    tw_gpu_run_t *run = calloc(1, sizeof(*run));

    if (!run) {
        return TW_ERR_NO_MEMORY;
    }
    request->run = run;
    request->choice = shape->request->choice;
    if (coll->gpu->wire) {
        memcpy(shape->tensors, tensors, args->n_segments * sizeof(*tensors));
        tensors = shape->tensors;
    }
    run->call = (tw_gpu_call_t){
        .coll = coll,
        .shape = shape,
        .tensors = tensors,
        .seed = args->seed,
        .step = args->step,
    };
    run->stream = args->stream;
    TW_TRY(check_capture(coll, args, shape, &run->capture));
    TW_TRY(gpu_run_reserve(coll, shape));
    tw_gpu_take_workspace(&run->call);
    return TW_OK;
}

tw_status_t tw_gpu_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out)
{
    tw_coll_request_t *request;
    tw_gpu_shape_t *shape;
    TW_TRY(tw_gpu_shape_get(coll, args, &request, &shape));
    tw_status_t status = create_run(request, shape);
    if (status == TW_OK) {
        status = coll->engine->complete(request);
    }
    if (status != TW_OK) {
        tw_gpu_release(request);
        tw_request_destroy(request);
        return status;
    }
    *out = request;
    return TW_OK;
}

void tw_gpu_release(tw_coll_request_t *request)
{
    const tw_gpu_device_t *device = request->coll->gpu->device;
    tw_gpu_run_t *run = request->run;

    request->run = NULL;
    if (!run) {
        return;
    }
    for (size_t i = 0; i < run->n_requests; i++) {
        if (run->requests[i]) {
            tw_transport_cancel(request->coll->transport, run->requests[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (run->computed[i]) {
            device->event_destroy(device, run->computed[i]);
        }
    }
    free(run->requests);
    free(run->messages);
    free(run->next_tag);
    free(run->call.lengths);
    free(run);
}
