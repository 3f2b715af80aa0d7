/** A run's configuration: a JSON file with DeepSpeed's keys, Thinwire's keys under "thinwire", and the model
 *  under "model".
 *
 *  One table (options.c) has each key's default, range and meaning. A key's name is its dotted path, such as
 *  "zero_optimization.stage". DeepSpeed's keys that have no effect here are accepted, and one line says why
 *  (ignored.c). Any other key is an error that names the nearest known key. The value "auto" selects the
 *  default, and one line says which value that is.
 *
 *  Files: options.c the table; ignored.c DeepSpeed's other keys; read.c file and command line; notes.c
 *  messages about keys; resolve.c what depends on several keys and on the job; codecs.c codecs of weights and
 *  gradients; compare.c keys that ranks and runs compare; effect.c keys without effect in the chosen mode;
 *  pretrained.c, pretrained_llama.c the shape of a pretrained model. */
#pragma once

#include "core/core.h"
#include "quant/quant.h"
#include "trainer/lines.h"

TW_C_BEGIN

typedef enum tw_train_schedule {
    TW_TRAIN_CONSTANT,
    TW_TRAIN_WARMUP,
    TW_TRAIN_WARMUP_DECAY,
    TW_TRAIN_WARMUP_COSINE,
    TW_TRAIN_WSD
} tw_train_schedule_t;

typedef enum tw_train_optimizer { TW_TRAIN_ADAMW, TW_TRAIN_ADAM, TW_TRAIN_MUON } tw_train_optimizer_t;

/** What to do at a step whose loss or gradient norm is out of bounds. */
typedef enum tw_train_bad { TW_TRAIN_BAD_STOP, TW_TRAIN_BAD_SKIP, TW_TRAIN_BAD_ROLLBACK } tw_train_bad_t;

typedef enum tw_train_place { TW_TRAIN_NONE, TW_TRAIN_CPU, TW_TRAIN_NVME } tw_train_place_t;
/** The processor that computes the model. */
typedef enum tw_train_device { TW_TRAIN_DEVICE_CPU, TW_TRAIN_DEVICE_CUDA } tw_train_device_t;
/** The memory that holds the replicas of the weights. */
typedef enum tw_train_replicas { TW_TRAIN_REPLICAS_HOST, TW_TRAIN_REPLICAS_DEVICE } tw_train_replicas_t;
typedef enum tw_train_products {
    TW_TRAIN_PRODUCTS_AUTO,
    TW_TRAIN_PRODUCTS_FP32,
    TW_TRAIN_PRODUCTS_BF16
} tw_train_products_t;
/** The type to which layers' matrices are rounded for computing. */
typedef enum tw_train_gather { TW_TRAIN_GATHER_BF16, TW_TRAIN_GATHER_FP8 } tw_train_gather_t;
typedef enum tw_train_warmup_type { TW_TRAIN_WARMUP_LINEAR, TW_TRAIN_WARMUP_LOG } tw_train_warmup_type_t;
/** The type in which gradients are sent if they have no codec. */
typedef enum tw_train_communication {
    TW_TRAIN_COMMUNICATION_BF16,
    TW_TRAIN_COMMUNICATION_FP32
} tw_train_communication_t;
typedef enum tw_train_hpz { TW_TRAIN_HPZ_AUTO, TW_TRAIN_HPZ_OFF, TW_TRAIN_HPZ_ON } tw_train_hpz_t;

/** Older keys, which thinwire.weights and thinwire.gradients replace. Read by codecs.c and effect.c only. */
typedef struct tw_train_older {
    int quantized_weights, quantized_gradients, lossless_weights, lossless_gradients;
    int64_t delta_bits, delta_block, weight_block, gradient_bits, gradient_block;
    int delta_lossless, delta_hadamard, gradient_hadamard;
} tw_train_older_t;

