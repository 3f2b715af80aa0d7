/** Communicators on GPU memory. */
#include "collectives/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_ID 255
#define N_SOURCES ((size_t)1024)
#define NS_PER_SEC 1000000000.0
#define SPIN_SEC 200e-6 /**< how long a wait looks again at once */
#define NAP_NS 50000    /**< and then how often */

/* ---- creating -------------------------------------------------------------------------------------------- */

static tw_status_t create_topo(tw_coll_gpu_t *coll, const tw_gpu_parts_t *parts)
{
    uint64_t *ids = malloc((size_t)parts->world * sizeof(*ids));
    int *all = malloc((size_t)parts->world * sizeof(*all));
    tw_status_t status = ids != NULL && all != NULL ? TW_OK : TW_ERR_NO_MEMORY;

    for (int r = 0; r < parts->world && status == TW_OK; r++) {
        ids[r] = (uint64_t)r;
        all[r] = r;
    }
    if (status == TW_OK && parts->transport != NULL) {
        status = tw_topo_init(&coll->base.topo, parts->transport, parts->ranks != NULL ? parts->ranks : all,
                              parts->world);
    } else if (status == TW_OK) {
        status = tw_topo_init_nodes(&coll->base.topo, parts->rank, parts->world, parts->node_ids);
    }
    if (status == TW_OK) {
        status = tw_topo_init_nodes(&coll->flat, coll->base.topo.rank, parts->world, ids);
    }
    free(ids);
    free(all);
    return status;
}

/** NCCL works in GPU memory. A transport does if it takes such memory; else the host's is between it and the kernels. */
static tw_status_t choose_workspace(tw_coll_gpu_t *coll)
{
    const tw_transport_t *transport = coll->base.transport;
    int asked = coll->base.options.gpu_workspace;

    if (coll->wire != NULL) {
        return TW_OK;
    }
    int takes = tw_transport_takes(transport, coll->device->wire);
    coll->memory.pinned = !takes || asked == TW_COLL_GPU_WORKSPACE_PINNED;
    if (takes || asked != TW_COLL_GPU_WORKSPACE_DEVICE) {
        return TW_OK;
    }
    tw_error("rank %d: TW_COLL_GPU_WORKSPACE is device, but the transport takes no GPU memory (%s: %s)",
             coll->base.topo.rank, tw_transport_name(transport), tw_transport_describe(transport));
    return TW_ERR_UNSUPPORTED;
}

static tw_status_t create_queues(tw_coll_gpu_t *coll)
{
    const tw_gpu_device_t *device = coll->device;
    tw_status_t status = device->event_create(device, &coll->computed);

    if (status == TW_OK) {
        status = device->event_create(device, &coll->arrived);
    }
    if (status == TW_OK) {
        status = device->event_create(device, &coll->done);
    }
    if (status == TW_OK && coll->wire != NULL) {
        status = device->stream_create(device, &coll->wire_stream);
    }
    return status;
}

static void destroy_queues(tw_coll_gpu_t *coll)
{
    const tw_gpu_device_t *device = coll->device;
    tw_gpu_event_t events[] = {coll->computed, coll->arrived, coll->done};

    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i] != NULL) {
            device->event_destroy(device, events[i]);
        }
    }
    if (coll->wire_stream != NULL) {
        device->stream_destroy(device, coll->wire_stream);
    }
}

static void move(void *arg, int *moved);

/** Over a transport, whoever waits on it moves this communicator too. */
static void attach(tw_coll_gpu_t *coll)
{
    coll->mover = (tw_transport_mover_t){.move = move, .arg = coll};
    if (coll->base.transport != NULL) {
        tw_transport_mover_add(coll->base.transport, &coll->mover);
    }
}

static void free_parts(tw_coll_gpu_t *coll)
{
    if (coll->base.transport != NULL) {
        tw_transport_mover_remove(coll->base.transport, &coll->mover);
    }
    tw_coll_drop_requests(&coll->base);
    tw_gpu_shapes_cleanup(coll);
    for (size_t i = 0; i < coll->memory.n_blocks; i++) {
        coll->device->free(coll->device, coll->memory.blocks[i], coll->memory.pinned);
    }
    free(coll->memory.blocks);
    destroy_queues(coll);
    tw_codecs_cleanup(&coll->codecs);
    free(coll->sources);
    tw_topo_cleanup(&coll->flat);
    tw_topo_cleanup(&coll->base.topo);
    tw_config_cleanup(&tw_coll_config_table, &coll->base.options);
    if (coll->wire != NULL) {
        coll->wire->destroy(coll->wire);
    }
    free(coll);
}

