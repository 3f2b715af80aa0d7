/* Resolves values that depend on several keys and on the job. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "trainer/config/state.h"
#include "trainer/config/table.h"
#include "trainer/model/family.h"

static void config_follow(tw_train_config_t *config, int64_t *member, int64_t value)
{
    if (*member != value) {
        *member = value;
        tw_train_note_follows(config, member);
    }
}

/** Format a number for an error. 0 means that the user gave none, so it becomes "(any)". */
static const char *number_or_any(int64_t number, char text[24])
{
    snprintf(text, 24, "%lld", (long long)number);
    return number > 0 ? text : "(any)";
}

static tw_status_t batch_error(const tw_train_options_t *o, int world)
{
    char micro[24], accumulation[24];
    return tw_fail(
        TW_ERR_CONFIG,
        "train_batch_size %lld is not train_micro_batch_size_per_gpu %s x gradient_accumulation_steps "
        "%s x %d ranks",
        (long long)o->batch, number_or_any(o->micro_batch, micro),
        number_or_any(o->accumulation, accumulation), world);
}

/** Return the number of sequences of a step, or SIZE_MAX if it overflows. */
static size_t batch_of(int64_t micro, int64_t accumulation, int64_t world)
{
    return tw_size_mul((size_t)micro, tw_size_mul((size_t)accumulation, (size_t)world));
}

/** Check that the batch is not larger than the maximum of train_batch_size. */
static tw_status_t check_batch(int64_t micro, int64_t accumulation, int64_t world)
{
    const double most = tw_train_options_table.fields[tw_train_field_of("train_batch_size")].max;
    if ((double)batch_of(micro, accumulation, world) <= most) {
        return TW_OK;
    }
    return tw_fail(
        TW_ERR_CONFIG,
        "train_micro_batch_size_per_gpu %lld x gradient_accumulation_steps %lld x %lld ranks is more "
        "than a train_batch_size of %.15g",
        (long long)micro, (long long)accumulation, (long long)world, most);
}

/** Resolve batch = micro * accumulation * ranks. Any two of the first three give the third. Otherwise a
 *  missing accumulation is 1, and a missing micro follows from the batch, or is 1 without a batch. */
static tw_status_t resolve_batch(tw_train_config_t *config, int64_t world)
{
    tw_train_options_t *o = &config->options;
    int64_t micro = o->micro_batch, accumulation = o->accumulation;
    if (o->batch > 0) {
        if (micro > 0 && accumulation == 0) {
            accumulation = o->batch / (micro * world);
        } else if (micro == 0) {
            accumulation = accumulation > 0 ? accumulation : 1;
            micro = o->batch / (accumulation * world);
        }
    }
    micro = micro > 0 || o->batch > 0 ? micro : 1;
    accumulation = accumulation > 0 || o->batch > 0 ? accumulation : 1;
    if (o->batch > 0 &&
        (micro < 1 || accumulation < 1 || batch_of(micro, accumulation, world) != (size_t)o->batch)) {
        return batch_error(o, (int)world);
    }
    TW_TRY(check_batch(micro, accumulation, world));
    config_follow(config, &o->micro_batch, micro);
    config_follow(config, &o->accumulation, accumulation);
    config_follow(config, &o->batch, micro * accumulation * world);
    return TW_OK;
}

/** Turn recompute on if layers' inputs are offloaded, since no other activations are kept then. */
static void resolve_recompute(tw_train_config_t *config)
{
    tw_train_options_t *o = &config->options;
    if (!o->recompute && (o->cpu_checkpointing || *o->activation_path)) {
        o->recompute = 1;
        tw_train_note_follows(config, &o->recompute);
    }
}

/** Make the warm-up logarithmic, as DeepSpeed does, if the file has its scheduler without a warmup_type. */
static void resolve_warmup(tw_train_config_t *config)
{
    tw_train_options_t *o = &config->options;
    int is_said = tw_train_is_said(config, "scheduler.params.warmup_type");
    int is_theirs = o->schedule == TW_TRAIN_WARMUP || o->schedule == TW_TRAIN_WARMUP_DECAY ||
                    o->schedule == TW_TRAIN_WARMUP_COSINE;
    if (config->origins[tw_train_field_of("scheduler.type")] == TW_TRAIN_FROM_FILE && is_theirs && !is_said) {
        o->warmup_type = TW_TRAIN_WARMUP_LOG;
        tw_train_note_follows(config, &o->warmup_type);
    }
}

