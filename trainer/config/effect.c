/* Finds keys that the user has set and that have no effect in the chosen mode. */
#include <string.h>

#include "trainer/config/state.h"
#include "trainer/config/table.h"
#include "trainer/model/family.h"

#define MOST_KEYS 32
#define LLAMA_KEYS                                                                                         \
    "model.n_kv_head", "model.head_dim", "model.n_inner", "model.tie_word_embeddings", "model.rope_theta", \
        "model.rope_scaling.rope_type", "model.rope_scaling.factor",                                       \
        "model.rope_scaling.original_max_position_embeddings", "model.rope_scaling.low_freq_factor",       \
        "model.rope_scaling.high_freq_factor", "model.rope_scaling.beta_fast",                             \
        "model.rope_scaling.beta_slow", "model.rope_scaling.attention_factor", "model.sliding_window",     \
        "model.max_window_layers", "model.attention_bias"

/* ---- what kinds of data there are ---------------------------------------------------------------------- */

/* Kinds of data files, as bits. The ends of their names tell which. */
enum { TOKENS = 1, TEXTS = 2 };

static size_t without_weight(const char *entry, size_t length)
{
    size_t n = length;
    while (n > 0 && strchr("0123456789.eE+-", entry[n - 1])) {
        n--;
    }
    return n > 0 && n < length && entry[n - 1] == ':' ? n - 1 : length;
}

/** Return the kinds of files that a name may mean. A pattern such as "train_*" may mean both. */
static int kinds_of_entry(const char *entry, size_t length)
{
    static const char end[] = ".bin";
    size_t known = 0, most = sizeof(end) - 1;
    while (known < length && !strchr("*?]", entry[length - 1 - known])) {
        known++;
    }
    size_t n = known < most ? known : most;
    if (memcmp(entry + length - n, end + most - n, n) != 0 || (n < most && known == length)) {
        return TEXTS;
    }
    return n == most ? TOKENS : TOKENS | TEXTS;
}

static int kinds_of(const char *names)
{
    int kinds = 0;
    while (*names) {
        size_t length = strcspn(names, ",");
        kinds |= kinds_of_entry(names, without_weight(names, length));
        names += length + (names[length] == ',');
    }
    return kinds;
}

/** Return 1 if there may be token files. With token_bytes 1 and no vocabulary, any file is a token file. */
static int has_token_files(const tw_train_options_t *o)
{
    int is_bytes = o->token_bytes == 1 && !*o->vocab && !*o->tokenizer;
    return ((kinds_of(o->data) | kinds_of(o->val_data)) & (is_bytes ? TOKENS | TEXTS : TOKENS)) != 0;
}

/** Return 1 if there may be masks, which only token files have. Text with masks is refused elsewhere. */
static int has_masks(const tw_train_options_t *o)
{
    return ((kinds_of(o->data) | kinds_of(o->val_data)) & TOKENS) != 0;
}

/** Return 1 if there may be .jsonl files, by name or by a pattern. */
static int may_have_chats(const tw_train_options_t *o)
{
    return strstr(o->data, ".jsonl") || strstr(o->val_data, ".jsonl") || strpbrk(o->data, "*?[") ||
           strpbrk(o->val_data, "*?[");
}

/** Return 1 if the cache is used: for encoded text, and for the default data, the King James text. */
static int fills_cache(const tw_train_options_t *o)
{
    int has_vocabulary = *o->vocab || *o->tokenizer;
    return !*o->data || (has_vocabulary && ((kinds_of(o->data) | kinds_of(o->val_data)) & TEXTS) != 0);
}

/* ---- the rules ----------------------------------------------------------------------------------------- */

/* Keys that have no effect if `counts` is 0. */
typedef struct rule {
    int counts;
    const char *reason;          /* why the keys have no effect, for the log */
    const char *keys[MOST_KEYS]; /* NULL-terminated */
} rule_t;