tw_status_t tw_gpu_create_of_parts(const tw_gpu_parts_t *parts, tw_coll_gpu_t **out)
{
    tw_coll_gpu_t *coll = calloc(1, sizeof(*coll));
    tw_status_t status;

    if (coll == NULL) {
        status = TW_ERR_NO_MEMORY;
        goto err_wire;
    }
    status = tw_config_init(&tw_coll_config_table, &coll->base.options);
    if (status != TW_OK) {
        goto err_coll;
    }
    coll->device = parts->device;
    coll->wire = parts->wire;
    coll->base.transport = parts->wire == NULL ? parts->transport : NULL;
    coll->base.id = parts->id;
    coll->base.algo_info = tw_coll_gpu_algo_get;
    TAILQ_INIT(&coll->base.active);
    TAILQ_INIT(&coll->base.ended);
    coll->codecs.mem = parts->device->mem;
    LIST_INIT(&coll->shapes);
    TAILQ_INIT(&coll->runs);
    coll->last_plan = (tw_coll_plan_t){.algo = "", .reason = ""};
    coll->n_sources = (size_t)parts->world > N_SOURCES ? (size_t)parts->world : N_SOURCES;
    coll->sources = malloc(coll->n_sources * sizeof(*coll->sources));
    status = coll->sources != NULL ? create_topo(coll, parts) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        status = choose_workspace(coll);
    }
    if (status == TW_OK) {
        status = create_queues(coll);
    }
    if (status != TW_OK) {
        free_parts(coll);
        return status;
    }
    attach(coll);
    *out = coll;
    return TW_OK;

err_coll:
    free(coll);
err_wire:
    if (parts->wire != NULL) {
        parts->wire->destroy(parts->wire);
    }
    return status;
}

static tw_status_t create_over_transport(const tw_coll_gpu_params_t *params, tw_coll_gpu_t **out)
{
    const tw_coll_params_t *over = &params->over;
    tw_gpu_parts_t parts = {
        .device = tw_gpu_device_cuda(),
        .transport = over->transport,
        .id = over->id,
        .ranks = over->ranks,
        .world = over->ranks != NULL ? over->n_ranks : tw_transport_world(over->transport),
    };

    if (over->id < 0 || over->id > MAX_ID) {
        tw_error("communicator id %d is not in 0 to %d", over->id, MAX_ID);
        return TW_ERR_INVALID;
    }
    return parts.device != NULL ? tw_gpu_create_of_parts(&parts, out) : TW_ERR_UNSUPPORTED;
}

tw_status_t tw_coll_gpu_create(const tw_coll_gpu_params_t *params, tw_coll_gpu_t **out)
{
    if (params->over.transport == NULL && (params->wire == TW_COLL_GPU_TRANSPORT || params->comm == NULL)) {
        tw_error("a communicator on a GPU needs a transport or an NCCL communicator");
        return TW_ERR_INVALID;
    }
    return params->wire == TW_COLL_GPU_NCCL ? tw_gpu_create_nccl(params, out)
                                            : create_over_transport(params, out);
}

void tw_coll_gpu_destroy(tw_coll_gpu_t *coll)
{
    if (coll == NULL) {
        return;
    }
    if (coll->status == TW_OK) {
        (void)tw_coll_gpu_wait(coll);
    }
    tw_gpu_host_cancel(coll);
    free_parts(coll);
}

int tw_coll_gpu_rank(const tw_coll_gpu_t *coll)
{
    return coll->base.topo.rank;
}

int tw_coll_gpu_size(const tw_coll_gpu_t *coll)
{
    return coll->base.topo.world;
}

int tw_coll_gpu_n_nodes(const tw_coll_gpu_t *coll)
{
    return coll->base.topo.n_nodes;
}

void tw_coll_gpu_last_plan(const tw_coll_gpu_t *coll, tw_coll_plan_t *plan)
{
    *plan = coll->last_plan;
}

uint64_t tw_coll_gpu_nonfinite_blocks(const tw_coll_gpu_t *coll)
{
    return tw_codecs_nonfinite_blocks(&coll->codecs);
}

/* ---- workspace ------------------------------------------------------------------------------------------- */

