/* Memory of a rank, by the engine's arithmetic. */
#include <math.h>
#include <stdlib.h>

#include "trainer/engine/engine.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/plan.h"

double tw_plan_states_bytes(double n_params, int stage, int n_ranks)
{
    double ranks = n_ranks;
    double weights = 2.0 * n_params / (stage >= 3 ? ranks : 1.0);
    double gradients = 2.0 * n_params / (stage >= 2 ? ranks : 1.0);
    double optimizer = 12.0 * n_params / (stage >= 1 ? ranks : 1.0);
    return weights + gradients + optimizer;
}

double tw_plan_memory_sum(const tw_plan_memory_t *m)
{
    return m->optimizer + m->weights + m->gradients + m->moving + m->activations + m->scratch + m->besides;
}

/* Elements of all units on rank (0, 0), which has the most of any: of the whole, of a part, of a node's
 * replica. */
typedef struct totals {
    double whole, part, secondary, root, block;
    double frozen, frozen_part; /* of them, in frozen tensors */
} totals_t;

static tw_status_t count_frozen(const tw_train_options_t *o, const tw_model_t *model,
                                const tw_hpz_layout_t *layout, totals_t *totals)
{
    size_t n;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n);
    tw_train_group_t group;
    for (size_t t = 0; t < n && *o->groups; t++) {
        TW_TRY(tw_train_group_of(o->groups, tensors[t].name, &group));
        totals->frozen += group.is_frozen ? (double)tensors[t].n_elems : 0.0;
        totals->frozen_part += group.is_frozen ? (double)tw_hpz_primary_piece(layout, t, 0, 0).n_elems : 0.0;
    }
    return TW_OK;
}

static totals_t count(const tw_hpz_layout_t *layout)
{
    totals_t totals = {0};
    for (int unit = 0; unit < tw_hpz_layout_units(layout); unit++) {
        totals.whole += (double)tw_hpz_full_elems(layout, unit);
        totals.part += (double)tw_hpz_primary_elems(layout, unit, 0, 0);
        totals.secondary += (double)tw_hpz_secondary_elems(layout, unit, 0);
    }
    totals.root = (double)tw_hpz_full_elems(layout, 0);
    totals.block = (double)tw_hpz_full_elems(layout, 1);
    return totals;
}

static int has_delta(const tw_train_options_t *o)
{
    return o->delta_bits > 0 || o->delta_lossless;
}

static int has_replicas(const tw_train_options_t *o)
{
    return o->hpz == TW_TRAIN_HPZ_ON;
}

/* What a weight takes. */
static double weight_bytes(const tw_train_options_t *o)
{
    return o->bf16 ? 2.0 : 4.0;
}

/* What a weight's optimizer takes: moments, and a master where that is not the weight itself. */
static double optimizer_bytes(const tw_train_options_t *o)
{
    return o->bf16 ? 12.0 : 8.0;
}

static double weights_bytes(const tw_train_options_t *o, const totals_t *t)
{
    double bytes = weight_bytes(o);
    double whole = o->stage < 3 ? bytes * t->whole : 0.0;
    double part = o->stage > 0 && !has_delta(o) ? bytes * t->part : 0.0;
    double replica = has_replicas(o) ? bytes * t->secondary : 0.0;
    double changes = o->delta_lossless ? t->secondary : 0.0; /* a byte of the previous change */
    double kept = o->stage == 3 && !has_delta(o) && o->keep_frozen ? bytes * t->frozen : 0.0;
    return whole + part + replica + changes + kept;
}

/* What an element of a gradient takes on its way. */
static double gradient_bytes(const tw_train_options_t *o)
{
    return o->communication == TW_TRAIN_COMMUNICATION_FP32 ? 4.0 : 2.0;
}

static double gradients_bytes(const tw_train_options_t *o, const totals_t *t)
{
    double whole = o->stage < 2 ? gradient_bytes(o) * t->whole : 0.0;
    double part = o->stage > 0 ? gradient_bytes(o) * t->part : 0.0;
    double sums = o->accumulation == 1 ? 4.0 * (t->root + t->block) : 4.0 * t->whole;
    return whole + part + sums;
}

/* Own weights whose replicas are followed at a time: a bucket's, of all nodes, but a step of slices at
 * least. */
static double syncing_elems(const tw_train_options_t *o, const totals_t *t, const tw_plan_cluster_t *cluster)
{
    double ranks = cluster->n_nodes * cluster->ranks_per_node, unit = fmax(t->root, t->block) / ranks;
    double least = fmin(unit, TW_HPZ_SLICE_ELEMS);
    return fmin(t->part, fmax(least, (double)o->allgather_bucket / cluster->n_nodes));
}

/* As many syncs under way as a bucket allows: the new weights, the own message, the others'. A lossless
 * change's message has room for as much as the weights, which the first weights have been written to. */
static double sync_bytes(const tw_train_options_t *o, const totals_t *t, const tw_plan_cluster_t *cluster)
{
    double bytes = (o->delta_lossless ? cluster->delta_bits : (double)o->delta_bits * 1.03) / 8.0;
    double own = o->delta_lossless ? 2.0 : bytes, others = (cluster->n_nodes - 1) * bytes;
    return has_delta(o) ? syncing_elems(o, t, cluster) * (2.0 + own + others) : 0.0;
}

