/* Trains a small GPT-2, and takes its gradients and weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/codecs/codecs.h"
#include "trainer/data/data.h"
#include "trainer/model/model.h"

#define LAYERS 4
#define WIDTH 128
#define SEQUENCE 128
#define BATCH 4
#define WARM_UP 100
#define RATE 6e-4f
#define BETA1 0.9f
#define BETA2 0.95f
#define DECAY 0.1f

/* State of the training; each array holds all tensors one after the other. */
typedef struct {
    tw_data_t *data;
    tw_model_t *model;
    const tw_model_tensor_t *tensors;
    size_t n_tensors, n_params, x_elems;
    float *master, *m, *v, *grads, *sums; /* [n_params] */
    uint16_t *weights;
    uint8_t *saved[LAYERS + 1];
    float *x[LAYERS + 1]; /* [u]: input of unit u, made by unit u - 1 */
    const void **weight_ptrs;
    float **grad_ptrs;
    int32_t tokens[BATCH * SEQUENCE], targets[BATCH * SEQUENCE];
} training_t;

static tw_status_t train_alloc(training_t *t)
{
    tw_model_sizes_t sizes = tw_model_sizes_get(t->model, BATCH, SEQUENCE);
    TW_TRY(tw_model_reserve(t->model, BATCH, SEQUENCE));
    t->x_elems = sizes.x_elems;
    t->master = tw_buffer_alloc_zero(5 * t->n_params * sizeof(float));
    t->weights = tw_buffer_alloc(t->n_params * sizeof(*t->weights));
    t->weight_ptrs = calloc(t->n_tensors, sizeof(*t->weight_ptrs));
    t->grad_ptrs = calloc(t->n_tensors, sizeof(*t->grad_ptrs));
    int all = t->master && t->weights && t->weight_ptrs && t->grad_ptrs;
    for (size_t u = 0; u <= LAYERS; u++) {
        t->x[u] = tw_buffer_alloc(sizes.x_elems * sizeof(float));
        t->saved[u] = tw_buffer_alloc(sizes.saved_bytes);
        all = all && t->x[u] && t->saved[u];
    }
    TW_FAIL_IF(!all, TW_ERR_NO_MEMORY, "bench: no memory to train %zu parameters", t->n_params);
    t->m = t->master + t->n_params;
    t->v = t->m + t->n_params;
    t->grads = t->v + t->n_params;
    t->sums = t->grads + t->n_params;
    return TW_OK;
}

static void train_cleanup(training_t *t)
{
    for (size_t u = 0; u <= LAYERS; u++) {
        tw_buffer_free(t->x[u]);
        tw_buffer_free(t->saved[u]);
    }
    free(t->weight_ptrs);
    free(t->grad_ptrs);
    tw_buffer_free(t->weights);
    tw_buffer_free(t->master);
    tw_model_destroy(t->model);
    tw_data_close(t->data);
}

static tw_status_t train_init(training_t *t)
{
    const tw_data_config_t data = {0};
    TW_TRY(tw_data_open(&data, &t->data));
    const tw_model_config_t config = {.vocab_size = tw_data_vocab_size(t->data),
                                      .n_positions = SEQUENCE,
                                      .n_layer = LAYERS,
                                      .n_head = 4,
                                      .n_embd = WIDTH,
                                      .layer_norm_epsilon = 1e-5};
    TW_TRY(tw_model_create(&config, &t->model));
    t->tensors = tw_model_tensors(t->model, &t->n_tensors);
    t->n_params = tw_model_n_params(t->model);
    TW_TRY(train_alloc(t));
    size_t at = 0;
    for (size_t i = 0; i < t->n_tensors; i++) {
        tw_model_init(t->model, i, 0, t->tensors[i].n_elems, 1, t->master + at);
        t->weight_ptrs[i] = t->weights + at;
        t->grad_ptrs[i] = t->grads + at;
        at += t->tensors[i].n_elems;
    }
    return TW_OK;
}

