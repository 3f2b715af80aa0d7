/* Finds a backend by name and kind of memory. */
#include "quant/backends.h"

#include <string.h>

size_t tw_backends_names(const tw_backends_t *backends, tw_mem_t mem, const char **names, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < backends->n && n < max; i++) {
        if (backends->items[i]->mem == mem && backends->items[i]->usable()) {
            names[n++] = backends->items[i]->name;
        }
    }
    return n;
}

static void log_no_backend(const tw_backends_t *backends, tw_mem_t mem, const char *name)
{
    const char *names[8];
    char list[128] = "";
    size_t n = tw_backends_names(backends, mem, names, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < n; i++) {
        strncat(list, " ", sizeof(list) - strlen(list) - 1);
        strncat(list, names[i], sizeof(list) - strlen(list) - 1);
    }
    tw_error("quant: %s: no backend '%s' for %s memory on this machine; there is:%s", backends->codec,
             name ? name : "auto", mem == TW_MEM_HOST ? "host" : "CUDA", n ? list : " none");
}

const tw_backend_t *tw_backends_find(const tw_backends_t *backends, tw_mem_t mem, const char *name)
{
    int any = !name || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < backends->n; i++) {
        const tw_backend_t *backend = backends->items[i];
        if (backend->mem == mem && (any || strcmp(name, backend->name) == 0) && backend->usable()) {
            return backend;
        }
    }
    log_no_backend(backends, mem, name);
    return NULL;
}
