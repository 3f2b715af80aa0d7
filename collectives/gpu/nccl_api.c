#include "collectives/gpu/gpu.h"

#if defined(TW_HAVE_CUDA) && defined(TW_HAVE_NCCL)

#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include "collectives/gpu/nccl_api.h"

#define LIBRARY "libnccl.so.2"
#define POLL_NS 20000

/** Find a function. ISO C cannot convert dlsym's object pointer to a function pointer; POSIX can. */
static tw_status_t nccl_api_find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof(symbol));
    if (symbol) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_UNSUPPORTED, "%s lacks %s: NCCL 2.18 or newer is needed", LIBRARY, name);
}

tw_status_t tw_nccl_load(tw_nccl_api_t *api)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    tw_status_t status = TW_OK;

    TW_FAIL_IF(!library, TW_ERR_UNSUPPORTED, "there is no NCCL here: %s", dlerror());
#define FIND(name)       \
    if (status == TW_OK) \
        status = nccl_api_find(library, #name, &api->name);
    TW_NCCL_FUNCTIONS(FIND)
#undef FIND
    (void)dlclose(library);
    return status;
}

static tw_status_t status_of(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return TW_OK;
    case ncclInProgress:
        return TW_IN_PROGRESS;
    case ncclUnhandledCudaError:
        return TW_ERR_CUDA;
    /* a call for a socket, shared memory or verbs has failed, often because the other side has ended */
    case ncclSystemError:
        return TW_ERR_IO;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return TW_ERR_INVALID;
    case ncclRemoteError: /* another rank failed or left */
        return TW_ERR_PEER;
    default:
        return TW_ERR_NCCL;
    }
}

static tw_status_t nccl_api_ask(const tw_nccl_api_t *api, ncclComm_t comm, tw_coll_gate_t *gate,
                                ncclResult_t *result)
{
    TW_TRY(tw_coll_gate_enter(gate));
    ncclResult_t asked = api->ncclCommGetAsyncError(comm, result);
    tw_coll_gate_leave(gate);
    if (asked != ncclSuccess) {
        *result = asked;
    }
    return TW_OK;
}

static tw_status_t nccl_api_settle(const tw_nccl_api_t *api, ncclComm_t comm, tw_coll_gate_t *gate,
                                   ncclResult_t *result)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};

    while (*result == ncclInProgress && comm) {
        TW_TRY(nccl_api_ask(api, comm, gate, result));
        if (*result == ncclInProgress) {
            (void)nanosleep(&nap, NULL);
        }
    }
    return TW_OK;
}

tw_status_t tw_nccl_check(const tw_nccl_api_t *api, int rank, ncclComm_t comm, ncclResult_t result,
                          const char *what)
{
    return tw_nccl_check_gated(api, rank, comm, NULL, result, what);
}

tw_status_t tw_nccl_check_gated(const tw_nccl_api_t *api, int rank, ncclComm_t comm, tw_coll_gate_t *gate,
                                ncclResult_t result, const char *what)
{
    TW_TRY(nccl_api_settle(api, comm, gate, &result));
    if (result == ncclSuccess) {
        return TW_OK;
    }
    const char *last = api->ncclGetLastError(comm);
    tw_error("rank %d: %s: NCCL error %d (%s)%s%s", rank, what, (int)result, api->ncclGetErrorString(result),
             last && last[0] != '\0' ? ": " : "", last ? last : "");
    return status_of(result);
}

#endif