static tw_status_t resolve_hpz(tw_train_config_t *config, int world, int n_nodes)
{
    tw_train_options_t *o = &config->options;
    int delta = o->codecs.has_delta;
    TW_FAIL_IF(o->hpz_size > 1 && o->hpz_size * n_nodes != world, TW_ERR_CONFIG,
               "zero_optimization.zero_hpz_partition_size is %lld, but %d ranks are on %d nodes: it is the "
               "number of ranks of a node here",
               (long long)o->hpz_size, world, n_nodes);
    if (o->hpz == TW_TRAIN_HPZ_OFF && (o->hpz_size > 1 || delta)) {
        return tw_train_refuse(
            "thinwire.hpz is off, but zero_hpz_partition_size or thinwire.weights need it");
    }
    int on = o->hpz == TW_TRAIN_HPZ_ON || o->hpz_size > 1 || delta;
    if (on && o->stage != 3) {
        return tw_train_refuse("hpZ is for zero_optimization.stage 3");
    }
    if (o->hpz == TW_TRAIN_HPZ_AUTO) {
        o->hpz = on ? TW_TRAIN_HPZ_ON : TW_TRAIN_HPZ_OFF;
        tw_train_note_follows(config, &o->hpz);
    }
    return TW_OK;
}

/** Refuse keys that do not go with replicas in a GPU's memory. codecs.c checks the codec of changes. */
static tw_status_t check_replicas(const tw_train_options_t *o)
{
    const tw_train_refusal_t refusals[] = {
        {o->device != TW_TRAIN_DEVICE_CUDA, "thinwire.replicas is device: that is for thinwire.device cuda"},
        {o->hpz != TW_TRAIN_HPZ_ON, "thinwire.replicas is device, but there are none: they come with "
                                    "zero_hpz_partition_size, thinwire.hpz or thinwire.weights=delta"},
        {o->offload_param != TW_TRAIN_NONE,
         "thinwire.replicas is device, but offload_param moves them off it: leave one of them out"},
    };
    return o->replicas == TW_TRAIN_REPLICAS_DEVICE ? tw_train_refuse_any(TW_TRAIN_LIST(refusals)) : TW_OK;
}

/** Refuse algorithms and features that do not exist here. adam_w_mode matters for Adam only. */
static tw_status_t check_features(const tw_train_options_t *o)
{
    const tw_train_refusal_t refusals[] = {
        {o->optimizer == TW_TRAIN_ADAM && !o->adam_w_mode && o->weight_decay > 0,
         "optimizer.params.adam_w_mode is false: that is Adam with weight_decay in the gradient, which is "
         "not here; leave it out to decay weights themselves, as AdamW does, or make weight_decay 0, where "
         "both are the same"},
        {!o->bias_correction,
         "optimizer.params.bias_correction is false: moments are corrected here; leave it out"},
        {o->amsgrad, "optimizer.params.amsgrad is true: AMSGrad is not here; leave it out for AdamW"},
        {o->fp16, "fp16.enabled is true: fp16 needs loss scaling, which is not here; make it false to train "
                  "in bf16, or in fp32 with bf16.enabled false"},
        {!o->bf16 && o->products == TW_TRAIN_PRODUCTS_BF16,
         "bf16.enabled is false, but thinwire.products is bf16: products of fp32 weights are fp32"},
    };
    return tw_train_refuse_any(TW_TRAIN_LIST(refusals));
}

/** Resolve communication_data_type. fp32_allreduce is another name for its value fp32. By default gradients
 *  are sent in the type of the weights. */
static tw_status_t resolve_communication(tw_train_config_t *config)
{
    tw_train_options_t *o = &config->options;
    int is_said = tw_train_is_said(config, "communication_data_type");
    int is_fp32 = o->fp32_allreduce || (!o->bf16 && !is_said);
    if (!is_fp32 || o->communication == TW_TRAIN_COMMUNICATION_FP32) {
        return TW_OK;
    }
    if (is_said) {
        return tw_train_refuse(
            "fp32_allreduce is true, but communication_data_type is bf16: leave one of them out");
    }
    o->communication = TW_TRAIN_COMMUNICATION_FP32;
    tw_train_note_follows(config, &o->communication);
    return TW_OK;
}

