/* Work of the engine itself on the model's threads. Each element is computed alone, so the bits do not depend
 * on the number of threads. */
#include <string.h>

#include "trainer/engine/calls.h"

/* LEAST: fewest elements that a thread is given. STEP: a thread's range is a multiple of it. */
#define LEAST ((size_t)1 << 15)
#define STEP 64

typedef struct call {
    const tw_engine_t *engine;
    const float *from;
    const void *grads;
    tw_type_t type; /* type of `to` */
    void *to;
} call_t;

static void over_elements(const tw_engine_t *engine, size_t n, tw_pool_range_t range, call_t *call)
{
    call->engine = engine;
    tw_pool_ranges(tw_model_pool(engine->model), n, STEP, LEAST, range, call);
}

static void threads_convert(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    tw_convert_from_fp32(call->type, call->from + first, 1.0f,
                         (char *)call->to + first * tw_type_bytes(call->type), n);
}

void tw_engine_convert(const tw_engine_t *engine, const float *from, tw_type_t type, void *to, size_t n)
{
    over_elements(engine, n, threads_convert, &(call_t){.from = from, .type = type, .to = to});
}

static void threads_copy(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    memcpy((char *)call->to + first, (const char *)call->grads + first, n);
}

void tw_engine_copy(const tw_engine_t *engine, const void *from, void *to, size_t n_bytes)
{
    over_elements(engine, n_bytes, threads_copy, &(call_t){.grads = from, .to = to});
}

static void clear(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    memset((float *)call->to + first, 0, n * sizeof(float));
}

void tw_engine_clear(const tw_engine_t *engine, float *to, size_t n)
{
    over_elements(engine, n, clear, &(call_t){.to = to});
}

static void add_norm(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    tw_type_t type = call->engine->grad_type;
    const char *grads = call->grads;
    tw_norm_add(&call->engine->norms[thread], type, grads + first * tw_type_bytes(type), n);
}

/** The threads' norms are integers, so the order of adding does not matter. */
void tw_engine_add_norm(const tw_engine_t *engine, tw_norm_t *norm, const void *grads, size_t n)
{
    size_t n_threads = (size_t)tw_pool_threads(tw_model_pool(engine->model));
    memset(engine->norms, 0, n_threads * sizeof(*engine->norms));
    over_elements(engine, n, add_norm, &(call_t){.grads = grads});
    for (size_t i = 0; i < n_threads; i++) {
        tw_norm_merge(norm, &engine->norms[i]);
    }
}

tw_status_t tw_threads_init(tw_engine_t *engine)
{
    size_t n_threads = (size_t)tw_pool_threads(tw_model_pool(engine->model));
    engine->norms =
        tw_engine_alloc(engine, TW_ENGINE_SCRATCH, n_threads, sizeof(*engine->norms), "parts of the norm");
    return engine->norms ? TW_OK : TW_ERR_NO_MEMORY;
}