static tw_status_t make_room_for_block(tw_gpu_memory_t *memory)
{
    if (memory->n_blocks < memory->max_blocks) {
        return TW_OK;
    }
    size_t wanted = memory->max_blocks > 0 ? 2 * memory->max_blocks : 8;
    void **larger = realloc(memory->blocks, wanted * sizeof(*larger));
    if (larger == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    memory->blocks = larger;
    memory->max_blocks = wanted;
    return TW_OK;
}

/** Half as much again at least, so that all outgrown blocks together are at most twice the last one. */
tw_status_t tw_gpu_memory_reserve(tw_coll_gpu_t *coll, size_t bytes)
{
    tw_gpu_memory_t *memory = &coll->memory;
    size_t wanted = memory->bytes + memory->bytes / 2;
    void *block;

    if (bytes <= memory->bytes) {
        return TW_OK;
    }
    wanted = wanted > bytes ? wanted : bytes;
    tw_status_t status = make_room_for_block(memory);
    if (status == TW_OK) {
        status = coll->device->alloc(coll->device, wanted, memory->pinned, &block);
    }
    if (status != TW_OK) {
        return status;
    }
    memory->blocks[memory->n_blocks++] = block;
    memory->bytes = wanted;
    return TW_OK;
}

int tw_coll_gpu_workspace_pinned(const tw_coll_gpu_t *coll)
{
    return coll->memory.pinned;
}

size_t tw_coll_gpu_workspace_bytes(const tw_coll_gpu_t *coll)
{
    return coll->memory.bytes;
}

/* ---- operations ------------------------------------------------------------------------------------------ */

/** The communicator ends here, with this status from now on. Over a transport the others hear of it. */
static tw_status_t fail(tw_coll_gpu_t *coll, tw_status_t status)
{
    if (coll->status != TW_OK) {
        return coll->status;
    }
    coll->status = status;
    tw_gpu_host_cancel(coll);
    tw_coll_drop_requests(&coll->base);
    if (coll->wire != NULL) {
        coll->wire->abort(coll->wire);
    } else {
        tw_coll_give_up(coll->base.transport, status);
    }
    return status;
}

tw_status_t tw_coll_gpu_prepare(tw_coll_gpu_t *coll, const tw_coll_args_t *args)
{
    tw_gpu_shape_t *shape;
    tw_status_t status = coll->status == TW_OK ? tw_gpu_shape_get(coll, args, &shape) : coll->status;

    return status == TW_OK ? tw_gpu_memory_reserve(coll, shape->plan.workspace_bytes) : status;
}

tw_status_t tw_coll_gpu_planned_inter_node_bytes(tw_coll_gpu_t *coll, const tw_coll_args_t *args,
                                                 uint64_t *bytes)
{
    tw_gpu_shape_t *shape;
    tw_status_t status = tw_gpu_shape_get(coll, args, &shape);

    if (status == TW_OK) {
        *bytes = shape->inter_node_bytes;
    }
    return status;
}

/** Into a capture, only what is ready: memory is not allocated there, and the workspace must not move afterwards. */
static tw_status_t check_capture(const tw_coll_gpu_t *coll, const tw_gpu_shape_t *shape, uint64_t capture)
{
    if (capture == 0) {
        return TW_OK;
    }
    if (coll->wire == NULL) {
        tw_error("rank %d: %s: a graph cannot be captured over a transport: the host moves the bytes",
                 coll->base.topo.rank, tw_coll_op_name(shape->request->args.op));
        return TW_ERR_UNSUPPORTED;
    }
    if (shape->plan.workspace_bytes > coll->memory.bytes) {
        tw_error("rank %d: %s: call tw_coll_gpu_prepare before a graph is captured", coll->base.topo.rank,
                 tw_coll_op_name(shape->request->args.op));
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

/** One after another: they share the workspace. A graph cannot wait for what is outside of it, nor the other way round. */
static tw_status_t run_nccl(const tw_gpu_call_t *call, const tw_coll_args_t *args, tw_stream_t stream,
                            uint64_t capture)
{
    tw_coll_gpu_t *coll = call->coll;
    const tw_gpu_device_t *device = coll->device;
    tw_status_t status = TW_OK;

    if (capture == coll->capture) {
        status = device->stream_wait(device, stream, coll->done);
    }
    if (status == TW_OK) {
        status =
            call->shape->is_native ? tw_gpu_native_run(call, args, stream) : tw_gpu_stream_run(call, stream);
    }
    if (status == TW_OK) {
        status = device->event_record(device, coll->done, stream);
    }
    coll->capture = capture;
    return status;
}

/** Over a transport, what this rank has posted, or (shape NULL) could not post; the operation itself is the next number. */
static void tell(tw_coll_gpu_t *coll, const tw_coll_args_t *args, const tw_gpu_shape_t *shape)
{
    tw_coll_request_t about;

    if (shape == NULL) {
        tw_coll_tell(&coll->base, NULL);
        coll->base.sequence++;
        return;
    }
    about = *shape->request;
    about.args.seed = args->seed;
    about.args.step = args->step;
    tw_coll_tell(&coll->base, &about);
}

static tw_status_t start(tw_coll_gpu_t *coll, const tw_coll_args_t *args, tw_gpu_shape_t *shape,
                         tw_stream_t stream, uint64_t capture)
{
    tw_gpu_call_t call = {
        .coll = coll,
        .shape = shape,
        .tensors = shape->tensors,
        .workspace = tw_gpu_workspace(coll),
        .seed = args->seed,
        .step = args->step,
    };
    tw_status_t status;

    if (coll->wire == NULL) {
        tell(coll, args, shape);
    }
    status = coll->wire != NULL ? run_nccl(&call, args, stream, capture) : tw_gpu_host_post(&call, stream);
    if (status != TW_OK) {
        return fail(coll, status);
    }
    coll->moved_ns = tw_time_ns();
    coll->last_plan = shape->plan_info;
    return TW_OK;
}

tw_status_t tw_coll_gpu_post(tw_coll_gpu_t *coll, const tw_coll_args_t *args, tw_stream_t stream)
{
    tw_gpu_shape_t *shape;
    uint64_t capture;
    tw_status_t status = coll->status;

    if (status == TW_OK && coll->wire != NULL) {
        status = coll->wire->error(coll->wire);
        if (status != TW_OK) {
            return fail(coll, status);
        }
    }
    if (status == TW_OK) {
        status = tw_gpu_shape_get(coll, args, &shape);
    }
    if (status == TW_OK) {
        status = tw_gpu_place_tensors(coll, args, shape, shape->tensors);
    }
    if (status == TW_OK) {
        status = coll->device->capture_id(coll->device, stream, &capture);
    }
    if (status == TW_OK) {
        status = check_capture(coll, shape, capture);
    }
    if (status == TW_OK) {
        status = tw_gpu_memory_reserve(coll, shape->plan.workspace_bytes);
    }
    if (status == TW_OK) {
        return start(coll, args, shape, stream, capture);
    }
    if (coll->wire == NULL && coll->status == TW_OK) {
        tell(coll, args, NULL);
    }
    return status;
}

/* ---- waiting --------------------------------------------------------------------------------------------- */

/** The transport's mover. */
static void move(void *arg, int *moved)
{
    tw_coll_gpu_t *coll = arg;

    if (coll->status == TW_OK) {
        tw_status_t status = tw_gpu_host_move(coll, moved);
        tw_coll_move(&coll->base, moved);
        status = coll->base.silent_status < 0 ? coll->base.silent_status : status;
        if (status < 0) {
            (void)fail(coll, status);
        }
    }
    coll->mover.polls = !TAILQ_EMPTY(&coll->runs); /* for the ends of kernels */
}

static tw_status_t look_at_transport(tw_coll_gpu_t *coll, int *moved)
{
    tw_status_t status = tw_transport_progress(coll->base.transport);

    if (status < 0) {
        return status;
    }
    *moved = status == TW_OK;
    if (coll->status != TW_OK) {
        return coll->status;
    }
    return TAILQ_EMPTY(&coll->runs) && !tw_coll_is_telling(&coll->base) ? TW_OK : TW_IN_PROGRESS;
}

/** What was captured last cannot be asked for. */
static tw_status_t look_at_wire(const tw_coll_gpu_t *coll)
{
    tw_status_t status = coll->wire->error(coll->wire);

    if (status == TW_OK && coll->capture == 0) {
        status = coll->device->event_query(coll->device, coll->done);
    }
    return status;
}

tw_status_t tw_coll_gpu_test(tw_coll_gpu_t *coll)
{
    int moved = 0;

    if (coll->status != TW_OK) {
        return coll->status;
    }
    tw_status_t status = coll->wire != NULL ? look_at_wire(coll) : look_at_transport(coll, &moved);
    if (moved || status == TW_OK) {
        coll->moved_ns = tw_time_ns();
    }
    return status < 0 ? fail(coll, status) : status;
}

static tw_status_t time_out(tw_coll_gpu_t *coll, double waited_sec)
{
    tw_error("rank %d: %s (%s) has not ended after %.1f s", coll->base.topo.rank,
             coll->wire != NULL ? "the last operation over nccl" : "the last operation over the transport",
             coll->last_plan.algo, waited_sec);
    return fail(coll, TW_ERR_TIMEOUT);
}

tw_status_t tw_coll_gpu_wait(tw_coll_gpu_t *coll)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    double timeout_sec = coll->base.options.timeout_sec;
    uint64_t start_ns = tw_time_ns();
    tw_status_t status;

    coll->moved_ns = start_ns;
    while ((status = tw_coll_gpu_test(coll)) == TW_IN_PROGRESS) {
        double still_sec = (double)(tw_time_ns() - coll->moved_ns) / NS_PER_SEC;
        if (timeout_sec > 0 && still_sec > timeout_sec) {
            return time_out(coll, still_sec);
        }
        if (still_sec > SPIN_SEC) {
            (void)nanosleep(&nap, NULL);
        }
    }
    return status;
}

void tw_coll_gpu_abort(tw_coll_gpu_t *coll)
{
    (void)fail(coll, TW_ERR_CANCELED);
}
