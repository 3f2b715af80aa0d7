/* NCCL's own sockets. Its library exports none of them, but has them as a table in the form of a plugin's.
 * They ask CUDA only for the number of the current GPU, once for each connection. Where CUDA knows no GPU, a
 * stand-in returns a number, which is never used. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/plugin/nccl/bench/nccl_library.h"
#include "tests/plugin/nccl/bench/net.h"

#define VERSION_MIN 22800
#define VERSION_MAX 23299

/** Stands in for cudaGetDevice where there is no GPU. */
static int first_gpu(int *device)
{
    *device = 0;
    return 0;
}

/** Make cudaGetDevice, which is inside NCCL's library, succeed. Returns 0, and why, if there is no GPU and no
 *  stand-in can be put in place. */
static int provide_gpu(void *library, char *why, size_t why_bytes)
{
    void *symbol = nccl_library_symbol(library, "cudaGetDevice", why, why_bytes);
    int (*const get_device)(int *) = (int (*)(int *))(uintptr_t)symbol;
    int device;
    if (!symbol || !get_device(&device)) {
        return symbol != NULL;
    }
    if (!nccl_library_replace(symbol, (const void *)(uintptr_t)first_gpu)) {
        (void)snprintf(why, why_bytes, "no GPU, and none can be made up: %s", strerror(errno));
        return 0;
    }
    return 1;
}

const tw_nccl_net_v12_t *net_peer_open(const char *library, char *why, size_t why_bytes)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *) = handle ? (int (*)(int *))(uintptr_t)dlsym(handle, "ncclGetVersion") : NULL;
    int version = 0;
    if (!handle) {
        (void)snprintf(why, why_bytes, "%s", dlerror());
        return NULL;
    }
    if (!get_version || get_version(&version) || version < VERSION_MIN || version > VERSION_MAX) {
        (void)snprintf(why, why_bytes, "%s is not NCCL 2.28 to 2.32 (version %d)", library, version);
        return NULL;
    }
    const tw_nccl_net_v12_t *net = nccl_library_symbol(handle, "ncclNetSocket", why, why_bytes);
    return net && provide_gpu(handle, why, why_bytes) ? net : NULL;
}