/** Compute the gradients of a batch. */
static tw_status_t train_backward(training_t *t, size_t step)
{
    const tw_data_place_t place = {
        .seed = 1, .step = step, .n_micros = 1, .world = 1, .batch = BATCH, .seq_len = SEQUENCE};
    double loss;
    memset(t->grads, 0, t->n_params * sizeof(*t->grads));
    tw_convert_from_fp32(TW_TYPE_BF16, t->master, 1.0f, t->weights, t->n_params);
    TW_TRY(tw_data_batch(t->data, TW_DATA_TRAIN, &place, t->tokens, t->targets));
    TW_TRY(tw_model_embed_forward(t->model, t->weight_ptrs, t->tokens, t->x[0]));
    for (size_t u = 1; u <= LAYERS; u++) {
        size_t first = tw_model_unit_get(t->model, u)->first_tensor;
        tw_model_block_forward(t->model, u, t->weight_ptrs + first, t->x[u - 1], t->x[u], t->saved[u]);
    }
    float *d = t->x[LAYERS];
    TW_TRY(tw_model_head(t->model, t->weight_ptrs, d, t->targets, 1.0f, &loss, d, t->grad_ptrs));
    for (size_t u = LAYERS; u >= 1; u--) {
        size_t first = tw_model_unit_get(t->model, u)->first_tensor;
        tw_model_block_backward(t->model, u, t->weight_ptrs + first, t->x[u - 1], t->saved[u], d,
                                t->grad_ptrs + first);
    }
    tw_model_embed_backward(t->model, t->tokens, d, t->grad_ptrs);
    return TW_OK;
}

/** Make a step of AdamW with gradients clipped to a norm of 1. The learning rate first warms up. */
static void train_update(training_t *t, size_t step)
{
    float rate = RATE * (step < WARM_UP ? (float)(step + 1) / WARM_UP : 1);
    float debt1 = 1 - powf(BETA1, (float)(step + 1)), debt2 = 1 - powf(BETA2, (float)(step + 1));
    double norm = 0;
    for (size_t i = 0; i < t->n_params; i++) {
        norm += (double)t->grads[i] * t->grads[i];
    }
    float clip = norm > 1 ? (float)(1 / sqrt(norm)) : 1;
    for (size_t i = 0; i < t->n_params; i++) {
        float g = t->grads[i] * clip;
        t->m[i] = BETA1 * t->m[i] + (1 - BETA1) * g;
        t->v[i] = BETA2 * t->v[i] + (1 - BETA2) * g * g;
        t->master[i] -= rate * (t->m[i] / debt1 / (sqrtf(t->v[i] / debt2) + 1e-8f) + DECAY * t->master[i]);
    }
}

static tw_status_t train_give(const training_t *t, const char *name, tw_type_t type, const float *from,
                              cb_set_t *set)
{
    TW_TRY(cb_set_init(set, name, t->n_tensors));
    for (size_t i = 0; i < t->n_tensors; i++) {
        const tw_model_tensor_t *tensor = &t->tensors[i];
        size_t row_elems = tensor->n_dims == 2 ? tensor->shape[1] : 0;
        TW_TRY(cb_set_add(set, type, tensor->n_elems, row_elems));
        tw_convert_from_fp32(type, from, 1.0f, set->tensors[i].values, tensor->n_elems);
        from += tensor->n_elems;
    }
    return TW_OK;
}

/** Make sets of several ranks' gradients at this step, rounded to bf16 and summed in fp32. */
static tw_status_t train_give_sums(training_t *t, size_t step, cb_set_t sets[4])
{
    static const char *const names[] = {"widened", "sum of 2", "sum of 4", "sum of 8"};
    for (size_t rank = 0, next = 0; next < 4; rank++) {
        TW_TRY(train_backward(t, step + rank));
        tw_convert_from_fp32(TW_TYPE_BF16, t->grads, 1.0f, t->weights, t->n_params);
        tw_convert_add_fp32(TW_TYPE_BF16, t->weights, t->sums, t->n_params);
        if (rank + 1 == (size_t)1 << next) {
            TW_TRY(train_give(t, names[next], TW_TYPE_FP32, t->sums, &sets[next]));
            next++;
        }
    }
    return TW_OK;
}

tw_status_t cb_train(const cb_options_t *options, cb_set_t *sets)
{
    training_t t = {0};
    tw_status_t status = train_init(&t);
    for (size_t step = 0; step < options->steps && status == TW_OK; step++) {
        status = train_backward(&t, step);
        if (step + 1 < options->steps) {
            train_update(&t, step);
        }
    }
    status = status == TW_OK ? train_give(&t, "gradients", TW_TYPE_BF16, t.grads, &sets[0]) : status;
    status = status == TW_OK ? train_give(&t, "weights", TW_TYPE_BF16, t.master, &sets[1]) : status;
    status = status == TW_OK ? train_give(&t, "fp32", TW_TYPE_FP32, t.grads, &sets[2]) : status;
    status = status == TW_OK ? train_give_sums(&t, options->steps, sets + 3) : status;
    train_cleanup(&t);
    return status;
}
