/* Shapes of models: the published ones, one of about a given size, and what is no model. */
#include "trainer/model/config.h"

#include <math.h>
#include <string.h>

typedef struct preset {
    const char *name;
    tw_model_config_t config;
} preset_t;

static const preset_t presets[] = {
    {"gpt2", {50257, 1024, 12, 12, 768, 1e-5}},
    {"gpt2-medium", {50257, 1024, 24, 16, 1024, 1e-5}},
    {"gpt2-large", {50257, 1024, 36, 20, 1280, 1e-5}},
    {"gpt2-xl", {50257, 1024, 48, 25, 1600, 1e-5}},
};

tw_status_t tw_model_config_preset(const char *name, tw_model_config_t *config)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *config = presets[i].config;
            return TW_OK;
        }
    }
    tw_error("model: no model '%s'; there are gpt2, gpt2-medium, gpt2-large and gpt2-xl", name);
    return TW_ERR_NOT_FOUND;
}

static double count_params(const tw_model_config_t *config)
{
    double c = (double)config->n_embd;
    double block = 12.0 * c * c + 13.0 * c;
    double root = (double)(config->vocab_size + config->n_positions) * c + 2.0 * c;
    return (double)config->n_layer * block + root;
}

/* The depth that comes nearest for a width. */
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

/* Wider while the depth for it would be more than width / 64 blocks: GPT-2 itself has 12 of width 768. */
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
    if (value < 1 || value > most) {
        tw_error("model: %s is %zu, but must be from 1 to %zu", field, value, most);
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

tw_status_t tw_model_config_check(const tw_model_config_t *config)
{
    const struct {
        const char *field;
        size_t value, most;
    } fields[] = {{"vocab_size", config->vocab_size, 65536},
                  {"n_positions", config->n_positions, 1 << 20},
                  {"n_layer", config->n_layer, 1 << 12},
                  {"n_head", config->n_head, 1 << 10},
                  {"n_embd", config->n_embd, 1 << 16}};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        TW_TRY(check_field(fields[i].field, fields[i].value, fields[i].most));
    }
    if (config->n_embd % config->n_head != 0) {
        tw_error("model: n_embd %zu does not divide into n_head %zu heads", config->n_embd, config->n_head);
        return TW_ERR_INVALID;
    }
    if (!(config->layer_norm_epsilon > 0.0 && config->layer_norm_epsilon < 1.0)) {
        tw_error("model: layer_norm_epsilon is %g, but must be between 0 and 1", config->layer_norm_epsilon);
        return TW_ERR_INVALID;
    }
    return TW_OK;
}