/** Refuse keys that the model's family does not have. The family may be that of the pretrained weights. */
static tw_status_t config_check_model(const tw_train_options_t *o)
{
    const tw_model_family_row_t *family = tw_model_family_get((tw_model_family_t)o->family);
    const struct {
        const char *key;
        int is_asked, may_be;
    } keys[] = {{"model.sliding_window", o->window > 0, family->has_window},
                {"model.attention_bias", o->attention_bias, family->may_have_biases},
                {"model.max_window_layers", o->window_from_layer > 0, family->has_first_window}};
    if (o->n_params > 0 && family->kind != TW_MODEL_KIND_GPT2 && !*o->preset) {
        return tw_train_refuse("model.n_params makes the shape of a GPT-2; leave it or model.family out");
    }
    for (size_t i = 0; family->kind == TW_MODEL_KIND_LLAMA && i < sizeof(keys) / sizeof(keys[0]); i++) {
        TW_FAIL_IF(keys[i].is_asked && !keys[i].may_be, TW_ERR_CONFIG,
                   "config: %s is not there in model.family %s", keys[i].key, family->name);
    }
    return TW_OK;
}

static tw_status_t check_places(const tw_train_options_t *o)
{
    const tw_train_refusal_t refusals[] = {
        {o->offload_param != TW_TRAIN_NONE && o->stage != 3,
         "offload_param is for zero_optimization.stage 3"},
        {o->offload_param == TW_TRAIN_NVME && !*o->offload_param_path,
         "offload_param.device is nvme: nvme_path names no folder"},
        {o->offload_optimizer == TW_TRAIN_NVME && !*o->offload_optimizer_path,
         "offload_optimizer.device is nvme: nvme_path names no folder"},
        {*o->save_model && !*o->checkpoint,
         "thinwire.save_model needs thinwire.checkpoint: the model is made of the last one"},
        {*o->save_best && !*o->checkpoint,
         "thinwire.save_best needs thinwire.checkpoint: the model is made of one"},
        {o->bad_step == TW_TRAIN_BAD_ROLLBACK && !*o->checkpoint,
         "thinwire.bad_step is rollback: it needs thinwire.checkpoint to go back to"},
        {tw_train_resumes_by_itself(o) && !*o->checkpoint,
         "thinwire.resume is auto: that is from thinwire.checkpoint, which names no folder"},
    };
    return tw_train_refuse_any(TW_TRAIN_LIST(refusals));
}

static tw_status_t resolve_all(tw_train_config_t *config, int world, int n_nodes)
{
    tw_train_options_t *o = &config->options;
    TW_TRY(check_features(o));
    TW_TRY(tw_train_codecs_resolve(config, n_nodes));
    TW_TRY(resolve_communication(config));
    TW_TRY(check_places(o));
    TW_TRY(tw_train_pretrained(config));
    TW_TRY(config_check_model(o));
    TW_TRY(resolve_batch(config, world));
    TW_TRY(resolve_hpz(config, world, n_nodes));
    return check_replicas(o);
}

tw_status_t tw_train_config_resolve(tw_train_config_t *config, int world, int n_nodes)
{
    tw_train_options_t *o = &config->options;
    tw_status_t status = resolve_all(config, world, n_nodes);
    resolve_recompute(config);
    resolve_warmup(config);
    if (status == TW_OK) {
        tw_train_note_without_effect(config);
    }
    if (o->epochs == 0) {
        config_follow(config, &o->total_steps, o->total_steps > 0 ? o->total_steps : o->steps);
    }
    return status;
}

tw_status_t tw_train_config_epochs(tw_train_config_t *config, uint64_t n_sequences)
{
    tw_train_options_t *o = &config->options;
    double steps = ceil(o->epochs * (double)n_sequences / (double)o->batch);
    if (o->epochs == 0) {
        return TW_OK;
    }
    if (steps > 1e15) {
        return tw_train_refuse("thinwire.epochs: more steps than thinwire.steps may be");
    }
    config_follow(config, &o->steps, (int64_t)steps);
    config_follow(config, &o->total_steps, o->total_steps > 0 ? o->total_steps : o->steps);
    return TW_OK;
}
