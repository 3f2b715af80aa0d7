/* Allocates the engine's memory, counts it, and frees all of it at once. Offloaded memory is a mapped file.
 * The system then reads pages ahead when it is told that they will be needed, writes dirty pages in the
 * background, and drops unused pages if memory is short. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/engine/calls.h"

/* Allocations of at least this size are tensors. The engine's lists and pointers are always smaller. */
#define TENSOR_BYTES ((size_t)1 << 24)

/** Make room for n more items in a list. */
static tw_status_t memory_grow(tw_engine_list_t *list, size_t n)
{
    size_t max = list->max > 0 ? 2 * list->max : 64;
    if (list->n + n <= list->max) {
        return TW_OK;
    }
    void **items = realloc(list->items, max * sizeof(*items));
    if (!items) {
        return TW_ERR_NO_MEMORY;
    }
    list->items = items;
    list->max = max;
    return TW_OK;
}

static void *alloc_memory(tw_engine_t *engine, size_t n_bytes)
{
    if (memory_grow(&engine->blocks, 1) != TW_OK) {
        return NULL;
    }
    /* a tensor that does not fit is counted, but not zeroed, so that it takes no real memory */
    int is_touched = n_bytes < TENSOR_BYTES || !tw_engine_is_full(engine);
    void *block = is_touched ? tw_buffer_alloc_zero(n_bytes) : tw_buffer_alloc(n_bytes);
    if (block) {
        engine->blocks.items[engine->blocks.n++] = block;
        engine->memory_bytes += n_bytes;
    }
    return block;
}

/* ---- planned ------------------------------------------------------------------------------------------- */

/* Lists of fewer bytes are allocated normally: mapping pages for them is not worth it. */
#define LEAST_SPACE ((size_t)1 << 16)
/* An address that is never mapped. */
#define NOWHERE ((void *)(uintptr_t)4096)

/** Map zeroed pages, which take memory only when they are written. */
static void *map_space(tw_engine_t *engine, size_t n_bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *start = memory_grow(&engine->spaces, 2) == TW_OK
                      ? mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0)
                      : MAP_FAILED;
    if (start == MAP_FAILED) {
        return NULL;
    }
    engine->spaces.items[engine->spaces.n++] = start;
    engine->spaces.items[engine->spaces.n++] = (void *)(uintptr_t)n_bytes;
    return start;
}

/** Allocate memory for a planned engine. Tensors, which it must not touch, get an address that crashes. */
static void *alloc_planned(tw_engine_t *engine, size_t n_bytes)
{
    if (n_bytes >= TENSOR_BYTES) {
        return NOWHERE;
    }
    return n_bytes < LEAST_SPACE ? alloc_memory(engine, n_bytes) : map_space(engine, n_bytes);
}

/* ---- offloaded ----------------------------------------------------------------------------------------- */

/** Open an unnamed file of n_bytes, allocated on the disk at once. So a full disk is an error here, not a
 *  crash when a page is written. */
