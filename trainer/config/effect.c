/* Keys that somebody has set and that change nothing in the mode that is asked for. */
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

/* ---- when they count ----------------------------------------------------------------------------------- */

static int deltas_are_rounded(const tw_train_options_t *o)
{
    return tw_train_is_rounded(&o->codecs.delta);
}

static int deltas_are_rotated(const tw_train_options_t *o)
{
    return o->older.delta_bits == 4 || o->older.delta_bits == 2;
}

static int has_delta(const tw_train_options_t *o)
{
    return o->codecs.has_delta;
}

static int has_bound(const tw_train_options_t *o)
{
    return deltas_are_rounded(o) && o->lag_bound > 0;
}

/** Of the keys of before: does what they are options of ask for something? */
static int older_delta_is_rounded(const tw_train_options_t *o)
{
    return o->older.delta_bits > 0;
}

static int older_weights_are_rounded(const tw_train_options_t *o)
{
    return o->older.quantized_weights;
}

static int older_gradients_are_rounded(const tw_train_options_t *o)
{
    return o->older.quantized_gradients;
}

static int gradients_are_rounded(const tw_train_options_t *o)
{
    return tw_train_is_rounded(&o->codecs.gradients);
}

static int has_schedule(const tw_train_options_t *o)
{
    return o->schedule != TW_TRAIN_CONSTANT;
}

static int warms_to_a_rate(const tw_train_options_t *o)
{
    return o->schedule == TW_TRAIN_WARMUP || o->schedule == TW_TRAIN_WARMUP_DECAY;
}

static int is_cosine(const tw_train_options_t *o)
{
    return o->schedule == TW_TRAIN_WARMUP_COSINE;
}

static int is_wsd(const tw_train_options_t *o)
{
    return o->schedule == TW_TRAIN_WSD;
}

static int schedule_ends(const tw_train_options_t *o)
{
    return o->schedule == TW_TRAIN_WARMUP_COSINE || o->schedule == TW_TRAIN_WARMUP_DECAY ||
           o->schedule == TW_TRAIN_WSD;
}

static int gathers_layers(const tw_train_options_t *o)
{
    return o->stage == 3;
}

static int fills_buckets(const tw_train_options_t *o)
{
    return o->stage == 1 || o->stage == 2 || has_delta(o);
}

static int has_copies(const tw_train_options_t *o)
{
    return o->stage < 3 || o->hpz == TW_TRAIN_HPZ_ON;
}

static int has_checkpoints(const tw_train_options_t *o)
{
    return *o->checkpoint != '\0';
}

static int shares_text(const tw_train_options_t *o)
{
    return *o->val_data == '\0';
}

static int validates(const tw_train_options_t *o)
{
    return o->val_sequences > 0;
}

static int knows_documents(const tw_train_options_t *o)
{
    return o->document_token >= 0;
}

static int may_keep_frozen(const tw_train_options_t *o)
{
    return o->stage == 3 && !has_delta(o) && *o->groups != '\0';
}

static int is_muon(const tw_train_options_t *o)
{
    return o->optimizer == TW_TRAIN_MUON;
}

static int samples(const tw_train_options_t *o)
{
    return o->sample_steps > 0;
}

static int has_no_preset(const tw_train_options_t *o)
{
    return *o->preset == '\0';
}

static int is_llama_or_preset(const tw_train_options_t *o)
{
    int kind = tw_model_family_get((tw_model_family_t)o->family)->kind;
    return kind == TW_MODEL_KIND_LLAMA || *o->preset != '\0';
}

static int has_a_shape(const tw_train_options_t *o)
{
    return o->n_params == 0;
}

static int optimizer_is_in_files(const tw_train_options_t *o)
{
    return o->offload_optimizer == TW_TRAIN_NVME;
}

static int weights_are_in_files(const tw_train_options_t *o)
{
    return o->offload_param == TW_TRAIN_NVME;
}

static int inputs_are_in_memory(const tw_train_options_t *o)
{
    return *o->activation_path == '\0';
}

static int has_no_epochs(const tw_train_options_t *o)
{
    return o->epochs == 0;
}

