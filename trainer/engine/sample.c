/* Samples text. The units are gathered once and kept on rank 0, which then computes alone. It uses a second
 * tw_model_t, so training's state does not change. Gathering per token would send the model each time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "trainer/engine/calls.h"

/* ---- what it takes ------------------------------------------------------------------------------------- */

static size_t at_most(size_t a, size_t most)
{
    return a < most ? a : most;
}

/** Return the most tokens that a line given to the model has: prompt and sampled ones, at most the sequence
 *  length. A prompt has at most as many tokens as bytes, plus 1, as an empty prompt becomes one token. */
static size_t sample_length(const tw_train_options_t *o)
{
    return at_most(1 + strlen(o->sample_prompt) + (size_t)o->sample_tokens, (size_t)o->sequence);
}

/** Return how many floats logits, activations between units, and tokens take. */
static size_t floats_of(const tw_train_options_t *o, const tw_model_t *model, size_t x_elems)
{
    size_t lines = (size_t)o->sample_lines, length = sample_length(o);
    return 2 * x_elems + lines * (tw_model_config_get(model)->vocab_size + length);
}

size_t tw_engine_sample_bytes(const tw_train_options_t *o, const tw_model_t *model)
{
    tw_model_sizes_t sizes = tw_model_host_sizes_get(model, (size_t)o->sample_lines, sample_length(o));
    return tw_size_add(sizes.scratch_bytes, tw_size_mul(floats_of(o, model, sizes.x_elems), sizeof(float)));
}

static size_t whole_bytes(const tw_engine_t *engine)
{
    return engine->stage == 3 ? tw_model_n_params(engine->model) * tw_type_bytes(engine->weight_type) : 0;
}

void tw_sample_init(tw_engine_t *engine)
{
    if (engine->options->sample_steps > 0 && engine->rank == 0) {
        /* Sampling computes on this processor, even if training computes on a device. */
        engine->homes[TW_ENGINE_SCRATCH].bytes +=
            whole_bytes(engine) + tw_engine_sample_bytes(engine->options, engine->model);
    }
}

/* ---- rank 0 alone -------------------------------------------------------------------------------------- */

typedef struct sampler {
    tw_engine_t *engine;
    const tw_engine_lines_t *sample;
    tw_model_t *model; /* a model for lines x length tokens */
    void *whole;       /* all units' weights, one after the other; NULL if the stage holds whole units */
    void *memory;      /* one allocation for x, logits and tokens */
    float *x[2];       /* (lines, length, C) */
    float *logits;     /* (lines, V) */
    int32_t *tokens;   /* (lines, length) */
    size_t lines, length, vocab_size;
} sampler_t;

static tw_status_t sample_take_memory(sampler_t *sampler)
{
    const tw_train_options_t *o = sampler->engine->options;
    size_t x_elems = tw_model_sizes_get(sampler->model, sampler->lines, sampler->length).x_elems;
    float *memory = tw_buffer_alloc(floats_of(o, sampler->model, x_elems) * sizeof(*memory));
    sampler->memory = memory;
    TW_FAIL_IF(!memory, TW_ERR_NO_MEMORY, "rank 0: out of memory for sampling %zu lines of %zu tokens",
               sampler->lines, sampler->length);
    sampler->x[0] = memory;
    sampler->x[1] = memory + x_elems;
    sampler->logits = memory + 2 * x_elems;
    sampler->tokens = (int32_t *)(sampler->logits + sampler->lines * sampler->vocab_size);
    return TW_OK;
}

static tw_status_t take_whole(sampler_t *sampler)
{
    size_t n_bytes = whole_bytes(sampler->engine);
    sampler->whole = n_bytes > 0 ? tw_buffer_alloc(n_bytes) : NULL;
    TW_FAIL_IF(n_bytes > 0 && !sampler->whole, TW_ERR_NO_MEMORY,
               "rank 0: out of memory for whole weights to sample from: %zu bytes (thinwire.sample_steps)",
               n_bytes);
    return TW_OK;
}

static tw_status_t sampler_init(tw_engine_t *engine, const tw_engine_lines_t *sample, sampler_t *sampler)
{
    const tw_model_config_t *config = tw_model_config_get(engine->model);
    *sampler = (sampler_t){.engine = engine,
                           .sample = sample,
                           .lines = (size_t)engine->options->sample_lines,
                           .length = sample_length(engine->options),
                           .vocab_size = config->vocab_size};
    TW_TRY(tw_model_create(config, &sampler->model));
    TW_TRY(tw_model_set_pool(sampler->model, tw_model_pool(engine->model)));
    TW_TRY(tw_model_reserve(sampler->model, sampler->lines, sampler->length));
    TW_TRY(sample_take_memory(sampler));
    TW_TRY(take_whole(sampler));
    engine->memory_bytes += whole_bytes(engine) + tw_engine_sample_bytes(engine->options, engine->model);
    tw_engine_note_memory(engine);
    engine->memory_bytes -= whole_bytes(engine) + tw_engine_sample_bytes(engine->options, engine->model);
    return TW_OK;
}

static void sampler_cleanup(sampler_t *sampler)
{
    tw_model_destroy(sampler->model);
    tw_buffer_free(sampler->memory);
    tw_buffer_free(sampler->whole);
}

/** Fill in the last tokens of a line, which is the prompt and the first n sampled tokens. Return how many
 *  tokens were filled in. Later tokens do not matter, as attention is causal. */
