/* Decides where each holding (purpose) of memory lies, and checks that the device has room. On CPUs "the
 * device" is only a sum: all memory that is not offloaded to host memory or files. A GPU holds the model's
 * scratch, activations, the optimizer's state and its gradients. If replicas are placed on the GPU, it also
 * holds them and the units gathered from them. */
#include "trainer/engine/calls.h"

static const char *const names[TW_ENGINE_HOLDING_COUNT] = {
    [TW_ENGINE_OPTIMIZER] = "optimizer",   [TW_ENGINE_WEIGHTS] = "weights",
    [TW_ENGINE_INPUTS] = "layers' inputs", [TW_ENGINE_GRADIENTS] = "gradients",
    [TW_ENGINE_MOVING] = "moving",         [TW_ENGINE_ACTIVATIONS] = "activations",
    [TW_ENGINE_SCRATCH] = "scratch"};

/** Place weights, gradients and their buffers in host memory, where a model on a device reads and writes
 *  them. The optimizer's state stays on the device, unless it is offloaded. With Muon it is in host memory,
 *  as momenta are sent from there. */
static void keep_in_host_memory(tw_engine_t *engine)
{
    static const tw_engine_holding_t holdings[] = {TW_ENGINE_WEIGHTS, TW_ENGINE_GRADIENTS, TW_ENGINE_MOVING,
                                                   TW_ENGINE_OPTIMIZER};
    size_t n = engine->options->optimizer == TW_TRAIN_MUON ? 4 : 3;
    for (size_t i = 0; i < n; i++) {
        tw_engine_home_t *home = &engine->homes[holdings[i]];
        home->place = home->place == TW_TRAIN_NONE ? TW_TRAIN_CPU : home->place;
    }
}

void tw_engine_find_homes(tw_engine_t *engine)
{
    const tw_train_options_t *o = engine->options;
    engine->homes[TW_ENGINE_OPTIMIZER] = (tw_engine_home_t){.place = (tw_train_place_t)o->offload_optimizer,
                                                            .folder = o->offload_optimizer_path};
    engine->homes[TW_ENGINE_WEIGHTS] =
        (tw_engine_home_t){.place = (tw_train_place_t)o->offload_param, .folder = o->offload_param_path};
    if (tw_model_is_on_device(engine->model)) {
        keep_in_host_memory(engine);
    }
    engine->homes[TW_ENGINE_INPUTS] = (tw_engine_home_t){.place = *o->activation_path    ? TW_TRAIN_NVME
                                                                  : o->cpu_checkpointing ? TW_TRAIN_CPU
                                                                                         : TW_TRAIN_NONE,
                                                         .folder = o->activation_path};
}

int tw_engine_gradients_lag(const tw_engine_t *engine)
{
    return tw_model_is_on_device(engine->model) && engine->options->overlap;
}

static size_t bytes_there(const tw_engine_t *engine, int holding)
{
    const tw_engine_home_t *home = &engine->homes[holding];
    if (tw_model_is_on_device(engine->model)) {
        return home->gpu_bytes;
    }
    return home->place == TW_TRAIN_NONE ? home->bytes : 0;
}

size_t tw_engine_device_bytes(const tw_engine_t *engine)
{
    size_t bytes = 0;
    for (int holding = 0; holding < TW_ENGINE_HOLDING_COUNT; holding++) {
        bytes += bytes_there(engine, holding);
    }
    return bytes;
}

int tw_engine_is_full(const tw_engine_t *engine)
{
    size_t room = engine->options->device_bytes;
    return room > 0 && tw_engine_device_bytes(engine) > room;
}

/** Print "optimizer 14", "weights 2 in host memory", or "optimizer 14 and 12 in host memory". The last form
 *  is for an optimizer on a GPU, which also has host memory for checkpoints. */
static int print_holding(const tw_engine_t *engine, int holding, char *text, size_t n)
{
    const tw_engine_home_t *home = &engine->homes[holding];
    size_t there = bytes_there(engine, holding), elsewhere = home->bytes - there;
    const char *where = home->place == TW_TRAIN_NVME ? "files" : "host memory";
    if (elsewhere == 0) {
        return snprintf(text, n, "%s %zu", names[holding], there);
    }
    return there == 0 ? snprintf(text, n, "%s %zu in %s", names[holding], elsewhere, where)
                      : snprintf(text, n, "%s %zu and %zu in %s", names[holding], there, elsewhere, where);
}

tw_status_t tw_engine_check_device(const tw_engine_t *engine)
{
    char list[1024] = "";
    for (int holding = 0, at = 0; holding < TW_ENGINE_HOLDING_COUNT; holding++) {
        at += snprintf(list + at, sizeof(list) - (size_t)at, "%s", holding > 0 ? ", " : "");
        at += print_holding(engine, holding, list + at, sizeof(list) - (size_t)at);
    }
    size_t needed = tw_engine_device_bytes(engine), room = engine->options->device_bytes;
    if (!tw_engine_is_full(engine)) {
        tw_info("rank %d: the device holds %zu bytes; of all: %s", engine->rank, needed, list);
        return TW_OK;
    }
    return tw_fail(TW_ERR_CONFIG,
                   "rank %d: %zu bytes are needed on the device, thinwire.device_mem is %zu; of all: %s. "
                   "offload_optimizer, %s and cpu_checkpointing move the first three elsewhere",
                   engine->rank, needed, room, list,
                   engine->has_near_replicas ? "thinwire.replicas=host" : "offload_param");
}
