/* Plans the memory of a rank: what an engine holds, from an engine that is made only to be measured
 * (planned.c in trainer/engine), and what operations and codecs hold at times, from measurements. */
#include <math.h>
#include <stdlib.h>

#include "trainer/engine/engine.h"
#include "trainer/plan/plan.h"

double tw_plan_states_bytes(double n_params, int stage, int world)
{
    double ranks = world;
    double weights = 2.0 * n_params / (stage >= 3 ? ranks : 1.0);
    double gradients = 2.0 * n_params / (stage >= 2 ? ranks : 1.0);
    double optimizer = 12.0 * n_params / (stage >= 1 ? ranks : 1.0);
    return weights + gradients + optimizer;
}

double tw_plan_memory_sum(const tw_plan_memory_t *m)
{
    return m->optimizer + m->weights + m->gradients + m->moving + m->activations + m->scratch + m->chunks +
           m->besides;
}

/* Inputs of the computation: numbers of elements of the model, bytes of the engine. */
typedef struct given {
    const tw_train_options_t *options;
    const tw_engine_memory_t *engine;
    double whole, root, block;
    size_t n_layer, n_slots;
    int is_on_gpu;
} given_t;

static int has_replicas(const tw_train_options_t *o)
{
    return o->hpz == TW_TRAIN_HPZ_ON;
}

static double weight_bytes(const tw_train_options_t *o)
{
    return o->bf16 ? 2.0 : 4.0;
}

/* ---- buffers of operations and codecs ------------------------------------------------------------------ */

/* Most scratch memory that is planned for operations that wait for the link: half of a communicator's default
 * TW_COLL_SCRATCH. All operations together get at most that half; the oldest one may also use the other
 * half. */
#define MOST_CHUNKS_BYTES 16777216.0

/** Return the bytes of an encoded weight. It is held in addition to the decoded one. */
static double coded_bytes(const tw_train_options_t *o)
{
    const tw_quant_codec_t *codec = &o->codecs.weights;
    int is_lossless = tw_quant_form(codec) == TW_QUANT_MESSAGE;
    return (is_lossless ? TW_PLAN_LOSSLESS_WEIGHT_BITS : tw_quant_row_get(codec->kind)->bits) / 8.0;
}

/** Return the bytes of chunks that wait for the link: some layers' gradients (numbers measured in bf16 with
 *  layers of 0.4 to 4.8 MB) and a layer of encoded weights. In stage 1 the reductions of all units may wait.
 *  With replicas, the node's communicator has chunks, too. */
static double chunks_bytes(const given_t *given)
{
    const tw_train_options_t *o = given->options;
    const double layers[] = {6.0, (double)given->n_layer + 1.0, 4.0, 3.0};
    double gradient_bytes = o->communication == TW_TRAIN_COMMUNICATION_FP32 ? 4.0 : 2.0;
    double in_node = has_replicas(o) ? weight_bytes(o) / 2.0 * given->block : 0.0;
    double bytes = layers[o->stage] * gradient_bytes + coded_bytes(o);
    return fmin(bytes * given->block, MOST_CHUNKS_BYTES) + fmin(in_node, MOST_CHUNKS_BYTES);
}

/** Return the bytes of send buffers. The first sync sends whole weights, while no other operation runs. */
static double moving_bytes(const given_t *given)
{
    double first = (double)given->engine->first_sync - chunks_bytes(given);
    return (double)given->engine->host[TW_ENGINE_MOVING] + fmax((double)given->engine->sync, first);
}

/** Return the bytes of a codec of messages, or 0 for other codecs. The lossless codec's context alone has 1.5
 *  MB. ecdq took 2.7 MB more, the median of eight runs. */
static double messages_bytes(const tw_quant_codec_t *codec)
{
    double bytes = tw_quant_row_get(codec->kind)->unbiased ? 46e5 : 19e5;
    return tw_quant_form(codec) == TW_QUANT_MESSAGE ? bytes : 0.0;
}

/** Return the measured bytes of contexts, tables and code of the codecs in use. */
static double codecs_bytes(const tw_train_options_t *o)
{
    const tw_train_codecs_t *codecs = &o->codecs;
    double weights = tw_train_is_rounded(&codecs->weights) ? 5e5 : 0.0;
    double gradients = tw_train_is_rounded(&codecs->gradients) ? 3e5 : 0.0;
    double messages = fmax(messages_bytes(&codecs->weights), messages_bytes(&codecs->gradients));
    return weights + gradients + messages + (tw_quant_form(&codecs->delta) == TW_QUANT_CHANGE ? 4e5 : 0.0);
}

/* ---- memory for data in files -------------------------------------------------------------------------- */

/** Return the bytes of masters and moments in memory. If they are in files, only the updated unit and the
 *  next one count. With Muon, the units whose momenta are being exchanged count, too. */
static double optimizer_bytes(const given_t *given)
{
    double n_behind = given->options->optimizer == TW_TRAIN_MUON ? TW_ENGINE_MUON_PLACES - 1 : 0;
    double in_use = (2.0 * fmax(given->root, given->block) + n_behind * given->block) / given->whole;
    return (double)given->engine->host[TW_ENGINE_OPTIMIZER] +
           (double)given->engine->files[TW_ENGINE_OPTIMIZER] * fmin(in_use, 1.0);
}