static int has_z(const tw_train_options_t *o)
{
    return o->loss_z > 0 || o->norm_z > 0;
}

static int outlives_bad_steps(const tw_train_options_t *o)
{
    return o->bad_step != TW_TRAIN_BAD_STOP;
}

static int begins_anew(const tw_train_options_t *o)
{
    return *o->resume == '\0' || tw_train_resumes_by_itself(o);
}

static int may_pack_weights(const tw_train_options_t *o)
{
    return o->stage > 0 || !o->codecs.weights.lossless;
}

static int may_choose_products(const tw_train_options_t *o)
{
    return o->products == TW_TRAIN_PRODUCTS_AUTO || o->device == TW_TRAIN_DEVICE_CPU;
}

/* What a text of names may name, by how names end. */
enum { TOKENS = 1, TEXTS = 2 };

static size_t without_weight(const char *entry, size_t length)
{
    size_t n = length;
    while (n > 0 && strchr("0123456789.eE+-", entry[n - 1])) {
        n--;
    }
    return n > 0 && n < length && entry[n - 1] == ':' ? n - 1 : length;
}

/** A pattern may leave it open. */
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

/** Tokens of one byte are of text without a vocabulary, too. */
static int has_token_files(const tw_train_options_t *o)
{
    int is_bytes = o->token_bytes == 1 && !*o->vocab && !*o->tokenizer;
    return ((kinds_of(o->data) | kinds_of(o->val_data)) & (is_bytes ? TOKENS | TEXTS : TOKENS)) != 0;
}

/** What is text beside them is refused. */
static int has_masks(const tw_train_options_t *o)
{
    return ((kinds_of(o->data) | kinds_of(o->val_data)) & TOKENS) != 0;
}

/** By name, or a pattern may find some. */
static int may_have_chats(const tw_train_options_t *o)
{
    return strstr(o->data, ".jsonl") || strstr(o->val_data, ".jsonl") || strpbrk(o->data, "*?[") ||
           strpbrk(o->val_data, "*?[");
}

/** The King James text lies there, too. */
static int fills_cache(const tw_train_options_t *o)
{
    int has_vocabulary = *o->vocab || *o->tokenizer;
    return !*o->data || (has_vocabulary && ((kinds_of(o->data) | kinds_of(o->val_data)) & TEXTS) != 0);
}

/* ---- the rules ----------------------------------------------------------------------------------------- */