static void note_rules(tw_train_config_t *config, const rule_t *rules, size_t n_rules)
{
    for (size_t i = 0; i < n_rules; i++) {
        for (size_t k = 0; !rules[i].counts && k < MOST_KEYS && rules[i].keys[k]; k++) {
            tw_train_note_key(config, rules[i].keys[k], rules[i].reason);
        }
    }
}

/** Note keys about the network and the weights' memory that have no effect. */
static void note_network(tw_train_config_t *config)
{
    const tw_train_options_t *o = &config->options;
    const tw_train_older_t *older = &o->older;
    int is_rounded = tw_train_is_rounded(&o->codecs.delta), has_delta = o->codecs.has_delta;
    const rule_t rules[] = {
        {older->delta_bits > 0, "thinwire.delta_bits is off", {"thinwire.delta_block"}},
        {is_rounded, "it is for thinwire.weights=delta8, delta4 and delta2", {"thinwire.lag_bound"}},
        {older->delta_bits == 4 || older->delta_bits == 2,
         "it is for thinwire.delta_bits 4 and 2",
         {"thinwire.delta_hadamard"}},
        {is_rounded && o->lag_bound > 0,
         "it is for changes that are rounded, with thinwire.lag_bound",
         {"thinwire.lag_plain"}},
        {has_delta, "there is no delta", {"thinwire.sync_every"}},
        {older->quantized_weights, "zero_quantized_weights is off", {"thinwire.weight_block"}},
        {older->quantized_gradients,
         "zero_quantized_gradients is off",
         {"thinwire.gradient_bits", "thinwire.gradient_block", "thinwire.gradient_hadamard"}},
        {tw_train_is_rounded(&o->codecs.gradients),
         "thinwire.gradients loses nothing",
         {"thinwire.gradient_inner"}},
        {o->stage > 0 || tw_quant_form(&o->codecs.weights) != TW_QUANT_MESSAGE,
         "it is for zero_optimization.stage 1 to 3",
         {"thinwire.weights", "thinwire.lossless_weights"}},
        {o->stage == 3,
         "it is for zero_optimization.stage 3",
         {"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage3_max_live_parameters"}},
        {o->stage == 1 || o->stage == 2 || has_delta,
         "it is for stages 1 and 2, and for delta",
         {"zero_optimization.allgather_bucket_size"}},
        {o->stage < 3 || o->hpz == TW_TRAIN_HPZ_ON,
         "no two ranks hold the same weights",
         {"thinwire.check_every"}},
        {o->stage == 3 && !has_delta && *o->groups,
         "it is for zero_optimization.stage 3 without a delta, with thinwire.groups",
         {"thinwire.keep_frozen"}},
        {o->offload_optimizer == TW_TRAIN_NVME,
         "offload_optimizer.device is not nvme",
         {"zero_optimization.offload_optimizer.nvme_path"}},
        {o->offload_param == TW_TRAIN_NVME,
         "offload_param.device is not nvme",
         {"zero_optimization.offload_param.nvme_path"}},
        {!*o->activation_path,
         "thinwire.activation_path puts layers' inputs into a file",
         {"activation_checkpointing.cpu_checkpointing"}},
    };
    note_rules(config, TW_TRAIN_LIST(rules));
}

static void note_schedule(tw_train_config_t *config)
{
    const tw_train_options_t *o = &config->options;
    int schedule = o->schedule, is_wsd = schedule == TW_TRAIN_WSD,
        is_cosine = schedule == TW_TRAIN_WARMUP_COSINE;
    const rule_t rules[] = {
        {schedule != TW_TRAIN_CONSTANT,
         "scheduler.type is none",
         {"scheduler.params.warmup_num_steps", "scheduler.params.warmup_type"}},
        {schedule == TW_TRAIN_WARMUP || schedule == TW_TRAIN_WARMUP_DECAY,
         "WarmupLR and WarmupDecayLR have it",
         {"scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr"}},
        {is_cosine,
         "WarmupCosineLR has it",
         {"scheduler.params.warmup_min_ratio", "scheduler.params.cos_min_ratio"}},
        {is_cosine || is_wsd || schedule == TW_TRAIN_WARMUP_DECAY,
         "WarmupDecayLR, WarmupCosineLR and WSD have it",
         {"scheduler.params.total_num_steps"}},
        {is_wsd,
         "WSD has it",
         {"scheduler.params.decay_num_steps", "scheduler.params.decay_type",
          "scheduler.params.decay_min_ratio"}},
        {o->optimizer == TW_TRAIN_MUON,
         "optimizer.type is not Muon",
         {"optimizer.params.muon_lr", "optimizer.params.momentum"}},
    };
    note_rules(config, TW_TRAIN_LIST(rules));
}