/* The first weights go round whole, before there is anything else on its way. */
static double first_sync_bytes(const tw_train_options_t *o, const totals_t *t,
                               const tw_plan_cluster_t *cluster)
{
    return has_delta(o) ? syncing_elems(o, t, cluster) * (2.0 + 2.0 * cluster->n_nodes) : 0.0;
}

/* Most scratch memory of operations that wait for the link: half of a communicator's, unless TW_COLL_SCRATCH
 * says otherwise. */
#define MOST_CHUNKS_BYTES 16777216.0

/* Chunks on their way, as multiples of a layer's gradients: what was measured in bf16, on layers of 0.4 to
 * 4.8 MB. In stage 1 all units' reductions may wait for the link. With replicas the node's communicator has
 * its own. */
static double chunks_bytes(const tw_train_options_t *o, const totals_t *t, size_t n_layer)
{
    const double layers[] = {6.0, (double)n_layer + 1.0, 4.0, 3.0};
    double chunks = layers[o->stage] * gradient_bytes(o) * t->block;
    double in_node = has_replicas(o) ? weight_bytes(o) / 2.0 * t->block : 0.0;
    return fmin(chunks, MOST_CHUNKS_BYTES) + fmin(in_node, MOST_CHUNKS_BYTES);
}

/* Places that gradients leave from: the root's and two blocks', where a bucket has room for them; what it has
 * no room for goes in slices, two at a time. */
static double reducing_bytes(const tw_train_options_t *o, const totals_t *t, const tw_plan_cluster_t *cluster)
{
    int n_ranks = cluster->n_nodes * cluster->ranks_per_node;
    double slice = (double)tw_engine_reduce_slice_most(o, n_ranks) * n_ranks;
    double elems = t->root <= slice ? t->root + 2.0 * fmin(t->block, slice) : 2.0 * slice;
    return gradient_bytes(o) * elems;
}

static double moving_bytes(const tw_train_options_t *o, const totals_t *t, const tw_plan_cluster_t *cluster,
                           size_t n_layer)
{
    double slots = (double)tw_plan_block_slots(o, (size_t)t->root, (size_t)t->block, n_layer);
    double gathered = o->stage == 3 ? weight_bytes(o) * (t->root + slots * t->block) : 0.0;
    double reduced = o->stage >= 2 ? reducing_bytes(o, t, cluster) : 0.0;
    double first = first_sync_bytes(o, t, cluster) - chunks_bytes(o, t, n_layer);
    return gathered + reduced + fmax(sync_bytes(o, t, cluster), first);
}

/* Contexts, tables and code of codecs in use, as measured. */
static double codecs_bytes(const tw_train_options_t *o)
{
    double weights = o->quantized_weights ? 5e5 : 0.0, gradients = o->quantized_gradients ? 3e5 : 0.0;
    double lossless = o->lossless_weights || o->lossless_gradients ? 8e5 : 0.0;
    return weights + gradients + lossless + (o->delta_lossless ? 4e5 : 0.0);
}

/* ---- what is offloaded to files ------------------------------------------------------------------------ */

/* Of the optimizer's state the unit that is updated, and the next. */
static double optimizer_in_use(const tw_train_options_t *o, const totals_t *t)
{
    double bytes = optimizer_bytes(o);
    double all = o->stage > 0 ? bytes * t->part - 8.0 * t->frozen_part : bytes * t->whole - 8.0 * t->frozen;
    double two_units = 2.0 * bytes * fmax(t->root, t->block) * (o->stage > 0 ? t->part / t->whole : 1.0);
    return o->offload_optimizer == TW_TRAIN_NVME ? fmin(all, two_units) : all;
}

/* Of shards and replicas, which only stage 3 offloads, those of the units that are gathered: in the walk,
 * when no optimizer's is in use. Replicas that follow the masters are in use in the update too. */
static double weights_in_use(const tw_train_options_t *o, const totals_t *t, size_t n_layer)
{
    double all = weights_bytes(o, t);
    if (o->offload_param != TW_TRAIN_NVME) {
        return all;
    }
    double slots = (double)tw_plan_block_slots(o, (size_t)t->root, (size_t)t->block, n_layer);
    double gathered = fmin(all, all * (t->root + slots * t->block) / t->whole);
    double updated = o->offload_optimizer == TW_TRAIN_NVME && !has_delta(o) ? optimizer_in_use(o, t) : 0.0;
    return fmax(gathered - updated, 0.0);
}

/* Of layers' inputs, the one that is copied. */
static double inputs_bytes(const tw_train_options_t *o, double x_bytes, size_t n_layer)
{
    return (*o->activation_path ? 1.0 : (double)n_layer) * x_bytes;
}

static int is_on_gpu(const tw_train_options_t *o)
{
    return o->device == TW_TRAIN_DEVICE_CUDA;
}

