/* nccl_loads: NCCL itself finds, loads and initializes the plugins that its variables name, as it does when a
 * communicator is made. That would need a GPU; the functions that do this part do not, and are called here
 * with a communicator in which nothing is set. Exit status: 77 if there is no NCCL from 2.28 on, else what
 * NCCL says. In plain C: nothing but the C library is in the process before it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/plugin/nccl/bench/nccl_library.h"

#define SKIPPED 77
#define VERSION_MIN 22800
#define COMMUNICATOR_BYTES ((size_t)64 << 20) /* far more than any version's */

typedef int (*load_t)(void *communicator);

static load_t find(void *library, const char *name)
{
    char why[256];
    load_t load = (load_t)(uintptr_t)nccl_library_symbol(library, name, why, sizeof(why));

    if (!load) {
        fprintf(stderr, "%s\n", why);
    }
    return load;
}

int main(int argc, char **argv)
{
    void *library = dlopen(argc > 1 ? argv[1] : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *) = NULL;
    int version = 0, result;
    load_t load_net, load_tuner;
    void *communicator;

    if (library) {
        get_version = (int (*)(int *))(uintptr_t)dlsym(library, "ncclGetVersion");
    }
    if (!get_version || get_version(&version) != 0 || version < VERSION_MIN) {
        fprintf(stderr, "%s\n", !library ? dlerror() : "NCCL is older than 2.28");
        return SKIPPED;
    }
    load_net = find(library, "_Z11ncclNetInitP8ncclComm");
    load_tuner = find(library, "_Z19ncclTunerPluginLoadP8ncclComm");
    communicator = calloc(1, COMMUNICATOR_BYTES);
    if (!load_net || !load_tuner || !communicator) {
        return SKIPPED;
    }
    printf("NCCL %d\n", version);
    (void)fflush(stdout);
    result = load_net(communicator);
    return result != 0 ? result : load_tuner(communicator);
}
