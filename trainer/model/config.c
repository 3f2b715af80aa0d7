/* Shapes of models: published shapes, a shape of about a given size, and the check of a config. */
#include "trainer/model/config.h"

#include <math.h>
#include <string.h>

typedef struct preset {
    const char *name;
    tw_model_config_t config;
} preset_t;

#define GPT2(layers, heads, width)                                                                     \
    {                                                                                                  \
        .vocab_size = 50257, .n_positions = 1024, .n_layer = layers, .n_head = heads, .n_embd = width, \
        .layer_norm_epsilon = 1e-5                                                                     \
    }

/* The arguments after `untied` are further initializers of tw_model_llama_t, rope first. */
#define LLAMA(of, words, positions, layers, heads, kv_heads, width, head, inner, epsilon, untied, ...)      \
    {                                                                                                       \
        .vocab_size = words, .n_positions = positions, .n_layer = layers, .n_head = heads, .n_embd = width, \
        .layer_norm_epsilon = epsilon, .family = of, .llama = {                                             \
            .n_kv_head = kv_heads,                                                                          \
            .head_dim = head,                                                                               \
            .n_inner = inner,                                                                               \
            .has_head = untied,                                                                             \
            .rope = __VA_ARGS__                                                                             \
        }                                                                                                   \
    }

#define LLAMA3(layers, heads, width, head, inner, stretched, untied)                          \
    LLAMA(TW_MODEL_LLAMA, 128256, 131072, layers, heads, 8, width, head, inner, 1e-5, untied, \
          {.theta = 500000.0,                                                                 \
           .type = TW_MODEL_ROPE_LLAMA3,                                                      \
           .factor = stretched,                                                               \
           .n_positions = 8192,                                                               \
           .low_freq_factor = 1.0,                                                            \
           .high_freq_factor = 4.0})

#define QWEN(of, words, positions, layers, heads, kv_heads, width, head, inner, untied) \
    LLAMA(of, words, positions, layers, heads, kv_heads, width, head, inner, 1e-6, untied, {.theta = 1e6})

static const preset_t presets[] = {
    {"gpt2", GPT2(12, 12, 768)},
    {"gpt2-medium", GPT2(24, 16, 1024)},
    {"gpt2-large", GPT2(36, 20, 1280)},
    {"gpt2-xl", GPT2(48, 25, 1600)},
    {"llama2-7b", LLAMA(TW_MODEL_LLAMA, 32000, 4096, 32, 32, 32, 4096, 128, 11008, 1e-5, 1, {.theta = 1e4})},
    {"llama3.1-8b", LLAMA3(32, 32, 4096, 128, 14336, 8.0, 1)},
    {"llama3.2-1b", LLAMA3(16, 32, 2048, 64, 8192, 32.0, 0)},
    {"llama3.2-3b", LLAMA3(28, 24, 3072, 128, 8192, 32.0, 0)},
    {"mistral-7b", LLAMA(TW_MODEL_MISTRAL, 32000, 32768, 32, 32, 8, 4096, 128, 14336, 1e-5, 1, {.theta = 1e4},
                         .window = 4096)},
    {"qwen2.5-0.5b", QWEN(TW_MODEL_QWEN2, 151936, 32768, 24, 14, 2, 896, 64, 4864, 0)},
    {"qwen2.5-1.5b", QWEN(TW_MODEL_QWEN2, 151936, 131072, 28, 12, 2, 1536, 128, 8960, 0)},
    {"qwen2.5-7b", QWEN(TW_MODEL_QWEN2, 152064, 131072, 28, 28, 4, 3584, 128, 18944, 1)},
    {"qwen3-0.6b", QWEN(TW_MODEL_QWEN3, 151936, 40960, 28, 16, 8, 1024, 128, 3072, 0)},
    {"qwen3-1.7b", QWEN(TW_MODEL_QWEN3, 151936, 40960, 28, 16, 8, 2048, 128, 6144, 0)},
    {"qwen3-4b", QWEN(TW_MODEL_QWEN3, 151936, 40960, 36, 32, 8, 2560, 128, 9728, 0)},
    {"qwen3-8b", QWEN(TW_MODEL_QWEN3, 151936, 40960, 36, 32, 8, 4096, 128, 12288, 1)},
};
enum { N_PRESETS = sizeof(presets) / sizeof(presets[0]) };

tw_status_t tw_model_config_preset(const char *name, tw_model_config_t *config)
{
    char names[512];
    size_t used = 0;
    for (size_t i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *config = presets[i].config;
            return TW_OK;
        }
        used +=
            (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? ", " : "", presets[i].name);
    }
    return tw_fail(TW_ERR_NOT_FOUND, "model: no model '%s'; there are %s", name, names);
}

static double count_params(const tw_model_config_t *config)
{
    double c = (double)config->n_embd;
    double block = 12.0 * c * c + 13.0 * c;
    double root = (double)(config->vocab_size + config->n_positions) * c + 2.0 * c;
    return (double)config->n_layer * block + root;
}

/** Return the GPT-2 shape of this width whose depth brings its parameters nearest to n_params. */
static tw_model_config_t of_width(size_t width, double n_params, size_t vocab_size, size_t n_positions)
{
    tw_model_config_t config = {.vocab_size = vocab_size,
                                .n_positions = n_positions,
                                .n_layer = 1,
                                .n_head = width / (width < 256 ? 32 : 64),
                                .n_embd = width,
                                .layer_norm_epsilon = 1e-5};
    double one = count_params(&config);
    config.n_layer = 2;
    double block = count_params(&config) - one;
    double more = round((n_params - one) / block);
    config.n_layer = more > 0.0 ? 1 + (size_t)more : 1;
    return config;
}

