/* Divides scratch and saved memory, one buffer each, into parts that begin at multiples of 256 bytes. */
#include <stdlib.h>

#include "trainer/device/state.h"
#include "trainer/model/rope.h"

#define STEP_BYTES ((size_t)256)
/* Rows of logits begin at multiples of LOGITS_STEP elements (128 bytes in bf16), which makes products faster.
 * A vocabulary such as GPT-2's 50257 is odd. */
enum { ROWS_STEP = 16, LOGITS_STEP = 64 };

tw_device_sizes_t tw_device_sizes_of(const tw_model_config_t *config, size_t batch, size_t seq_len)
{
    int is_gpt2 = tw_model_family_get(config->family)->kind == TW_MODEL_KIND_GPT2;
    size_t width = is_gpt2 ? config->n_embd / config->n_head : config->llama.head_dim;
    size_t kv_heads = is_gpt2 ? config->n_head : config->llama.n_kv_head;
    return (tw_device_sizes_t){.type = config->fp32_weights ? TW_TYPE_FP32 : TW_TYPE_BF16,
                               .batch = batch,
                               .seq_len = seq_len,
                               .n = tw_size_mul(batch, seq_len),
                               .c = config->n_embd,
                               .v = config->vocab_size,
                               .heads = config->n_head,
                               .kv_heads = kv_heads,
                               .width = width,
                               .q = config->n_head * width,
                               .kv = kv_heads * width,
                               .qkv = (config->n_head + 2 * kv_heads) * width,
                               .hidden = is_gpt2 ? 4 * config->n_embd : config->llama.n_inner,
                               .is_gpt2 = is_gpt2};
}

/* ---- carving ------------------------------------------------------------------------------------------- */

/* Hands out parts of a buffer. If base is NULL, it only counts bytes. */
typedef struct carver {
    char *base;
    size_t used, value_bytes; /* bytes of a weight or an activation */
} carver_t;

static void *carve(carver_t *carver, size_t n, size_t elem_bytes)
{
    void *piece = carver->base ? carver->base + carver->used : NULL;
    size_t bytes = tw_size_mul(n, elem_bytes);
    size_t steps = bytes / STEP_BYTES + (bytes % STEP_BYTES > 0);
    carver->used = tw_size_add(carver->used, tw_size_mul(steps, STEP_BYTES));
    return piece;
}

static tw_values_t *carve_values(carver_t *carver, size_t rows, size_t cols)
{
    return carve(carver, tw_size_mul(rows, cols), carver->value_bytes);
}

static float *carve_fp32(carver_t *carver, size_t n)
{
    return carve(carver, n, sizeof(float));
}

static tw_device_saved_t device_carve_saved(carver_t *carver, const tw_device_sizes_t *s)
{
    return (tw_device_saved_t){.qkv = carve_values(carver, s->n, s->qkv),
                               .attended = carve_values(carver, s->n, s->q),
                               .middle = carve_values(carver, s->n, s->c),
                               .hidden = carve_values(carver, s->n, s->hidden),
                               .up = carve_values(carver, s->is_gpt2 ? 0 : s->n, s->hidden),
                               .lse = carve_fp32(carver, tw_size_mul(s->n, s->heads)),
                               .mean_1 = carve_fp32(carver, s->is_gpt2 ? s->n : 0),
                               .rstd_1 = carve_fp32(carver, s->n),
                               .mean_2 = carve_fp32(carver, s->is_gpt2 ? s->n : 0),
                               .rstd_2 = carve_fp32(carver, s->n)};
}

size_t tw_device_saved_bytes(const tw_device_sizes_t *sizes)
{
    carver_t carver = {.value_bytes = tw_type_bytes(sizes->type)};
    device_carve_saved(&carver, sizes);
    return carver.used;
}

tw_device_saved_t tw_device_saved_at(const tw_device_sizes_t *sizes, void *saved)
{
    carver_t carver = {.base = saved, .value_bytes = tw_type_bytes(sizes->type)};
    return device_carve_saved(&carver, sizes);
}

/* ---- workspace ----------------------------------------------------------------------------------------- */

tw_cuda_attention_t tw_device_attention_args(const tw_device_sizes_t *s)
{
    return (tw_cuda_attention_t){.type = s->type,
                                 .batch = s->batch,
                                 .seq_len = s->seq_len,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .width = s->width,
                                 .q_stride = s->qkv,
                                 .k_stride = s->qkv,
                                 .v_stride = s->qkv};
}

tw_cuda_heads_t tw_device_heads_args(const tw_device_sizes_t *s, const tw_model_config_t *config, int is_k)
{
    return (tw_cuda_heads_t){.type = s->type,
                             .rows = s->n,
                             .seq_len = s->seq_len,
                             .heads = is_k ? s->kv_heads : s->heads,
                             .width = s->width,
                             .epsilon = (float)config->layer_norm_epsilon,
                             .x_stride = s->qkv};
}

/** Return the size in bytes of the workspace that all kernels share. It depends on whether beta and gamma are
 *  NULL, but not on their values, so "" stands for them. */