static int open_file(const tw_engine_t *engine, const char *folder, size_t n_bytes)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)n_bytes);
    if (error != 0) {
        tw_error("rank %d: %s: cannot hold a file of %zu bytes: %s", engine->rank, folder, n_bytes,
                 strerror(error));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

static void *alloc_file(tw_engine_t *engine, size_t n_bytes, const char *folder)
{
    TW_FAIL_IF(engine->n_maps == TW_ENGINE_MAX_MAPS, NULL, "rank %d: more than %d files", engine->rank,
               TW_ENGINE_MAX_MAPS);
    n_bytes = n_bytes > 0 ? n_bytes : 1;
    int fd = open_file(engine, folder, n_bytes);
    if (fd < 0) {
        return NULL;
    }
    void *start = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    TW_FAIL_IF(start == MAP_FAILED, NULL, "rank %d: %s: cannot map %zu bytes: %s", engine->rank, folder,
               n_bytes, strerror(error));
    engine->maps[engine->n_maps++] = (tw_engine_map_t){.start = start, .n_bytes = n_bytes};
    engine->file_bytes += n_bytes;
    return start;
}

void *tw_engine_alloc(tw_engine_t *engine, tw_engine_holding_t holding, size_t n, size_t elem_bytes,
                      const char *what)
{
    tw_engine_home_t *home = &engine->homes[holding];
    size_t n_bytes;
    void *block = NULL;
    if (!__builtin_mul_overflow(n, elem_bytes, &n_bytes)) {
        home->bytes += n_bytes;
        if (home->place == TW_TRAIN_NVME && !engine->is_planned) {
            return alloc_file(engine, n_bytes, home->folder);
        }
        block = engine->is_planned ? alloc_planned(engine, n_bytes) : alloc_memory(engine, n_bytes);
    }
    if (!block) {
        tw_error("rank %d: out of memory for %s: %zu elements of %zu bytes", engine->rank, what, n,
                 elem_bytes);
    }
    return block;
}

/* ---- where the model computes -------------------------------------------------------------------------- */

/** An array that does not fit is counted, but not allocated: tw_engine_check_device will fail anyway. */
void *tw_engine_alloc_near(tw_engine_t *engine, tw_engine_holding_t holding, size_t n_bytes, const char *what)
{
    static char not_taken;
    if (!tw_model_is_on_device(engine->model)) {
        return tw_engine_alloc(engine, holding, n_bytes, 1, what);
    }
    engine->homes[holding].bytes += n_bytes;
    engine->homes[holding].gpu_bytes += n_bytes;
    if (tw_engine_is_full(engine) || engine->is_planned) {
        return &not_taken;
    }
    void *block =
        memory_grow(&engine->near_blocks, 1) == TW_OK ? tw_model_alloc(engine->model, n_bytes) : NULL;
    if (block) {
        engine->near_blocks.items[engine->near_blocks.n++] = block;
    } else {
        tw_error("rank %d: out of the device's memory for %s: %zu bytes", engine->rank, what, n_bytes);
    }
    return block;
}

/** A planned engine's memory is not pinned, as pinning would allocate its pages. */
void tw_engine_pin(tw_engine_t *engine, void *start, size_t n_bytes)
{
    int is_counted = engine->is_planned || tw_engine_is_full(engine);
    if (!is_counted && memory_grow(&engine->pinned, 1) == TW_OK &&
        tw_model_pin(engine->model, start, n_bytes)) {
        engine->pinned.items[engine->pinned.n++] = start;
    }
}

static void free_list(tw_engine_list_t *list)
{
    free(list->items);
    *list = (tw_engine_list_t){0};
}

/* ---- files --------------------------------------------------------------------------------------------- */

/** Return 1 if the address is in a mapped file. In other memory MADV_DONTNEED would lose the contents. */
static int is_mapped(const tw_engine_t *engine, const void *start)
{
    for (size_t i = 0; i < engine->n_maps; i++) {
        uintptr_t first = (uintptr_t)engine->maps[i].start, at = (uintptr_t)start;
        if (at >= first && at < first + engine->maps[i].n_bytes) {
            return 1;
        }
    }
    return 0;
}

/** Give madvise advice for all pages that the range touches, as advice is for whole pages. */
static void advise(const tw_engine_t *engine, const void *start, size_t n_bytes, int advice)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)start / page * page, end = (uintptr_t)start + n_bytes;
    if (n_bytes > 0 && is_mapped(engine, start)) {
        (void)madvise((void *)first, end - first, advice); /* a failure only makes training slower */
    }
}

void tw_engine_fetch(const tw_engine_t *engine, const void *start, size_t n_bytes)
{
    advise(engine, start, n_bytes, MADV_WILLNEED);
}

/** Dirty pages stay in the system's page cache until it writes them, so nothing is lost. */
void tw_engine_put_away(const tw_engine_t *engine, const void *start, size_t n_bytes)
{
    advise(engine, start, n_bytes, MADV_DONTNEED);
}

uint64_t tw_engine_file_bytes(const tw_engine_t *engine)
{
    return engine->file_bytes;
}

/** By itself malloc keeps freed memory that lies between blocks in use. */
void tw_engine_trim(void)
{
    (void)malloc_trim(0);
}

/* ---- freeing and counting ------------------------------------------------------------------------------ */

void tw_engine_free_all(tw_engine_t *engine)
{
    for (size_t i = 0; i < engine->pinned.n; i++) {
        tw_model_unpin(engine->model, engine->pinned.items[i]);
    }
    for (size_t i = 0; i < engine->near_blocks.n; i++) {
        tw_model_free(engine->model, engine->near_blocks.items[i]);
    }
    for (size_t i = 0; i < engine->n_maps; i++) {
        munmap(engine->maps[i].start, engine->maps[i].n_bytes);
    }
    engine->n_maps = 0;
    for (size_t i = 0; i < engine->blocks.n; i++) {
        tw_buffer_free(engine->blocks.items[i]);
    }
    for (size_t i = 0; i < engine->spaces.n; i += 2) {
        munmap(engine->spaces.items[i], (size_t)(uintptr_t)engine->spaces.items[i + 1]);
    }
    free_list(&engine->spaces);
    free_list(&engine->pinned);
    free_list(&engine->near_blocks);
    free_list(&engine->blocks);
}

static size_t held_bytes(const tw_engine_t *engine)
{
    return engine->memory_bytes + tw_hpz_memory_bytes(engine->hpz) + tw_coll_workspace_bytes(engine->coll);
}

void tw_engine_note_memory(tw_engine_t *engine)
{
    size_t held = held_bytes(engine);
    engine->most_bytes = held > engine->most_bytes ? held : engine->most_bytes;
}

size_t tw_engine_memory_bytes(const tw_engine_t *engine)
{
    size_t held = held_bytes(engine);
    return held > engine->most_bytes ? held : engine->most_bytes;
}
