/* Lists the parameters of each kind of model: names and shapes (those of Hugging Face's transformers),
 * initial values, and which family has which parameters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/gpt2.h"
#include "trainer/model/llama.h"

#define INIT_STD 0.02

typedef enum dim { NONE, C, C3, C4, F, Q, KV, D, WORDS, POSITIONS } dim_t;
typedef enum start { NORMAL, RESIDUAL, ONES, ZEROS } start_t;

typedef struct tensor_form {
    const char *name; /* in blocks without the block's prefix; NULL: the kind has no such tensor */
    dim_t dims[2];    /* the second is NONE for a vector */
    start_t start;
    int (*has)(const tw_model_config_t *config); /* NULL: all families of the kind have the tensor */
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

static const tensor_form_t gpt2_root[TW_ROOT_TENSORS] = {
    [TW_ROOT_WORDS] = {"transformer.wte.weight", {WORDS, C}, NORMAL, NULL},
    [TW_ROOT_POSITIONS] = {"transformer.wpe.weight", {POSITIONS, C}, NORMAL, NULL},
    [TW_ROOT_GAMMA] = {"transformer.ln_f.weight", {C, NONE}, ONES, NULL},
    [TW_ROOT_BETA] = {"transformer.ln_f.bias", {C, NONE}, ZEROS, NULL},
};

static const tensor_form_t gpt2_block[TW_GPT2_BLOCK_TENSORS] = {
    [TW_GPT2_LN_1_W] = {"ln_1.weight", {C, NONE}, ONES, NULL},
    [TW_GPT2_LN_1_B] = {"ln_1.bias", {C, NONE}, ZEROS, NULL},
    [TW_GPT2_QKV_W] = {"attn.c_attn.weight", {C, C3}, NORMAL, NULL},
    [TW_GPT2_QKV_B] = {"attn.c_attn.bias", {C3, NONE}, ZEROS, NULL},
    [TW_GPT2_ATTN_PROJ_W] = {"attn.c_proj.weight", {C, C}, RESIDUAL, NULL},
    [TW_GPT2_ATTN_PROJ_B] = {"attn.c_proj.bias", {C, NONE}, ZEROS, NULL},
    [TW_GPT2_LN_2_W] = {"ln_2.weight", {C, NONE}, ONES, NULL},
    [TW_GPT2_LN_2_B] = {"ln_2.bias", {C, NONE}, ZEROS, NULL},
    [TW_GPT2_FC_W] = {"mlp.c_fc.weight", {C, C4}, NORMAL, NULL},
    [TW_GPT2_FC_B] = {"mlp.c_fc.bias", {C4, NONE}, ZEROS, NULL},
    [TW_GPT2_MLP_PROJ_W] = {"mlp.c_proj.weight", {C4, C}, RESIDUAL, NULL},
    [TW_GPT2_MLP_PROJ_B] = {"mlp.c_proj.bias", {C, NONE}, ZEROS, NULL},
};

static const tensor_form_t llama_root[TW_ROOT_TENSORS] = {
    [TW_ROOT_WORDS] = {"model.embed_tokens.weight", {WORDS, C}, NORMAL, NULL},
    [TW_ROOT_GAMMA] = {"model.norm.weight", {C, NONE}, ONES, NULL},
    [TW_ROOT_HEAD] = {"lm_head.weight", {WORDS, C}, NORMAL, has_head},
};