static size_t device_workspace_bytes(const tw_device_model_t *m, const tw_device_sizes_t *s)
{
    const tw_cuda_norm_t norm = {
        .type = s->type, .rows = s->n, .channels = s->c, .beta = s->is_gpt2 ? "" : NULL};
    const tw_cuda_rows_t bias = {.type = s->type,
                                 .rows = s->n,
                                 .channels = TW_LARGER(TW_LARGER(s->c, s->qkv), s->hidden),
                                 .stride = s->c};
    const tw_cuda_attention_t attention = tw_device_attention_args(s);
    tw_cuda_heads_t heads = tw_device_heads_args(s, &m->model.config, 0);
    heads.gamma = "";
    size_t bytes = TW_LARGER(tw_cuda_norm_workspace_bytes(&norm), tw_cuda_bias_workspace_bytes(&bias));
    bytes = TW_LARGER(bytes, tw_cuda_attention_workspace_bytes(&attention));
    return s->is_gpt2 ? bytes : TW_LARGER(bytes, tw_cuda_heads_workspace_bytes(&heads));
}

/* ---- scratch ------------------------------------------------------------------------------------------- */

/** Return how many rows a chunk of logits has. Chunks have about the same size, a multiple of ROWS_STEP. */
static size_t logit_rows(size_t logits_elems, size_t stride, size_t n)
{
    size_t most = TW_LARGER(logits_elems / stride, ROWS_STEP);
    size_t n_chunks = n / most + (n % most > 0);
    size_t rows = n / n_chunks + (n % n_chunks > 0);
    return (rows + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP;
}

static void carve_layers(carver_t *carver, const tw_device_sizes_t *s, tw_device_scratch_t *scratch)
{
    size_t angles = s->is_gpt2 ? 0 : tw_size_mul(s->seq_len, s->width / 2);
    scratch->saved = carve(carver, tw_device_saved_bytes(s), 1);
    scratch->norm = carve_values(carver, s->n, s->c);
    scratch->d_norm = carve_values(carver, s->n, s->c);
    scratch->d_attended = carve_values(carver, s->n, s->q);
    scratch->qkv = carve_values(carver, s->is_gpt2 ? 0 : s->n, s->qkv);
    scratch->d_qkv = carve_values(carver, s->n, s->qkv);
    scratch->hidden = carve_values(carver, s->n, s->hidden);
    scratch->d_hidden = carve_values(carver, s->n, s->hidden);
    scratch->d_gate = carve_values(carver, s->is_gpt2 ? 0 : s->n, s->hidden);
    scratch->cosines = carve_fp32(carver, angles);
    scratch->sines = carve_fp32(carver, angles);
}

static void device_carve_scratch(carver_t *carver, const tw_device_model_t *m, const tw_device_sizes_t *s,
                                 tw_device_scratch_t *scratch)
{
    carve_layers(carver, s, scratch);
    scratch->mean = carve_fp32(carver, s->n);
    scratch->rstd = carve_fp32(carver, s->n);
    scratch->logit_stride = (s->v + LOGITS_STEP - 1) / LOGITS_STEP * LOGITS_STEP;
    scratch->logit_rows = logit_rows(m->logits_elems, scratch->logit_stride, s->n);
    scratch->logits = carve_values(carver, scratch->logit_rows, scratch->logit_stride);
    scratch->max = carve_fp32(carver, s->n);
    scratch->sum = carve_fp32(carver, s->n);
    scratch->target = carve_fp32(carver, s->n);
    scratch->losses = carve(carver, s->batch, sizeof(*scratch->losses));
    scratch->tokens = carve(carver, s->n, sizeof(*scratch->tokens));
    scratch->starts = carve(carver, s->n, sizeof(*scratch->starts));
    scratch->workspace = carve(carver, device_workspace_bytes(m, s), 1);
}

size_t tw_device_scratch_bytes(const tw_device_model_t *m, const tw_device_sizes_t *sizes)
{
    carver_t carver = {.value_bytes = tw_type_bytes(sizes->type)};
    tw_device_scratch_t unused;
    device_carve_scratch(&carver, m, sizes, &unused);
    return carver.used;
}

/** Copy the tables of rotary embeddings to the device. */
static tw_status_t put_angles(tw_device_model_t *m, const tw_device_sizes_t *s)
{
    size_t n = s->seq_len * (s->width / 2);
    float *tables = calloc(2 * n, sizeof(*tables));
    TW_FAIL_IF(!tables, TW_ERR_NO_MEMORY, "device: out of memory for %zu angles", n);
    tw_rope_table(&m->model.config.llama.rope, s->width, s->seq_len, tables, tables + n);
    tw_status_t status = tw_model_copy(&m->model, m->scratch.cosines, tables, n * sizeof(*tables));
    if (status == TW_OK) {
        status = tw_model_copy(&m->model, m->scratch.sines, tables + n, n * sizeof(*tables));
    }
    free(tables);
    return status;
}

tw_status_t tw_device_scratch_init(tw_device_model_t *m, const tw_device_sizes_t *sizes)
{
    carver_t carver = {.value_bytes = tw_type_bytes(sizes->type)};
    TW_TRY(m->device->alloc(m->device, tw_device_scratch_bytes(m, sizes), 0, (void **)&carver.base));
    device_carve_scratch(&carver, m, sizes, &m->scratch);
    m->scratch.memory = carver.base;
    return sizes->is_gpt2 ? TW_OK : put_angles(m, sizes);
}