/** The codecs of weights and gradients. A codec whose members are all 0 is plain. */
typedef struct tw_train_codecs {
    tw_quant_codec_t weights;          /**< of weights that are gathered */
    tw_quant_codec_t gradients, inner; /**< of gradients between nodes, and inside a node */
    int has_delta;                     /**< 1: changes of the weights update the replicas */
    /** codec of the weights' changes: TW_QUANT_DELTA, or a block codec, which rounds them */
    tw_quant_codec_t delta;
} tw_train_codecs_t;
/** Return the codec as an operation's argument: NULL if it is plain. */
const tw_quant_codec_t *tw_train_codec(const tw_quant_codec_t *codec);
/** Return 1 if a codec is lossy. */
int tw_train_is_rounded(const tw_quant_codec_t *codec);

/** The value of every key; the table in options.c has their meanings. Counts of elements and steps are
 *  int64_t, flags are int. */
typedef struct tw_train_options {
    /* keys of DeepSpeed */
    int64_t batch, micro_batch, accumulation; /* sequences; 0: follows from the others */
    double clip;
    int64_t steps_per_print;
    int wall_clock_breakdown;
    int bf16, fp16;
    int communication; /* tw_train_communication_t */
    int fp32_allreduce;
    int optimizer; /* tw_train_optimizer_t */
    double lr, beta1, beta2, eps, weight_decay;
    int adam_w_mode, bias_correction, amsgrad;
    double muon_lr, momentum;
    int schedule; /* tw_train_schedule_t */
    double warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
    int64_t warmup_steps, total_steps;
    int warmup_type; /* tw_train_warmup_type_t */
    int64_t decay_steps;
    int decay_type;
    double decay_min_ratio;
    char *groups;
    int keep_frozen;
    int64_t stage, hpz_size;
    int64_t reduce_bucket, allgather_bucket, prefetch_elems, max_live_elems;
    int overlap;
    int offload_optimizer, offload_param; /* tw_train_place_t */
    char *offload_optimizer_path, *offload_param_path;
    int cpu_checkpointing;
    /* keys under "thinwire" */
    int64_t steps, seed, sequence;
    char *data, *val_data, *vocab, *merges, *tokenizer, *cache;
    int loss_mask;
    int chat_style; /* tw_data_style_t */
    char *chat_end;
    int64_t token_bytes;
    double val_share;
    int64_t val_every, val_sequences;
    int64_t sample_steps, sample_lines, sample_tokens;
    char *sample_prompt;
    double sample_temperature;
    int64_t document_token;
    int document_mask;
    double epochs;
    int hpz;                   /* tw_train_hpz_t */
    int replicas;              /* tw_train_replicas_t */
    char *weights, *gradients; /* texts of codecs; `codecs` is parsed from them */
    tw_train_older_t older;
    double lag_bound;
    int lag_plain;
    int64_t sync_every, check_every;
    int gradient_inner;
    int recompute, check_memory;
    int device;   /* tw_train_device_t */
    int products; /* tw_train_products_t */
    int64_t threads;
    char *activation_path;
    size_t device_bytes;
    double loss_jump, loss_z, norm_z;
    int64_t z_window, bad_steps_most;
    int bad_step; /* tw_train_bad_t */
    char *checkpoint, *resume, *save_model, *save_best;
    double peak_flops, link_bps;
    int64_t checkpoint_every, checkpoint_keep;
    double checkpoint_minutes;
    /* keys under "model" */
    char *preset;
    int64_t n_params, n_layer, n_head, n_embd, n_positions, vocab_size;
    double layer_norm_epsilon;
    int family; /* tw_model_family_t */
    int64_t n_kv_head, head_dim, n_inner;
    int tied;
    double rope_theta;
    int rope_type; /* tw_model_rope_type_t */
    double rope_factor, rope_low, rope_high, rope_fast, rope_slow, rope_attention;
    int64_t rope_positions;
    int64_t window, window_from_layer;
    int attention_bias;
    int gather; /* tw_train_gather_t */
    char *init_from;
    /* set by tw_train_config_resolve from `weights` and `gradients` */
    tw_train_codecs_t codecs;
} tw_train_options_t;

