/* Divides the Llama family's saved memory and its scratch memory, one buffer each, into parts. */
#include "trainer/model/carve.h"
#include "trainer/model/llama.h"
#include "trainer/model/rope.h"

static tw_llama_saved_t llama_carve_saved(tw_carver_t *carver, const tw_model_config_t *config, size_t n)
{
    tw_llama_saved_t saved;
    saved.qkv = tw_carve(carver, tw_size_mul(n, tw_llama_qkv_width(config)));
    saved.attended = tw_carve(carver, tw_size_mul(n, tw_llama_q_width(config)));
    saved.middle = tw_carve(carver, tw_size_mul(n, config->n_embd));
    saved.gate = tw_carve(carver, tw_size_mul(n, config->llama.n_inner));
    saved.up = tw_carve(carver, tw_size_mul(n, config->llama.n_inner));
    saved.rstd_1 = tw_carve(carver, n);
    saved.rstd_2 = tw_carve(carver, n);
    return saved;
}

size_t tw_llama_saved_bytes(const tw_model_config_t *config, size_t n)
{
    tw_carver_t carver = {0};
    llama_carve_saved(&carver, config, n);
    return carver.used;
}

tw_llama_saved_t tw_llama_saved_at(const tw_model_config_t *config, size_t n, void *saved)
{
    tw_carver_t carver = {.base = saved};
    return llama_carve_saved(&carver, config, n);
}

static void llama_carve_scratch(tw_carver_t *carver, const tw_model_config_t *config, size_t batch,
                                size_t seq_len, tw_compute_t *compute, tw_llama_scratch_t *scratch)
{
    size_t c = config->n_embd, inner = config->llama.n_inner, n = tw_size_mul(batch, seq_len);
    size_t q = tw_llama_q_width(config), qkv = tw_llama_qkv_width(config);
    size_t angles = tw_size_mul(seq_len, config->llama.head_dim / 2);
    scratch->saved = tw_carve_bytes(carver, tw_llama_saved_bytes(config, n));
    size_t wide_rows = config->fp32_weights ? 0 : TW_LARGER(TW_LARGER(config->vocab_size, inner), q);
    tw_factors_carve(carver, config->products, tw_size_mul(wide_rows, c),
                     tw_size_mul(n, TW_LARGER(TW_LARGER(c, qkv), inner)), compute);
    scratch->vector = tw_carve(carver, TW_LARGER(TW_LARGER(c, q), 2 * config->llama.head_dim));
    scratch->norm = tw_carve(carver, tw_size_mul(n, c));
    scratch->d_norm = tw_carve(carver, tw_size_mul(n, c));
    scratch->qkv = tw_carve(carver, tw_size_mul(n, qkv));
    scratch->d_qkv = tw_carve(carver, tw_size_mul(n, qkv));
    scratch->d_attended = tw_carve(carver, tw_size_mul(n, q));
    scratch->hidden = tw_carve(carver, tw_size_mul(n, inner));
    scratch->d_hidden = tw_carve(carver, tw_size_mul(n, inner));
    scratch->attention = tw_carve(
        carver, tw_size_mul((size_t)tw_pool_threads(compute->pool), tw_attention_scratch_elems(seq_len)));
    scratch->root = tw_root_scratch_carve(carver, config, n);
    scratch->root.gamma = scratch->vector;
    scratch->root.norm = scratch->norm;
    scratch->root.d_norm = scratch->d_norm;
    scratch->cosines = tw_carve(carver, angles);
    scratch->sines = tw_carve(carver, angles);
}

size_t tw_llama_scratch_bytes(const tw_model_config_t *config, size_t batch, size_t seq_len, tw_pool_t *pool)
{
    tw_carver_t carver = {0};
    tw_compute_t no_compute = {.pool = pool};
    tw_llama_scratch_t unused;
    llama_carve_scratch(&carver, config, batch, seq_len, &no_compute, &unused);
    return carver.used + (size_t)tw_pool_threads(pool) * TW_PRODUCTS_SCRATCH_BYTES;
}

tw_status_t tw_llama_reserve(tw_model_t *model)
{
    tw_llama_scratch_t *scratch = &((tw_llama_t *)model)->scratch;
    const tw_model_config_t *config = &model->config;
    tw_carver_t carver;
    TW_TRY(tw_model_scratch_alloc(
        model, tw_llama_scratch_bytes(config, model->batch, model->seq_len, model->compute.pool), &carver));
    llama_carve_scratch(&carver, config, model->batch, model->seq_len, &model->compute, scratch);
    model->root_scratch = &scratch->root;
    tw_rope_table(&config->llama.rope, config->llama.head_dim, model->seq_len, scratch->cosines,
                  scratch->sines);
    return TW_OK;
}