static size_t fill_line(sampler_t *sampler, size_t line, size_t n)
{
    const tw_engine_lines_t *sample = sampler->sample;
    const int32_t *sampled = sample->tokens + line * (size_t)sampler->engine->options->sample_tokens;
    int32_t *tokens = sampler->tokens + line * sampler->length;
    size_t all = sample->n_prompt + n, seen = at_most(all, sampler->length), first = all - seen;
    memset(tokens, 0, sampler->length * sizeof(*tokens));
    for (size_t i = 0; i < seen; i++) {
        size_t at = first + i;
        tokens[i] = at < sample->n_prompt ? sample->prompt[at] : sampled[at - sample->n_prompt];
    }
    return seen;
}

static void point_at(const sampler_t *sampler, size_t unit)
{
    const tw_engine_t *engine = sampler->engine;
    const void *whole = sampler->whole;
    for (size_t u = 0; u < unit && whole; u++) {
        whole = tw_engine_weight_at(engine, whole, engine->units[u].n_elems);
    }
    tw_walk_point_at(sampler->engine, unit, whole ? whole : engine->units[unit].weights);
}

static tw_status_t sample_forward(const sampler_t *sampler, size_t seen)
{
    tw_engine_t *engine = sampler->engine;
    point_at(sampler, TW_MODEL_ROOT);
    TW_TRY(tw_model_embed_forward(sampler->model, engine->weight_ptrs, sampler->tokens, sampler->x[0]));
    for (size_t u = 1; u <= engine->n_layer; u++) {
        point_at(sampler, u);
        tw_model_block_forward(sampler->model, u, engine->weight_ptrs, sampler->x[(u - 1) % 2],
                               sampler->x[u % 2], NULL);
    }
    point_at(sampler, TW_MODEL_ROOT);
    tw_model_logits(sampler->model, engine->weight_ptrs, sampler->x[engine->n_layer % 2], seen - 1,
                    sampler->logits);
    return TW_OK;
}

static size_t largest(const float *logits, size_t n)
{
    size_t at = 0;
    for (size_t i = 1; i < n; i++) {
        at = logits[i] > logits[at] ? i : at;
    }
    return at;
}

/** Return the token at which the cumulative probability of softmax(logits / temperature) exceeds `share`, or
 *  the most likely token if temperature is 0. */
static size_t pick(const float *logits, size_t n, double temperature, double share)
{
    size_t top = largest(logits, n), at = 0;
    double sum = 0;
    if (temperature == 0) {
        return top;
    }
    for (size_t i = 0; i < n; i++) {
        sum += exp((logits[i] - logits[top]) / temperature);
    }
    for (double left = share * sum; at + 1 < n; at++) {
        left -= exp((logits[at] - logits[top]) / temperature);
        if (left < 0) {
            break;
        }
    }
    return at;
}

/** Draw a random number in [0, 1). */
static double draw(const tw_engine_t *engine, size_t line, size_t place)
{
    uint64_t of[] = {engine->steps_done, line, place};
    return (double)(XXH64(of, sizeof(of), (uint64_t)engine->options->seed) >> 11) * 0x1p-53;
}

static tw_status_t sample_token(sampler_t *sampler, size_t place)
{
    const tw_train_options_t *o = sampler->engine->options;
    size_t seen = 0;
    for (size_t line = 0; line < sampler->lines; line++) {
        seen = fill_line(sampler, line, place);
    }
    TW_TRY(sample_forward(sampler, seen));
    for (size_t line = 0; line < sampler->lines; line++) {
        sampler->sample->tokens[line * (size_t)o->sample_tokens + place] =
            (int32_t)pick(sampler->logits + line * sampler->vocab_size, sampler->vocab_size,
                          o->sample_temperature, draw(sampler->engine, line, place));
    }
    return TW_OK;
}

/* ---- all ranks ----------------------------------------------------------------------------------------- */

static tw_status_t sample_first_rank(tw_engine_t *engine, const tw_engine_lines_t *sample)
{
    sampler_t sampler;
    tw_status_t status = sampler_init(engine, sample, &sampler);
    status = status == TW_OK ? tw_walk_all(engine, sampler.whole) : status;
    for (size_t place = 0; place < (size_t)engine->options->sample_tokens && status == TW_OK; place++) {
        status = sample_token(&sampler, place);
    }
    sampler_cleanup(&sampler);
    tw_engine_trim(); /* return freed memory to the system before training allocates more */
    return status;
}

/** Wait for rank 0 without a time limit. Only the death of a rank ends the wait with an error. */
static tw_status_t wait_for_first_rank(tw_engine_t *engine)
{
    size_t world = (size_t)engine->world;
    unsigned char *all = calloc(world, 1);
    TW_FAIL_IF(!all, TW_ERR_NO_MEMORY, "rank %d: out of memory for a byte of %zu ranks", engine->rank, world);
    tw_coll_segment_t segment = {.dst = all, .n_elems = world};
    const tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1, .patient = 1};
    tw_status_t status = tw_engine_run(engine, &args);
    free(all);
    return status;
}

tw_status_t tw_engine_sample(tw_engine_t *engine, const tw_engine_lines_t *sample)
{
    TW_TRY(tw_engine_drain(engine));
    tw_engine_totals_t begin = tw_engine_totals_get(engine);
    tw_status_t status = engine->rank == 0 ? sample_first_rank(engine, sample) : tw_walk_all(engine, NULL);
    status = status == TW_OK ? wait_for_first_rank(engine) : status;
    tw_engine_aside_end(engine, TW_ENGINE_SAMPLING, &begin);
    return status;
}
