/* NCCL's own sockets. Its library exports none of them, but has them as a table in the form of a plugin's. */
#include <dlfcn.h>
#include <stdio.h>

#include "bench/net/nccl_library.h"
#include "bench/net/net.h"

#define VERSION_MIN 22800
#define VERSION_MAX 23299

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
    return nccl_library_symbol(handle, "ncclNetSocket", why, why_bytes);
}
