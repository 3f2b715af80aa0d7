/* Divides GPT-2's saved memory and its scratch memory, one buffer each, into parts. */
#include "trainer/model/carve.h"
#include "trainer/model/gpt2.h"

static tw_model_norm_stats_t carve_stats(tw_carver_t *carver, size_t n)
{
    float *mean = tw_carve(carver, n);
    return (tw_model_norm_stats_t){.mean = mean, .rstd = tw_carve(carver, n)};
}

static tw_gpt2_saved_t gpt2_carve_saved(tw_carver_t *carver, const tw_model_config_t *config, size_t n)
{
    size_t c = config->n_embd;
    tw_gpt2_saved_t saved;
    saved.qkv = tw_carve(carver, n * 3 * c);
    saved.attended = tw_carve(carver, n * c);
    saved.middle = tw_carve(carver, n * c);
    saved.hidden = tw_carve(carver, n * 4 * c);
    saved.ln_1 = carve_stats(carver, n);
    saved.ln_2 = carve_stats(carver, n);
    return saved;
}

size_t tw_gpt2_saved_bytes(const tw_model_config_t *config, size_t n)
{
    tw_carver_t carver = {0};
    gpt2_carve_saved(&carver, config, n);
    return carver.used;
}

tw_gpt2_saved_t tw_gpt2_saved_at(const tw_model_config_t *config, size_t n, void *saved)
{
    tw_carver_t carver = {.base = saved};
    return gpt2_carve_saved(&carver, config, n);
}

static void gpt2_carve_scratch(tw_carver_t *carver, const tw_model_config_t *config, size_t batch,
                               size_t seq_len, tw_compute_t *compute, tw_gpt2_scratch_t *scratch)
{
    size_t c = config->n_embd, n = batch * seq_len;
    size_t wide_rows = config->vocab_size > 4 * c ? config->vocab_size : 4 * c;
    scratch->saved = tw_carve_bytes(carver, tw_gpt2_saved_bytes(config, n));
    scratch->gamma = tw_carve(carver, c);
    scratch->bias = tw_carve(carver, 4 * c);
    tw_factors_carve(carver, config->products, config->fp32_weights ? 0 : wide_rows * c, n * 4 * c, compute);
    scratch->norm = tw_carve(carver, n * c);
    scratch->d_norm = tw_carve(carver, n * c);
    scratch->hidden = tw_carve(carver, n * 4 * c);
    scratch->d_hidden = tw_carve(carver, n * 4 * c);
    scratch->attention = tw_carve(
        carver, tw_size_mul((size_t)tw_pool_threads(compute->pool), tw_attention_scratch_elems(seq_len)));
    scratch->root = tw_root_scratch_carve(carver, config, n);
    scratch->root.gamma = scratch->gamma;
    scratch->root.beta = scratch->bias;
    scratch->root.norm = scratch->norm;
    scratch->root.d_norm = scratch->d_norm;
}

size_t tw_gpt2_scratch_bytes(const tw_model_config_t *config, size_t batch, size_t seq_len, tw_pool_t *pool)
{
    tw_carver_t carver = {0};
    tw_compute_t no_compute = {.pool = pool};
    tw_gpt2_scratch_t unused;
    gpt2_carve_scratch(&carver, config, batch, seq_len, &no_compute, &unused);
    return carver.used + (size_t)tw_pool_threads(pool) * TW_PRODUCTS_SCRATCH_BYTES;
}

tw_status_t tw_gpt2_reserve(tw_model_t *model)
{
    tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    const tw_model_config_t *config = &model->config;
    tw_carver_t carver;
    TW_TRY(tw_model_scratch_alloc(
        model, tw_gpt2_scratch_bytes(config, model->batch, model->seq_len, model->compute.pool), &carver));
    gpt2_carve_scratch(&carver, config, model->batch, model->seq_len, &model->compute, scratch);
    model->root_scratch = &scratch->root;
    return TW_OK;
}