/** Note keys about how the run goes and what it saves that have no effect. */
static void note_run(tw_train_config_t *config)
{
    const tw_train_options_t *o = &config->options;
    const rule_t rules[] = {
        {*o->checkpoint != '\0',
         "no thinwire.checkpoint is given",
         {"thinwire.checkpoint_every", "thinwire.checkpoint_minutes", "thinwire.checkpoint_keep"}},
        {o->epochs == 0, "thinwire.epochs is given", {"thinwire.steps"}},
        {o->loss_z > 0 || o->norm_z > 0, "thinwire.loss_z and norm_z are 0", {"thinwire.z_window"}},
        {o->bad_step != TW_TRAIN_BAD_STOP, "thinwire.bad_step is stop", {"thinwire.bad_steps_most"}},
        {o->val_sequences > 0, "thinwire.val_sequences is 0", {"thinwire.save_best", "thinwire.val_every"}},
        {o->sample_steps > 0,
         "thinwire.sample_steps is 0",
         {"thinwire.sample_lines", "thinwire.sample_tokens", "thinwire.sample_prompt",
          "thinwire.sample_temperature"}},
        {!*o->resume || tw_train_resumes_by_itself(o),
         "thinwire.resume has the weights",
         {"model.init_from"}},
        {o->products == TW_TRAIN_PRODUCTS_AUTO || o->device == TW_TRAIN_DEVICE_CPU,
         "thinwire.device is cuda",
         {"thinwire.products"}},
    };
    note_rules(config, TW_TRAIN_LIST(rules));
}

static void note_data(tw_train_config_t *config)
{
    const tw_train_options_t *o = &config->options;
    const rule_t rules[] = {
        {!*o->val_data, "thinwire.val_data is given", {"thinwire.val_share"}},
        {o->document_token >= 0, "thinwire.document_token is not given", {"thinwire.document_mask"}},
        {has_token_files(o), "no .bin file is given", {"thinwire.token_bytes"}},
        {has_masks(o), "no .bin file is given", {"thinwire.loss_mask"}},
        {may_have_chats(o), "no .jsonl file is given", {"thinwire.chat_style", "thinwire.chat_end"}},
        {fills_cache(o), "no text is encoded", {"thinwire.cache"}},
    };
    note_rules(config, TW_TRAIN_LIST(rules));
}

static void note_model(tw_train_config_t *config)
{
    const tw_train_options_t *o = &config->options;
    int is_llama = tw_model_family_get((tw_model_family_t)o->family)->kind == TW_MODEL_KIND_LLAMA;
    const rule_t rules[] = {
        {!*o->preset,
         "model.preset says it",
         {"model.n_params", "model.n_layer", "model.n_head", "model.n_embd", "model.n_positions",
          "model.vocab_size", "model.layer_norm_epsilon", "model.family", LLAMA_KEYS}},
        {is_llama || *o->preset, "model.family is gpt2", {LLAMA_KEYS}},
        {o->n_params == 0,
         "it follows from model.n_params",
         {"model.n_layer", "model.n_head", "model.n_embd", "model.layer_norm_epsilon"}},
    };
    note_rules(config, TW_TRAIN_LIST(rules));
}

void tw_train_note_without_effect(tw_train_config_t *config)
{
    note_network(config);
    note_schedule(config);
    note_run(config);
    note_data(config);
    note_model(config);
}