/* In host memory. With a GPU it has inputs that are kept there, and tokens. */
static double activations_bytes(const tw_train_options_t *o, const tw_model_sizes_t *sizes, size_t n_layer)
{
    double x_bytes = 4.0 * (double)sizes->x_elems;
    double n_near = *o->activation_path || o->cpu_checkpointing ? 3.0 : o->recompute ? 2.0 : 1.0;
    size_t n_saved = o->recompute ? 1 : n_layer;
    double tokens = (o->document_mask ? 12.0 : 8.0) * (double)(o->micro_batch * o->sequence);
    if (is_on_gpu(o)) {
        return (n_near == 3.0 ? inputs_bytes(o, x_bytes, n_layer) : 0.0) + tokens;
    }
    return n_near * x_bytes + inputs_bytes(o, x_bytes, n_layer) + (double)(n_saved * sizes->saved_bytes) +
           tokens;
}

double tw_plan_sampling_bytes(const tw_train_options_t *o, const tw_model_t *model)
{
    double whole = o->stage == 3 ? weight_bytes(o) * (double)tw_model_n_params(model) : 0.0;
    return o->sample_steps > 0 ? whole + (double)tw_engine_sample_bytes(o, model) : 0.0;
}

/* With a GPU, where gradients come to: the root's, and those of two blocks. */
static double scratch_bytes(const tw_train_options_t *o, const totals_t *t, const tw_model_sizes_t *sizes)
{
    return is_on_gpu(o) ? 4.0 * (t->root + 2.0 * t->block) : (double)sizes->scratch_bytes;
}

/* Whose momenta are under way at a time. */
#define MUON_LAYERS 3.0

/* The largest matrix of a layer whole, in fp32, and what it is made orthogonal in; of some layers' momenta
 * own pieces, and from stage 1 on what is sent here. */
static double muon_bytes(const tw_train_options_t *o, const tw_model_t *model,
                         const tw_plan_cluster_t *cluster)
{
    size_t n;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n);
    double largest = 0.0, n_ranks = cluster->n_nodes * cluster->ranks_per_node, layer = 0.0, scratch = 0.0;
    double n_layer = (double)tw_model_n_units(model) - 1.0;
    for (size_t t = 0; t < n && o->optimizer == TW_TRAIN_MUON; t++) {
        int is_matrix = tensors[t].unit == 1 && tensors[t].n_dims == 2;
        double elems = is_matrix ? (double)tensors[t].n_elems : 0.0;
        size_t work = is_matrix ? tw_model_orthogonal_elems(tensors[t].shape[0], tensors[t].shape[1]) : 0;
        layer += elems;
        largest = fmax(largest, elems);
        scratch = fmax(scratch, elems + (double)work);
    }
    double sent = o->stage > 0 ? layer / n_ranks : layer;
    double owned = o->stage > 0 ? fmax(largest, layer / n_ranks) : 0.0;
    return 4.0 * scratch + fmin(MUON_LAYERS, n_layer) * 2.0 * (sent + owned);
}

/* What is offloaded to host memory, and what is mapped of files, is not on the device. With a GPU all that is
 * counted here lies in host memory. */
static double off_device(const tw_train_options_t *o, const tw_plan_memory_t *memory,
                         const tw_model_sizes_t *sizes, size_t n_layer)
{
    double optimizer = o->offload_optimizer != TW_TRAIN_NONE ? memory->optimizer : 0.0;
    double weights = o->offload_param != TW_TRAIN_NONE ? memory->weights : 0.0;
    double inputs = *o->activation_path || o->cpu_checkpointing
                        ? inputs_bytes(o, 4.0 * (double)sizes->x_elems, n_layer)
                        : 0.0;
    return is_on_gpu(o) ? tw_plan_memory_sum(memory) : optimizer + weights + inputs;
}

tw_status_t tw_plan_memory_of(const tw_train_options_t *o, const tw_model_t *model,
                              const tw_plan_cluster_t *cluster, tw_plan_memory_t *out)
{
    tw_hpz_layout_t *layout;
    TW_TRY(tw_plan_layout(model, cluster, &layout));
    totals_t totals = count(layout);
    tw_status_t status = count_frozen(o, model, layout, &totals);
    tw_hpz_layout_destroy(layout);
    TW_TRY(status);
    size_t n_layer = tw_model_n_units(model) - 1;
    tw_model_sizes_t sizes = tw_model_sizes_get(model, (size_t)o->micro_batch, (size_t)o->sequence);
    *out = (tw_plan_memory_t){.optimizer = optimizer_in_use(o, &totals),
                              .weights = weights_in_use(o, &totals, n_layer),
                              .gradients = gradients_bytes(o, &totals),
                              .moving = moving_bytes(o, &totals, cluster, n_layer),
                              .activations = activations_bytes(o, &sizes, n_layer),
                              .scratch = scratch_bytes(o, &totals, &sizes) +
                                         tw_plan_sampling_bytes(o, model) + muon_bytes(o, model, cluster),
                              .besides = chunks_bytes(o, &totals, n_layer) + codecs_bytes(o) +
                                         cluster->besides_bytes};
    out->off_device = off_device(o, out, &sizes, n_layer);
    return TW_OK;
}
