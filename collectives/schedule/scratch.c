#include "collectives/schedule/scratch.h"

#include <stdlib.h>

#define CLASSES_PER_OCTAVE 4 /* size classes per power of two, so at most a quarter of a buffer is wasted */
#define MIN_SHIFT 10
#define N_CLASSES ((64 - MIN_SHIFT) * CLASSES_PER_OCTAVE)

/* A free buffer. The link to the next one is stored in the buffer. */
typedef struct tw_scratch_free {
    struct tw_scratch_free *next;
} tw_scratch_free_t;

struct tw_scratch {
    tw_scratch_free_t *free_list[N_CLASSES];
    size_t limit_bytes;
    size_t kept_bytes; /* bytes of the buffers in the free lists */
    size_t held_bytes; /* bytes of the buffers in the free lists and of those that are handed out */
    size_t peak_bytes;
    size_t reserved_bytes;
    TAILQ_HEAD(, tw_scratch_user) users;
};

static int class_of(size_t bytes, size_t *class_bytes)
{
    size_t least = bytes >> MIN_SHIFT > 0 ? bytes : (size_t)1 << MIN_SHIFT;
    int shift = 63 - __builtin_clzll(least);
    size_t step_bytes = ((size_t)1 << shift) / CLASSES_PER_OCTAVE;
    size_t steps = (least - ((size_t)1 << shift) + step_bytes - 1) / step_bytes;
    *class_bytes = ((size_t)1 << shift) + steps * step_bytes;
    return (shift - MIN_SHIFT) * CLASSES_PER_OCTAVE + (int)steps;
}

size_t tw_scratch_class_bytes(size_t bytes)
{
    size_t class_bytes;
    (void)class_of(bytes, &class_bytes);
    return class_bytes;
}

static size_t bytes_of_class(int class)
{
    size_t octave = (size_t)1 << (MIN_SHIFT + class / CLASSES_PER_OCTAVE);
    return octave + octave / CLASSES_PER_OCTAVE * (size_t)(class % CLASSES_PER_OCTAVE);
}

tw_status_t tw_scratch_create(size_t limit_bytes, tw_scratch_t **out)
{
    tw_scratch_t *scratch = calloc(1, sizeof(*scratch));
    if (!scratch) {
        return TW_ERR_NO_MEMORY;
    }
    scratch->limit_bytes = limit_bytes;
    TAILQ_INIT(&scratch->users);
    *out = scratch;
    return TW_OK;
}

void tw_scratch_destroy(tw_scratch_t *scratch)
{
    if (scratch) {
        tw_scratch_trim(scratch);
        free(scratch);
    }
}

/* ---- reservations -------------------------------------------------------------------------------------- */

void tw_scratch_enter(tw_scratch_t *scratch, tw_scratch_user_t *user)
{
    user->reserved_bytes = 0;
    TAILQ_INSERT_TAIL(&scratch->users, user, link);
}

void tw_scratch_leave(tw_scratch_t *scratch, tw_scratch_user_t *user)
{
    tw_scratch_release(scratch, user, user->reserved_bytes);
    TAILQ_REMOVE(&scratch->users, user, link);
}

int tw_scratch_reserve(tw_scratch_t *scratch, tw_scratch_user_t *user, size_t bytes, int is_needed)
{
    int is_oldest = user == TAILQ_FIRST(&scratch->users);
    size_t limit = is_oldest ? scratch->limit_bytes : scratch->limit_bytes / 2;
    if (bytes > 0 && scratch->reserved_bytes + bytes > limit && !(is_needed && is_oldest)) {
        return 0;
    }
    user->reserved_bytes += bytes;
    scratch->reserved_bytes += bytes;
    return 1;
}

void tw_scratch_release(tw_scratch_t *scratch, tw_scratch_user_t *user, size_t bytes)
{
    user->reserved_bytes -= bytes;
    scratch->reserved_bytes -= bytes;
}

/* ---- buffers ------------------------------------------------------------------------------------------- */

/** Free kept buffers, the largest first, until at most `bytes` bytes are held. */
static void shrink(tw_scratch_t *scratch, size_t bytes)
{
    for (int class = N_CLASSES - 1; class >= 0; class --) {
        while (scratch->free_list[class] && scratch->held_bytes > bytes) {
            tw_scratch_free_t *buffer = scratch->free_list[class];
            scratch->free_list[class] = buffer->next;
            scratch->kept_bytes -= bytes_of_class(class);
            scratch->held_bytes -= bytes_of_class(class);
            tw_buffer_free(buffer);
        }
    }
}

void tw_scratch_trim(tw_scratch_t *scratch)
{
    shrink(scratch, 0);
}

void *tw_scratch_get(tw_scratch_t *scratch, size_t bytes)
{
    size_t class_bytes;
    int class = class_of(bytes, &class_bytes);
    tw_scratch_free_t *buffer = scratch->free_list[class];
    if (buffer) {
        scratch->free_list[class] = buffer->next;
        scratch->kept_bytes -= class_bytes;
        return buffer;
    }
    if (scratch->kept_bytes > 0 && scratch->held_bytes + class_bytes > scratch->limit_bytes) {
        shrink(scratch, scratch->limit_bytes > class_bytes ? scratch->limit_bytes - class_bytes : 0);
    }
    buffer = tw_buffer_alloc(class_bytes);
    if (buffer) {
        scratch->held_bytes += class_bytes;
        scratch->peak_bytes =
            scratch->held_bytes > scratch->peak_bytes ? scratch->held_bytes : scratch->peak_bytes;
    }
    return buffer;
}

void tw_scratch_put(tw_scratch_t *scratch, void *buffer, size_t bytes)
{
    size_t class_bytes;
    tw_scratch_free_t *head = buffer;
    if (!buffer) {
        return;
    }
    int class = class_of(bytes, &class_bytes);
    if (scratch->held_bytes > scratch->limit_bytes) {
        scratch->held_bytes -= class_bytes;
        tw_buffer_free(buffer);
        return;
    }
    head->next = scratch->free_list[class];
    scratch->free_list[class] = head;
    scratch->kept_bytes += class_bytes;
}

size_t tw_scratch_used_bytes(const tw_scratch_t *scratch)
{
    return scratch->held_bytes - scratch->kept_bytes;
}

size_t tw_scratch_held_bytes(const tw_scratch_t *scratch)
{
    return scratch->held_bytes;
}

size_t tw_scratch_peak_bytes(const tw_scratch_t *scratch)
{
    return scratch->peak_bytes;
}