static const tensor_form_t llama_block[TW_LLAMA_BLOCK_TENSORS] = {
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

/* The tensors of each kind. The name of a block's tensor is block_name + the block's number + form.name. */
static const struct {
    const char *block_name;
    const tensor_form_t *root, *block;
    size_t n_block;
} kinds[] = {
    [TW_MODEL_KIND_GPT2] = {"transformer.h.", gpt2_root, gpt2_block, TW_GPT2_BLOCK_TENSORS},
    [TW_MODEL_KIND_LLAMA] = {"model.layers.", llama_root, llama_block, TW_LLAMA_BLOCK_TENSORS},
};
_Static_assert(TW_GPT2_BLOCK_TENSORS <= TW_MODEL_MOST_TENSORS, "tw_model_t has a place for each");
_Static_assert(TW_LLAMA_BLOCK_TENSORS <= TW_MODEL_MOST_TENSORS, "tw_model_t has a place for each");

static size_t dim_size(const tw_model_config_t *config, dim_t dim)
{
    const size_t sizes[] = {[NONE] = 0,
                            [C] = config->n_embd,
                            [C3] = 3 * config->n_embd,
                            [C4] = 4 * config->n_embd,
                            [F] = config->llama.n_inner,
                            [Q] = tw_llama_q_width(config),
                            [KV] = tw_llama_kv_width(config),
                            [D] = config->llama.head_dim,
                            [WORDS] = config->vocab_size,
                            [POSITIONS] = config->n_positions};
    return sizes[dim];
}

/** Return the standard deviation of initial weights, or 0 if they are constant. For layers that add to the
 *  residual stream it falls with the model's depth. */
static double init_std(const tw_model_t *model, start_t start)
{
    double residual = INIT_STD / sqrt(2.0 * (double)model->config.n_layer);
    return start == NORMAL ? INIT_STD : start == RESIDUAL ? residual : 0.0;
}

/** Append a tensor to a unit. Units must be filled in order, each with all its tensors. */
static tw_status_t tensors_add_tensor(tw_model_t *model, const tensor_form_t *form, size_t unit)
{
    char name[96], number[24] = "";
    const char *block_name = kinds[tw_model_family_get(model->config.family)->kind].block_name;
    if (unit != TW_MODEL_ROOT) {
        snprintf(number, sizeof(number), "%zu.", unit - 1);
    }
    snprintf(name, sizeof(name), "%s%s%s", unit == TW_MODEL_ROOT ? "" : block_name, number, form->name);
    int n_dims = form->dims[1] == NONE ? 1 : 2;
    tw_model_tensor_t tensor = {.name = strdup(name),
                                .unit = (int)unit,
                                .n_dims = n_dims,
                                .shape = {dim_size(&model->config, form->dims[0]),
                                          n_dims == 2 ? dim_size(&model->config, form->dims[1]) : 1},
                                .decay = n_dims == 2,
                                .init_std = init_std(model, form->start),
                                .init_value = form->start == ONES ? 1.0f : 0.0f};
    TW_FAIL_IF(!tensor.name, TW_ERR_NO_MEMORY, "model: out of memory for a name");
    tensor.n_elems = tw_size_mul(tensor.shape[0], tensor.shape[1]);
    if (unit == model->n_units) {
        model->units[model->n_units++] = (tw_model_unit_t){.first_tensor = model->n_tensors};
    }
    model->units[unit].n_tensors++;
    model->units[unit].n_elems = tw_size_add(model->units[unit].n_elems, tensor.n_elems);
    model->n_params = tw_size_add(model->n_params, tensor.n_elems);
    model->tensors[model->n_tensors++] = tensor;
    return TW_OK;
}

/** Add a unit's tensors, and set places [n_forms], which are the same for all blocks. */
static tw_status_t add_unit(tw_model_t *model, size_t unit, const tensor_form_t *forms, size_t n_forms,
                            int *places)
{
    int n = 0;
    for (size_t t = 0; t < n_forms; t++) {
        int is_there = forms[t].name && (!forms[t].has || forms[t].has(&model->config));
        places[t] = is_there ? n++ : -1;
        if (is_there) {
            TW_TRY(tensors_add_tensor(model, &forms[t], unit));
        }
    }
    return TW_OK;
}

static tw_status_t tensors_alloc(tw_model_t *model, size_t n_blocks, size_t n_tensors)
{
    model->units = calloc(1 + n_blocks, sizeof(*model->units));
    model->tensors = calloc(n_tensors, sizeof(*model->tensors));
    TW_FAIL_IF(!model->units || !model->tensors, TW_ERR_NO_MEMORY,
               "model: out of memory for the list of %zu blocks", n_blocks);
    return TW_OK;
}

tw_status_t tw_model_tensors_init(tw_model_t *model)
{
    tw_model_kind_t kind = tw_model_family_get(model->config.family)->kind;
    size_t n_blocks = model->config.n_layer, n_block = kinds[kind].n_block;
    TW_TRY(tensors_alloc(model, n_blocks, TW_ROOT_TENSORS + n_blocks * n_block));
    TW_TRY(add_unit(model, TW_MODEL_ROOT, kinds[kind].root, TW_ROOT_TENSORS, model->root));
    for (size_t unit = 1; unit <= n_blocks; unit++) {
        TW_TRY(add_unit(model, unit, kinds[kind].block, n_block, model->block));
    }
    return TW_OK;
}
