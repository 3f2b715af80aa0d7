/* The engine's memory: counted, and freed all at once. */
#include <stdlib.h>

#include "trainer/engine/state.h"

static tw_status_t grow(tw_engine_t *engine)
{
    size_t max = engine->max_blocks > 0 ? 2 * engine->max_blocks : 64;
    void **blocks = realloc(engine->blocks, max * sizeof(*blocks));
    if (!blocks) {
        return TW_ERR_NO_MEMORY;
    }
    engine->blocks = blocks;
    engine->max_blocks = max;
    return TW_OK;
}

void *tw_engine_alloc(tw_engine_t *engine, size_t n, size_t elem_bytes, const char *what)
{
    if (engine->n_blocks == engine->max_blocks && grow(engine) != TW_OK) {
        tw_error("rank %d: out of memory for %s", engine->rank, what);
        return NULL;
    }
    void *block = n <= SIZE_MAX / elem_bytes ? tw_buffer_alloc_zero(n * elem_bytes) : NULL;
    if (!block) {
        tw_error("rank %d: out of memory for %s: %zu elements of %zu bytes", engine->rank, what, n,
                 elem_bytes);
        return NULL;
    }
    engine->blocks[engine->n_blocks++] = block;
    engine->memory_bytes += n * elem_bytes;
    return block;
}

void tw_engine_free_all(tw_engine_t *engine)
{
    for (size_t i = 0; i < engine->n_blocks; i++) {
        tw_buffer_free(engine->blocks[i]);
    }
    free(engine->blocks);
    engine->blocks = NULL;
    engine->n_blocks = engine->max_blocks = 0;
}

size_t tw_engine_memory_bytes(const tw_engine_t *engine)
{
    return engine->memory_bytes + tw_hpz_memory_bytes(engine->hpz) + tw_coll_workspace_bytes(engine->world);
}
