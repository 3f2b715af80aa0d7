/** Finds NCCL's real functions, once, and passes calls of collectives on to them. */
#include "plugin/interpose/nccl_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "plugin/interpose/interpose.h"

#define LIBRARY "libnccl.so.2"

_Static_assert(offsetof(tw_ip_option_t, value) == 16 && sizeof(tw_ip_option_t) == 24, "ncclConfigExt_t");
_Static_assert(offsetof(tw_ip_config_t, options) == 16 && offsetof(tw_ip_config_t, algorithm) == 40 &&
                   offsetof(tw_ip_config_t, profiler_tag) == 56 &&
                   offsetof(tw_ip_config_t, launch_event) == 64 && sizeof(tw_ip_config_t) == 72,
               "ncclCollConfig_t of 2.32");

_Static_assert(offsetof(tw_ip_encryption_t, mode) == 16 && offsetof(tw_ip_encryption_t, secret) == 24 &&
                   sizeof(tw_ip_encryption_t) == 32,
               "ncclEncryptionConfig_t of 2.32");

static tw_ip_functions_t real;

/** Store the address of a function of the library in *function, which is a pointer to a function. It copies
 *  the bytes, because ISO C cannot convert dlsym's object pointer; POSIX gives both the same form. */
static void find_real(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof(symbol));
}

/** Find NCCL's functions in the library that the process has loaded, wherever it came from. */
static void find_all(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) {
        tw_error("nccl: this process has no " LIBRARY);
        return;
    }
#define FIND(name) find_real(library, #name, &real.name);
    TW_IP_WRAPPED(FIND)
    TW_IP_ASKED(FIND)
#undef FIND
}

const tw_ip_functions_t *tw_ip_real(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find_all);
    return &real;
}

void *tw_ip_real_at(const char *name)
{
    void *at = NULL;
    (void)tw_ip_real();
#define LOOK(wrapped)                           \
    if (strcmp(name, #wrapped) == 0) {          \
        memcpy(&at, &real.wrapped, sizeof(at)); \
    }
    TW_IP_WRAPPED(LOOK)
#undef LOOK
    return at;
}

/* ---- one call ------------------------------------------------------------------------------------------ */

static const char *const names[] = {"all-gather", "reduce-scatter", "all-reduce", "all-to-all"};

const char *tw_ip_kind_name(tw_ip_kind_t kind)
{
    return names[kind];
}

static ncclResult_t lacks(const tw_ip_call_t *call)
{
    return tw_fail(ncclInvalidUsage, "nccl: this NCCL has no %s%s", names[call->kind],
                   call->has_config ? " with a configuration" : "");
}

ncclResult_t tw_ip_pass(const tw_ip_call_t *c)
{
    const tw_ip_functions_t *r = tw_ip_real();

#define PASS(wanted, name, ...)                                         \
    if (c->kind == (wanted) && r->name) {                               \
        return r->name(c->from, c->to, c->count, c->type, __VA_ARGS__); \
    }
    if (c->has_config) {
        PASS(TW_IP_ALLGATHER, ncclAllGatherConfig, c->comm, c->stream, c->config)
        PASS(TW_IP_REDUCE_SCATTER, ncclReduceScatterConfig, c->op, c->comm, c->stream, c->config)
        PASS(TW_IP_ALLREDUCE, ncclAllReduceConfig, c->op, c->comm, c->stream, c->config)
        PASS(TW_IP_ALLTOALL, ncclAlltoAllConfig, c->comm, c->stream, c->config)
    } else {
        PASS(TW_IP_ALLGATHER, ncclAllGather, c->comm, c->stream)
        PASS(TW_IP_REDUCE_SCATTER, ncclReduceScatter, c->op, c->comm, c->stream)
        PASS(TW_IP_ALLREDUCE, ncclAllReduce, c->op, c->comm, c->stream)
        PASS(TW_IP_ALLTOALL, ncclAlltoAll, c->comm, c->stream)
    }
#undef PASS
    return lacks(c);
}

/** Returns the call's configuration; NULL if it has none, or an older caller's, shorter than `end` bytes. */
static const tw_ip_config_t *config_of(const tw_ip_call_t *call, size_t end)
{
    const tw_ip_config_t *config = (const tw_ip_config_t *)call->config;
    return call->has_config && config && config->size >= end ? config : NULL;
}

const tw_ip_option_t *tw_ip_call_option(const tw_ip_call_t *call, int option)
{
    const tw_ip_config_t *config =
        config_of(call, offsetof(tw_ip_config_t, options) + sizeof(config->options));
    const tw_ip_option_t *at = config ? config->options : NULL;
    while (at && (at->vendor != TW_NCCL_VENDOR || at->option != option)) {
        at = at->next;
    }
    return at;
}

void *tw_ip_call_event(const tw_ip_call_t *call)
{
    const tw_ip_config_t *config = config_of(call, sizeof(*config));
    return config ? config->launch_event : NULL;
}

ncclResult_t tw_ip_result(tw_status_t status)
{
    switch (status) {
    case TW_OK:
        return ncclSuccess;
    case TW_IN_PROGRESS:
        return ncclInProgress;
    case TW_ERR_CUDA:
        return ncclUnhandledCudaError;
    case TW_ERR_PEER:
    case TW_ERR_TIMEOUT:
        return ncclRemoteError;
    case TW_ERR_IO:
    case TW_ERR_NO_MEMORY:
        return ncclSystemError;
    case TW_ERR_INVALID:
        return ncclInvalidArgument;
    case TW_ERR_CONFIG:
    case TW_ERR_MISMATCH:
        return ncclInvalidUsage;
    default:
        return ncclInternalError;
    }
}
