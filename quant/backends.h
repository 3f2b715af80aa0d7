/** What the backends of all codecs have in common: a name, a kind of memory, and machines that can run them.
 *  Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** A codec's own struct begins with it. */
typedef struct tw_backend {
    const char *name;
    tw_mem_t mem;
    int (*usable)(void); /**< whether this machine can run the backend now; silent */
} tw_backend_t;

/** The backends of a codec, best first. */
typedef struct tw_backends {
    const char *codec; /**< for the log */
    const tw_backend_t *const *items;
    size_t n;
} tw_backends_t;

/** Find the first backend that is usable here for `mem` and called `name` (NULL, "auto": any). NULL: there is
 *  none, logged with those there are. */
const tw_backend_t *tw_backends_find(const tw_backends_t *backends, tw_mem_t mem, const char *name);
/** List the names of those usable here for `mem`; returns how many were written (at most `max`). */
size_t tw_backends_names(const tw_backends_t *backends, tw_mem_t mem, const char **names, size_t max);

TW_C_END