static const struct {
    const char *keys[MOST_KEYS]; /* NULL-terminated */
    int (*counts)(const tw_train_options_t *options);
    const char *reason;
} rules[] = {
    {{"thinwire.delta_block"}, older_delta_is_rounded, "thinwire.delta_bits is off"},
    {{"thinwire.lag_bound"}, deltas_are_rounded, "it is for thinwire.weights=delta8, delta4 and delta2"},
    {{"thinwire.delta_hadamard"}, deltas_are_rotated, "it is for thinwire.delta_bits 4 and 2"},
    {{"thinwire.lag_plain"}, has_bound, "it is for changes that are rounded, with thinwire.lag_bound"},
    {{"thinwire.sync_every"}, has_delta, "there is no delta"},
    {{"thinwire.weight_block"}, older_weights_are_rounded, "zero_quantized_weights is off"},
    {{"thinwire.gradient_bits", "thinwire.gradient_block", "thinwire.gradient_hadamard"},
     older_gradients_are_rounded,
     "zero_quantized_gradients is off"},
    {{"thinwire.gradient_inner"}, gradients_are_rounded, "thinwire.gradients loses nothing"},
    {{"scheduler.params.warmup_num_steps", "scheduler.params.warmup_type"},
     has_schedule,
     "scheduler.type is none"},
    {{"scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr"},
     warms_to_a_rate,
     "WarmupLR and WarmupDecayLR have it"},
    {{"scheduler.params.warmup_min_ratio", "scheduler.params.cos_min_ratio"},
     is_cosine,
     "WarmupCosineLR has it"},
    {{"scheduler.params.total_num_steps"}, schedule_ends, "WarmupDecayLR, WarmupCosineLR and WSD have it"},
    {{"scheduler.params.decay_num_steps", "scheduler.params.decay_type", "scheduler.params.decay_min_ratio"},
     is_wsd,
     "WSD has it"},
    {{"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage3_max_live_parameters"},
     gathers_layers,
     "it is for zero_optimization.stage 3"},
    {{"zero_optimization.allgather_bucket_size"}, fills_buckets, "it is for stages 1 and 2, and for delta"},
    {{"thinwire.check_every"}, has_copies, "no two ranks hold the same weights"},
    {{"thinwire.checkpoint_every", "thinwire.checkpoint_minutes", "thinwire.checkpoint_keep"},
     has_checkpoints,
     "no thinwire.checkpoint is given"},
    {{"thinwire.steps"}, has_no_epochs, "thinwire.epochs is given"},
    {{"thinwire.z_window"}, has_z, "thinwire.loss_z and norm_z are 0"},
    {{"thinwire.bad_steps_most"}, outlives_bad_steps, "thinwire.bad_step is stop"},
    {{"thinwire.save_best"}, validates, "thinwire.val_sequences is 0"},
    {{"thinwire.val_share"}, shares_text, "thinwire.val_data is given"},
    {{"thinwire.val_every"}, validates, "thinwire.val_sequences is 0"},
    {{"optimizer.params.muon_lr", "optimizer.params.momentum"}, is_muon, "optimizer.type is not Muon"},
    {{"thinwire.keep_frozen"},
     may_keep_frozen,
     "it is for zero_optimization.stage 3 without a delta, with thinwire.groups"},
    {{"thinwire.document_mask"}, knows_documents, "thinwire.document_token is not given"},
    {{"thinwire.sample_lines", "thinwire.sample_tokens", "thinwire.sample_prompt",
      "thinwire.sample_temperature"},
     samples,
     "thinwire.sample_steps is 0"},
    {{"model.n_params", "model.n_layer", "model.n_head", "model.n_embd", "model.n_positions",
      "model.vocab_size", "model.layer_norm_epsilon", "model.family", LLAMA_KEYS},
     has_no_preset,
     "model.preset says it"},
    {{LLAMA_KEYS}, is_llama_or_preset, "model.family is gpt2"},
    {{"model.n_layer", "model.n_head", "model.n_embd", "model.layer_norm_epsilon"},
     has_a_shape,
     "it follows from model.n_params"},
    {{"zero_optimization.offload_optimizer.nvme_path"},
     optimizer_is_in_files,
     "offload_optimizer.device is not nvme"},
    {{"zero_optimization.offload_param.nvme_path"}, weights_are_in_files, "offload_param.device is not nvme"},
    {{"activation_checkpointing.cpu_checkpointing"},
     inputs_are_in_memory,
     "thinwire.activation_path puts layers' inputs into a file"},
    {{"model.init_from"}, begins_anew, "thinwire.resume has the weights"},
    {{"thinwire.weights", "thinwire.lossless_weights"},
     may_pack_weights,
     "it is for zero_optimization.stage 1 to 3"},
    {{"thinwire.products"}, may_choose_products, "thinwire.device is cuda"},
    {{"thinwire.token_bytes"}, has_token_files, "no .bin file is given"},
    {{"thinwire.loss_mask"}, has_masks, "no .bin file is given"},
    {{"thinwire.chat_style", "thinwire.chat_end"}, may_have_chats, "no .jsonl file is given"},
    {{"thinwire.cache"}, fills_cache, "no text is encoded"},
};

void tw_train_note_key(tw_train_config_t *config, const char *key, const char *reason)
{
    int field = tw_train_field_of(key);
    unsigned char origin = config->origins[field];
    if (origin == TW_TRAIN_FROM_FILE || origin == TW_TRAIN_FROM_COMMAND) {
        tw_train_note(config, origin == TW_TRAIN_FROM_FILE, key, reason);
    }
}

void tw_train_note_without_effect(tw_train_config_t *config)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        int counts = rules[i].counts(&config->options);
        for (size_t k = 0; !counts && k < MOST_KEYS && rules[i].keys[k]; k++) {
            tw_train_note_key(config, rules[i].keys[k], rules[i].reason);
        }
    }
}
