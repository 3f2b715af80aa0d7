#include "collectives/schedule/scratch.h"

#include <stdlib.h>

#define CLASSES_PER_OCTAVE 4 /* at most a quarter of a buffer is wasted */
#define MIN_SHIFT 10
#define N_CLASSES ((64 - MIN_SHIFT) * CLASSES_PER_OCTAVE)

/* A free buffer holds the link to the next one. */
typedef struct tw_scratch_free {
    struct tw_scratch_free *next;
} tw_scratch_free_t;

struct tw_scratch {
    tw_scratch_free_t *free_list[N_CLASSES];
    size_t keep_bytes, kept_bytes;
    size_t used_bytes, peak_bytes;
};

/* The class of `bytes`, and the size of its buffers. */
static int class_of(size_t bytes, size_t *class_bytes)
{
    size_t size = (size_t)1 << MIN_SHIFT;
    int octave = 0;

    while (size * 2 <= bytes) {
        size *= 2;
        octave++;
    }
    for (int part = 0; part < CLASSES_PER_OCTAVE; part++) {
        *class_bytes = size + size / CLASSES_PER_OCTAVE * (size_t)part;
        if (bytes <= *class_bytes) {
            return octave * CLASSES_PER_OCTAVE + part;
        }
    }
    *class_bytes = size * 2;
    return (octave + 1) * CLASSES_PER_OCTAVE;
}

tw_status_t tw_scratch_create(size_t keep_bytes, tw_scratch_t **out)
{
    tw_scratch_t *scratch = calloc(1, sizeof(*scratch));

    if (scratch == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    scratch->keep_bytes = keep_bytes;
    *out = scratch;
    return TW_OK;
}

void tw_scratch_destroy(tw_scratch_t *scratch)
{
    if (scratch == NULL) {
        return;
    }
    for (int i = 0; i < N_CLASSES; i++) {
        while (scratch->free_list[i] != NULL) {
            tw_scratch_free_t *buffer = scratch->free_list[i];
            scratch->free_list[i] = buffer->next;
            tw_buffer_free(buffer);
        }
    }
    free(scratch);
}

void *tw_scratch_get(tw_scratch_t *scratch, size_t bytes)
{
    size_t class_bytes;
    int class = class_of(bytes, &class_bytes);
    void *buffer = scratch->free_list[class];

    if (buffer != NULL) {
        scratch->free_list[class] = scratch->free_list[class]->next;
        scratch->kept_bytes -= class_bytes;
    } else {
        buffer = tw_buffer_alloc(class_bytes);
        if (buffer == NULL) {
            return NULL;
        }
    }
    scratch->used_bytes += class_bytes;
    if (scratch->used_bytes > scratch->peak_bytes) {
        scratch->peak_bytes = scratch->used_bytes;
    }
    return buffer;
}

void tw_scratch_put(tw_scratch_t *scratch, void *buffer, size_t bytes)
{
    size_t class_bytes;

    if (buffer == NULL) {
        return;
    }
    int class = class_of(bytes, &class_bytes);
    scratch->used_bytes -= class_bytes;
    if (scratch->kept_bytes + class_bytes > scratch->keep_bytes) {
        tw_buffer_free(buffer);
        return;
    }
    tw_scratch_free_t *head = buffer;
    head->next = scratch->free_list[class];
    scratch->free_list[class] = head;
    scratch->kept_bytes += class_bytes;
}

size_t tw_scratch_used_bytes(const tw_scratch_t *scratch)
{
    return scratch->used_bytes;
}

size_t tw_scratch_peak_bytes(const tw_scratch_t *scratch)
{
    return scratch->peak_bytes;
}