/** Return the bytes of shards and replicas in memory. If they are in files (stage 3 only), only the units
 *  that are being gathered count, and only as far as they exceed the optimizer's state, which is not in use
 *  then. Replicas that deltas update are in use during the update, too. */
static double weights_bytes(const given_t *given)
{
    const tw_train_options_t *o = given->options;
    double here = (double)given->engine->host[TW_ENGINE_WEIGHTS];
    double gathered = fmin((given->root + (double)given->n_slots * given->block) / given->whole, 1.0);
    double updated =
        o->offload_optimizer == TW_TRAIN_NVME && !o->codecs.has_delta ? optimizer_bytes(given) : 0.0;
    return here + fmax((double)given->engine->files[TW_ENGINE_WEIGHTS] * gathered - updated, 0.0);
}

/** Return the bytes of layers' inputs in memory. Of inputs in files, only the layer being copied counts. */
static double inputs_bytes(const given_t *given)
{
    return (double)given->engine->host[TW_ENGINE_INPUTS] +
           (double)given->engine->files[TW_ENGINE_INPUTS] / (double)given->n_layer;
}

/* ---- a rank's memory ----------------------------------------------------------------------------------- */

/** Return the bytes that are offloaded to host memory or files. With a GPU, that is all host memory. */
static double off_device(const given_t *given, const tw_plan_memory_t *memory)
{
    const tw_train_options_t *o = given->options;
    double optimizer = o->offload_optimizer != TW_TRAIN_NONE ? memory->optimizer : 0.0;
    double weights = o->offload_param != TW_TRAIN_NONE ? memory->weights : 0.0;
    double inputs = *o->activation_path || o->cpu_checkpointing ? inputs_bytes(given) : 0.0;
    return given->is_on_gpu ? tw_plan_memory_sum(memory) : optimizer + weights + inputs;
}

static double gpu_bytes(const tw_engine_memory_t *engine)
{
    double bytes = 0.0;
    for (int holding = 0; holding < TW_ENGINE_HOLDING_COUNT; holding++) {
        bytes += (double)engine->gpu[holding];
    }
    return bytes;
}

static tw_plan_memory_t memory_of(const given_t *given, double besides_bytes)
{
    const tw_engine_memory_t *engine = given->engine;
    tw_plan_memory_t memory = {.optimizer = optimizer_bytes(given),
                               .weights = weights_bytes(given),
                               .gradients = (double)engine->host[TW_ENGINE_GRADIENTS],
                               .moving = moving_bytes(given),
                               .activations =
                                   inputs_bytes(given) + (double)engine->host[TW_ENGINE_ACTIVATIONS],
                               .scratch = (double)engine->host[TW_ENGINE_SCRATCH],
                               .chunks = chunks_bytes(given),
                               .besides = codecs_bytes(given->options) + besides_bytes,
                               .gpu = gpu_bytes(engine)};
    memory.off_device = off_device(given, &memory);
    return memory;
}

static tw_status_t memory_of_rank(const tw_train_options_t *o, const tw_model_t *model,
                                  const tw_plan_cluster_t *cluster, int rank, tw_plan_memory_t *out)
{
    const tw_hpz_place_t place = {rank, cluster->n_nodes, cluster->ranks_per_node};
    tw_engine_memory_t engine;
    const given_t given = {.options = o,
                           .engine = &engine,
                           .whole = (double)tw_model_n_params(model),
                           .root = (double)tw_model_unit_get(model, TW_MODEL_ROOT)->n_elems,
                           .block = (double)tw_model_unit_get(model, 1)->n_elems,
                           .n_layer = tw_model_n_units(model) - 1,
                           .n_slots = tw_engine_block_slots(o, model),
                           .is_on_gpu = tw_model_is_on_device(model)};
    TW_TRY(tw_engine_memory_of(o, (tw_model_t *)(uintptr_t)model, &place, cluster->delta_bits, &engine));
    *out = memory_of(&given, cluster->besides_bytes);
    return TW_OK;
}

/** Returns the most that any rank needs: rank 0, or, with Muon, the owner of a layer's largest matrix. */
tw_status_t tw_plan_memory_of(const tw_train_options_t *o, const tw_model_t *model,
                              const tw_plan_cluster_t *cluster, tw_plan_memory_t *out)
{
    int world = cluster->n_nodes * cluster->ranks_per_node;
    int n_owners = o->optimizer == TW_TRAIN_MUON ? (int)tw_model_unit_get(model, 1)->n_tensors : 1;
    TW_TRY(memory_of_rank(o, model, cluster, 0, out));
    for (int rank = 1; rank < n_owners && rank < world; rank++) {
        tw_plan_memory_t memory;
        TW_TRY(memory_of_rank(o, model, cluster, rank, &memory));
        *out = tw_plan_memory_sum(&memory) > tw_plan_memory_sum(out) ? memory : *out;
    }
    return TW_OK;
}

double tw_plan_sampling_bytes(const tw_train_options_t *o, const tw_model_t *model)
{
    double whole = o->stage == 3 ? weight_bytes(o) * (double)tw_model_n_params(model) : 0.0;
    return o->sample_steps > 0 ? whole + (double)tw_engine_sample_bytes(o, model) : 0.0;
}
