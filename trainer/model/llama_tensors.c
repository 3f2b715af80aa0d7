/* The Llama family's parameters: names and shapes as Hugging Face's transformers saves them, how they start,
 * and who has which. */
#include "trainer/model/llama.h"

typedef enum dim { NONE, C, F, Q, KV, D, WORDS } dim_t;
typedef enum start { NORMAL, RESIDUAL, ONES, ZEROS } start_t;

typedef struct tensor_form {
    const char *name; /* in a block: what follows "model.layers.N." */
    dim_t dims[2];    /* the second one NONE: a vector */
    start_t start;
    int (*has)(const tw_model_config_t *config); /* NULL: all have it */
} tensor_form_t;

static int has_head(const tw_model_config_t *config)
{
    return config->llama.has_head;
}

static int has_o_bias(const tw_model_config_t *config)
{
    return config->llama.attention_bias;
}

static int has_biases(const tw_model_config_t *config)
{
    return tw_model_family_get(config->family)->has_qkv_biases || has_o_bias(config);
}

static int has_head_norms(const tw_model_config_t *config)
{
    return tw_model_family_get(config->family)->has_head_norms;
}

static const tensor_form_t root_forms[TW_LLAMA_ROOT_TENSORS] = {
    [TW_LLAMA_EMBED] = {"model.embed_tokens.weight", {WORDS, C}, NORMAL, NULL},
    [TW_LLAMA_NORM] = {"model.norm.weight", {C, NONE}, ONES, NULL},
    [TW_LLAMA_HEAD] = {"lm_head.weight", {WORDS, C}, NORMAL, has_head},
};

static const tensor_form_t block_forms[TW_LLAMA_BLOCK_TENSORS] = {
    [TW_LLAMA_NORM_1] = {"input_layernorm.weight", {C, NONE}, ONES, NULL},
    [TW_LLAMA_Q] = {"self_attn.q_proj.weight", {Q, C}, NORMAL, NULL},
    [TW_LLAMA_Q_BIAS] = {"self_attn.q_proj.bias", {Q, NONE}, ZEROS, has_biases},
    [TW_LLAMA_K] = {"self_attn.k_proj.weight", {KV, C}, NORMAL, NULL},
    [TW_LLAMA_K_BIAS] = {"self_attn.k_proj.bias", {KV, NONE}, ZEROS, has_biases},
    [TW_LLAMA_V] = {"self_attn.v_proj.weight", {KV, C}, NORMAL, NULL},
    [TW_LLAMA_V_BIAS] = {"self_attn.v_proj.bias", {KV, NONE}, ZEROS, has_biases},
    [TW_LLAMA_Q_NORM] = {"self_attn.q_norm.weight", {D, NONE}, ONES, has_head_norms},
    [TW_LLAMA_K_NORM] = {"self_attn.k_norm.weight", {D, NONE}, ONES, has_head_norms},
    [TW_LLAMA_O] = {"self_attn.o_proj.weight", {C, Q}, RESIDUAL, NULL},
    [TW_LLAMA_O_BIAS] = {"self_attn.o_proj.bias", {C, NONE}, ZEROS, has_o_bias},
    [TW_LLAMA_NORM_2] = {"post_attention_layernorm.weight", {C, NONE}, ONES, NULL},
    [TW_LLAMA_GATE] = {"mlp.gate_proj.weight", {F, C}, NORMAL, NULL},
    [TW_LLAMA_UP] = {"mlp.up_proj.weight", {F, C}, NORMAL, NULL},
    [TW_LLAMA_DOWN] = {"mlp.down_proj.weight", {C, F}, RESIDUAL, NULL},
};

static size_t dim_size(const tw_model_config_t *config, dim_t dim)
{
    const size_t sizes[] = {[NONE] = 0,
                            [C] = config->n_embd,
                            [F] = config->llama.n_inner,
                            [Q] = tw_llama_q_width(config),
                            [KV] = tw_llama_kv_width(config),
                            [D] = config->llama.head_dim,
                            [WORDS] = config->vocab_size};
    return sizes[dim];
}

static tw_status_t add_tensor(tw_model_t *model, const tensor_form_t *form, size_t unit)
{
    char name[96];
    if (unit == TW_MODEL_ROOT) {
        snprintf(name, sizeof(name), "%s", form->name);
    } else {
        snprintf(name, sizeof(name), "model.layers.%zu.%s", unit - 1, form->name);
    }
    int is_drawn = form->start == NORMAL || form->start == RESIDUAL;
    const tw_model_form_t tensor = {.name = name,
                                    .rows = dim_size(&model->config, form->dims[0]),
                                    .cols = dim_size(&model->config, form->dims[1]),
                                    .init_std =
                                        is_drawn ? tw_model_init_std(model, form->start == RESIDUAL) : 0.0,
                                    .init_value = form->start == ONES ? 1.0f : 0.0f};
    return tw_model_tensor_add(model, unit, &tensor);
}

/** All blocks have the same places. */
static tw_status_t add_unit(tw_model_t *model, size_t unit, const tensor_form_t *forms, size_t n_forms,
                            int *places)
{
    int n = 0;
    for (size_t t = 0; t < n_forms; t++) {
        int is_there = !forms[t].has || forms[t].has(&model->config);
        places[t] = is_there ? n++ : -1;
        if (is_there) {
            TW_TRY(add_tensor(model, &forms[t], unit));
        }
    }
    return TW_OK;
}

tw_status_t tw_llama_tensors(tw_llama_t *llama)
{
    tw_model_t *model = &llama->model;
    size_t n_blocks = model->config.n_layer;
    TW_TRY(tw_model_tables_init(model, n_blocks, TW_LLAMA_ROOT_TENSORS + n_blocks * TW_LLAMA_BLOCK_TENSORS));
    TW_TRY(add_unit(model, TW_MODEL_ROOT, root_forms, TW_LLAMA_ROOT_TENSORS, llama->root));
    for (size_t unit = 1; unit <= n_blocks; unit++) {
        TW_TRY(add_unit(model, unit, block_forms, TW_LLAMA_BLOCK_TENSORS, llama->block));
    }
    return TW_OK;
}