/** Widen the model while it has more than width / 64 blocks, the ratio of GPT-2: 12 blocks of width 768. */
tw_model_config_t tw_model_config_for_params(size_t n_params, size_t vocab_size, size_t n_positions)
{
    size_t width = 128;
    tw_model_config_t config = of_width(width, (double)n_params, vocab_size, n_positions);
    while (config.n_layer > 8 && config.n_layer > width / 64) {
        width += 64;
        config = of_width(width, (double)n_params, vocab_size, n_positions);
    }
    return config;
}

static tw_status_t check_field(const char *field, size_t value, size_t most)
{
    TW_FAIL_IF(value < 1 || value > most, TW_ERR_INVALID, "model: %s is %zu, but must be from 1 to %zu",
               field, value, most);
    return TW_OK;
}

typedef struct field {
    const char *name;
    size_t value, most;
} field_t;

static tw_status_t check_fields(const field_t *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        TW_TRY(check_field(fields[i].name, fields[i].value, fields[i].most));
    }
    return TW_OK;
}

static tw_status_t check_real(const char *field, double value, double least, double most)
{
    TW_FAIL_IF(!(value >= least && value <= most), TW_ERR_INVALID,
               "model: %s is %g, but must be from %g to %g", field, value, least, most);
    return TW_OK;
}

static tw_status_t check_rope(const tw_model_rope_t *rope)
{
    TW_TRY(check_real("rope_theta", rope->theta, 1.001, 1e12));
    if (rope->type == TW_MODEL_ROPE_DEFAULT) {
        return TW_OK;
    }
    TW_TRY(check_real("rope_scaling.factor", rope->factor, 1.0, 1e6));
    if (rope->type == TW_MODEL_ROPE_LINEAR) {
        return TW_OK;
    }
    TW_TRY(check_field("rope_scaling.original_max_position_embeddings", rope->n_positions, 1 << 24));
    if (rope->type == TW_MODEL_ROPE_LLAMA3) {
        TW_TRY(check_real("rope_scaling.low_freq_factor", rope->low_freq_factor, 1e-6, 1e6));
        return check_real("rope_scaling.high_freq_factor", rope->high_freq_factor,
                          rope->low_freq_factor * 1.000001, 1e6);
    }
    TW_TRY(check_real("rope_scaling.beta_slow", rope->beta_slow, 1e-6, 1e6));
    TW_TRY(check_real("rope_scaling.beta_fast", rope->beta_fast, rope->beta_slow, 1e6));
    return check_real("rope_scaling.attention_factor", rope->attention_factor, 0.0, 1e3);
}

static tw_status_t check_llama(const tw_model_config_t *config)
{
    const tw_model_llama_t *llama = &config->llama;
    const field_t fields[] = {{"n_kv_head", llama->n_kv_head, config->n_head},
                              {"head_dim", llama->head_dim, 1 << 10},
                              {"n_inner", llama->n_inner, 1 << 18}};
    TW_TRY(check_fields(fields, sizeof(fields) / sizeof(fields[0])));
    TW_FAIL_IF(config->n_head % llama->n_kv_head != 0, TW_ERR_INVALID,
               "model: n_kv_head %zu does not divide n_head %zu", llama->n_kv_head, config->n_head);
    TW_FAIL_IF(llama->head_dim % 2 != 0, TW_ERR_INVALID, "model: head_dim is %zu, but channels turn in pairs",
               llama->head_dim);
    return check_rope(&llama->rope);
}

static tw_status_t check_gpt2(const tw_model_config_t *config)
{
    TW_FAIL_IF(config->n_embd % config->n_head != 0, TW_ERR_INVALID,
               "model: n_embd %zu does not divide into n_head %zu heads", config->n_embd, config->n_head);
    return TW_OK;
}

tw_status_t tw_model_config_check(const tw_model_config_t *config)
{
    const field_t fields[] = {{"vocab_size", config->vocab_size, 1 << 20},
                              {"n_positions", config->n_positions, 1 << 24},
                              {"n_layer", config->n_layer, 1 << 12},
                              {"n_head", config->n_head, 1 << 10},
                              {"n_embd", config->n_embd, 1 << 16}};
    TW_TRY(check_fields(fields, sizeof(fields) / sizeof(fields[0])));
    TW_FAIL_IF(!(config->layer_norm_epsilon > 0.0 && config->layer_norm_epsilon < 1.0), TW_ERR_INVALID,
               "model: layer_norm_epsilon is %g, but must be between 0 and 1", config->layer_norm_epsilon);
    TW_FAIL_IF(config->fp32_weights && config->products != TW_TYPE_FP32, TW_ERR_INVALID,
               "model: weights are fp32, but products are %s: fp32 weights need fp32 products",
               tw_type_name(config->products));
    static tw_status_t (*const checks[])(const tw_model_config_t *) = {
        [TW_MODEL_KIND_GPT2] = check_gpt2, [TW_MODEL_KIND_LLAMA] = check_llama};
    return checks[tw_model_family_get(config->family)->kind](config);
}
