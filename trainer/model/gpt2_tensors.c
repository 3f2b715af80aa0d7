/* GPT-2's parameters: names and shapes as Hugging Face's GPT2LMHeadModel has them, and how they start. */
#include "trainer/model/gpt2.h"

typedef enum dim { NONE, C, C3, C4, WORDS, POSITIONS } dim_t;
typedef enum start { NORMAL, RESIDUAL, ONES, ZEROS } start_t;

typedef struct tensor_form {
    const char *name; /* in a block: what follows "transformer.h.N." */
    dim_t dims[2];    /* the second one NONE: a vector */
    start_t start;
} tensor_form_t;

static const tensor_form_t root_forms[TW_GPT2_ROOT_TENSORS] = {
    [TW_GPT2_WTE] = {"transformer.wte.weight", {WORDS, C}, NORMAL},
    [TW_GPT2_WPE] = {"transformer.wpe.weight", {POSITIONS, C}, NORMAL},
    [TW_GPT2_LN_F_W] = {"transformer.ln_f.weight", {C}, ONES},
    [TW_GPT2_LN_F_B] = {"transformer.ln_f.bias", {C}, ZEROS},
};

static const tensor_form_t block_forms[TW_GPT2_BLOCK_TENSORS] = {
    [TW_GPT2_LN_1_W] = {"ln_1.weight", {C}, ONES},
    [TW_GPT2_LN_1_B] = {"ln_1.bias", {C}, ZEROS},
    [TW_GPT2_QKV_W] = {"attn.c_attn.weight", {C, C3}, NORMAL},
    [TW_GPT2_QKV_B] = {"attn.c_attn.bias", {C3}, ZEROS},
    [TW_GPT2_ATTN_PROJ_W] = {"attn.c_proj.weight", {C, C}, RESIDUAL},
    [TW_GPT2_ATTN_PROJ_B] = {"attn.c_proj.bias", {C}, ZEROS},
    [TW_GPT2_LN_2_W] = {"ln_2.weight", {C}, ONES},
    [TW_GPT2_LN_2_B] = {"ln_2.bias", {C}, ZEROS},
    [TW_GPT2_FC_W] = {"mlp.c_fc.weight", {C, C4}, NORMAL},
    [TW_GPT2_FC_B] = {"mlp.c_fc.bias", {C4}, ZEROS},
    [TW_GPT2_MLP_PROJ_W] = {"mlp.c_proj.weight", {C4, C}, RESIDUAL},
    [TW_GPT2_MLP_PROJ_B] = {"mlp.c_proj.bias", {C}, ZEROS},
};

static size_t dim_size(const tw_model_config_t *config, dim_t dim)
{
    const size_t sizes[] = {[NONE] = 1,
                            [C] = config->n_embd,
                            [C3] = 3 * config->n_embd,
                            [C4] = 4 * config->n_embd,
                            [WORDS] = config->vocab_size,
                            [POSITIONS] = config->n_positions};
    return sizes[dim];
}

static tw_status_t add_tensor(tw_model_t *model, const tensor_form_t *form, size_t unit)
{
    char name[96];
    if (unit == TW_MODEL_ROOT) {
        snprintf(name, sizeof(name), "%s", form->name);
    } else {
        snprintf(name, sizeof(name), "transformer.h.%zu.%s", unit - 1, form->name);
    }
    int is_drawn = form->start == NORMAL || form->start == RESIDUAL;
    const tw_model_form_t tensor = {
        .name = name,
        .rows = dim_size(&model->config, form->dims[0]),
        .cols = form->dims[1] == NONE ? 0 : dim_size(&model->config, form->dims[1]),
        .init_std = is_drawn ? tw_model_init_std(model, form->start == RESIDUAL) : 0.0,
        .init_value = form->start == ONES ? 1.0f : 0.0f};
    return tw_model_tensor_add(model, unit, &tensor);
}

tw_status_t tw_gpt2_tensors(tw_model_t *model)
{
    size_t n_blocks = model->config.n_layer;
    TW_TRY(tw_model_tables_init(model, n_blocks, TW_GPT2_ROOT_TENSORS + n_blocks * TW_GPT2_BLOCK_TENSORS));
    for (size_t unit = 0; unit <= n_blocks; unit++) {
        const tensor_form_t *forms = unit == TW_MODEL_ROOT ? root_forms : block_forms;
        size_t n_forms = unit == TW_MODEL_ROOT ? TW_GPT2_ROOT_TENSORS : TW_GPT2_BLOCK_TENSORS;
        for (size_t t = 0; t < n_forms; t++) {
            TW_TRY(add_tensor(model, &forms[t], unit));
        }
    }
    return TW_OK;
}
