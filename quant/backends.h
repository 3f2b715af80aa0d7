/** What backends of all codecs have in common: a name, a kind of memory, and a test whether this machine can
 *  run them. Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** The struct of a codec's backend begins with this one, so that pointers can be cast. */
typedef struct tw_backend {
    const char *name;
    tw_mem_t mem;
    int (*usable)(void); /**< whether this machine can run the backend; logs nothing */
} tw_backend_t;

/** The backends of a codec, best first. */
typedef struct tw_backends {
    const char *codec; /**< the codec's name in log lines */
    const tw_backend_t *const *items;
    size_t n;
} tw_backends_t;

/** Find the first backend that the machine can run, for memory `mem` and with this `name` (NULL or "auto":
 *  any name). Returns NULL if there is none, and logs the names of those that it can run. */
const tw_backend_t *tw_backends_find(const tw_backends_t *backends, tw_mem_t mem, const char *name);
/** List names of the backends that this machine can run for `mem`. Returns their number (`max` at most). */
size_t tw_backends_names(const tw_backends_t *backends, tw_mem_t mem, const char **names, size_t max);

TW_C_END