/** Return 1 if training gives the same bits as with all codecs plain and matrices in bf16. */
int tw_train_loses_nothing(const tw_train_options_t *options);

typedef struct tw_train_config tw_train_config_t;

/** Make a configuration from the defaults, then the file at `path` (NULL: none), then `sets` [n_sets], each
 *  "key=value". Later values replace earlier ones. "?key=value" sets a default of the calling program, which
 *  is not reported as the user's. TW_ERR_CONFIG (logged with file and key), TW_ERR_IO, TW_ERR_NO_MEMORY. */
tw_status_t tw_train_config_create(const char *path, const char *const *sets, size_t n_sets,
                                   tw_train_config_t **out);
/** Call tw_train_config_create with a text instead of a file. `name` is the file's name in messages. */
tw_status_t tw_train_config_parse(const char *name, const char *text, size_t text_bytes,
                                  const char *const *sets, size_t n_sets, tw_train_config_t **out);
void tw_train_config_destroy(tw_train_config_t *config);
/** Log what the user should know: keys without effect here, one line for each reason, and the values that
 *  "auto" selects. Call it once in a job, after tw_train_config_resolve. */
void tw_train_config_say(const tw_train_config_t *config);
const tw_train_options_t *tw_train_config_options(const tw_train_config_t *config);

/** Resolve values that depend on several keys and on the job: the three numbers of the batch, codecs, the
 *  schedule's length, hpZ on or off. Call it once, before training. TW_ERR_CONFIG (logged): keys contradict
 *  each other. */
tw_status_t tw_train_config_resolve(tw_train_config_t *config, int world, int n_nodes);

/** Print every key in force, its value, the source of the value, and its meaning. */
void tw_train_config_print(const tw_train_config_t *config, FILE *out);

/** Set thinwire.steps from thinwire.epochs, when the number of sequences of an epoch is known. Does nothing
 *  if thinwire.epochs is not set. TW_ERR_CONFIG (logged): too many steps. */
tw_status_t tw_train_config_epochs(tw_train_config_t *config, uint64_t n_sequences);

/** Add a line for each key that must be equal on all ranks. That is every key except paths and the like,
 *  which may differ between nodes, such as thinwire.data and thinwire.cache. */
void tw_train_config_lines(const tw_train_config_t *config, tw_lines_t *lines);
/** Add a line for each key that changes the result of training. Resuming with another value of one of these
 *  logs a warning. Keys whose values a checkpoint has anyway (the model's, seed, batch) are left out, and so
 *  are keys that change only speed and place. All lossless codecs give the same line. */
void tw_train_config_facts(const tw_train_config_t *config, tw_lines_t *lines);

/** Return 1 if thinwire.resume is "auto": the run resumes from thinwire.checkpoint if it can. */
int tw_train_resumes_by_itself(const tw_train_options_t *options);

/** Settings of thinwire.groups for one tensor. */
typedef struct tw_train_group {
    double lr;     /**< factor of the learning rate; 1: the usual rate */
    double decay;  /**< replaces optimizer.params.weight_decay; -1: does not replace it */
    int is_frozen; /**< 1: the tensor is not trained */
} tw_train_group_t;

/** Get the first entry of thinwire.groups that matches a tensor's name, or the default if none matches.
 *  TW_ERR_CONFIG (logged): an entry is malformed. */
tw_status_t tw_train_group_of(const char *groups, const char *tensor, tw_train_group_t *group);
/** Check all entries. TW_ERR_CONFIG (logged): an entry is malformed, or matches no tensor. */
tw_status_t tw_train_groups_check(const char *groups, const char *const *tensors, size_t n_tensors);

/** Returns the learning rate of a step. Steps count from 1. */
double tw_train_lr(const tw_train_options_t *options, uint64_t step);
/** Returns the peak learning rate, which the warm-up ends at. */
double tw_train_lr_peak(const tw_train_options_t *options);

TW_C_END
