/** Declarations of NCCL's calls that older headers lack, under our own names, and the addresses of NCCL's
 *  real functions. No function of NCCL is linked: dlsym finds them all at the first use, and a function that
 *  this NCCL lacks is NULL. */
#pragma once

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

TW_C_BEGIN

/* ---- what older headers lack --------------------------------------------------------------------------- */

/** ncclConfigExt_t (2.31): one option of a linked list. NCCL itself ignores these options. */
typedef struct tw_ip_option {
    const struct tw_ip_option *next;
    int vendor, option;
    union {
        int number;
        const char *text;
        void *raw;
    } value;
} tw_ip_option_t;

/** ncclCollConfig_t (2.31). `size` is its length in bytes in the caller's version of NCCL. */
typedef struct tw_ip_config {
    size_t size;
    unsigned int magic, version;
    const tw_ip_option_t *options;
    int min_ctas, max_ctas, nvls_ctas, cga_cluster_size;
    const char *algorithm;
    int force_algorithm, cta_policy;
    uint64_t profiler_tag;
    void *launch_event; /**< 2.32: a cudaEvent_t, recorded when the kernel has been launched */
} tw_ip_config_t;

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 31, 0)
typedef struct tw_ip_config ncclCollConfig_t;
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
typedef struct ncclWindow *ncclWindow_t;
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0)
typedef struct tw_ip_awaited ncclWaitSignalDesc_t;
#endif

/** ncclEncryptionConfig_t (2.32): how NCCL's own sockets encrypt. */
typedef struct tw_ip_encryption {
    size_t size;
    unsigned int magic, version;
    int mode;
    const char *secret;
} tw_ip_encryption_t;
#define TW_IP_ENCRYPTION_NONE 0
#define TW_IP_ENCRYPTION_SECRET 1 /**< NCCL_ENCRYPTION_MODE_PSK */

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 32, 0)
typedef struct tw_ip_encryption ncclEncryptionConfig_t;
#endif

/* Types of NCCL 2.23 and later. A header that declares them declares the same types. */
typedef struct ncclSimInfo_v22200 tw_ip_sim_info_t;
struct ncclDevComm;
struct ncclDevCommRequirements;
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupSimulateEnd(tw_ip_sim_info_t *info);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int world, int rank, int n_ids, ncclUniqueId *ids,
                                      ncclConfig_t *config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n_excluded, ncclComm_t *out,
                            ncclConfig_t *config, int flags);
ncclResult_t ncclCommGrow(ncclComm_t comm, int world, const ncclUniqueId *id, int rank, ncclComm_t *out,
                          ncclConfig_t *config);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window,
                                    int flags);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements *requirements,
                               struct ncclDevComm *out);
ncclResult_t ncclPutSignal(const void *from, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                           size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *awaited, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);
ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream);
ncclResult_t ncclAllGatherConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceScatterConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t *config);
ncclResult_t ncclAllReduceConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t *config);
ncclResult_t ncclAlltoAllConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ---- the real functions -------------------------------------------------------------------------------- */

/** The functions that this library wraps: it exports them under NCCL's names. */
#define TW_IP_WRAPPED(X)        \
    X(ncclAllGather)            \
    X(ncclReduceScatter)        \
    X(ncclAllReduce)            \
    X(ncclAlltoAll)             \
    X(ncclAllGatherConfig)      \
    X(ncclReduceScatterConfig)  \
    X(ncclAllReduceConfig)      \
    X(ncclAlltoAllConfig)       \
    X(ncclGetUniqueId)          \
    X(ncclGroupStart)           \
    X(ncclGroupEnd)             \
    X(ncclGroupSimulateEnd)     \
    X(ncclCommInitRank)         \
    X(ncclCommInitRankConfig)   \
    X(ncclCommInitRankScalable) \
    X(ncclCommInitAll)          \
    X(ncclCommSplit)            \
    X(ncclCommShrink)           \
    X(ncclCommGrow)             \
    X(ncclCommRevoke)           \
    X(ncclCommFinalize)         \
    X(ncclCommDestroy)          \
    X(ncclCommAbort)            \
    X(ncclCommGetAsyncError)    \
    X(ncclCommWindowRegister)   \
    X(ncclDevCommCreate)        \
    X(ncclPutSignal)            \
    X(ncclSignal)               \
    X(ncclWaitSignal)           \
    X(ncclSetEncryption)        \
    X(ncclRedOpCreatePreMulSum) \
    X(ncclRedOpDestroy)

/** Functions that this library calls but does not wrap. */
#define TW_IP_ASKED(X)  \
    X(ncclCommCount)    \
    X(ncclCommUserRank) \
    X(ncclGetVersion)

typedef struct tw_ip_functions {
#define TW_IP_MEMBER(name) __typeof__(&name) name;
    TW_IP_WRAPPED(TW_IP_MEMBER)
    TW_IP_ASKED(TW_IP_MEMBER)
#undef TW_IP_MEMBER
} tw_ip_functions_t;

/** Returns NCCL's real functions. A member is NULL if this process's NCCL lacks it. Any thread. */
const tw_ip_functions_t *tw_ip_real(void);
/** Call one of NCCL's real functions. The result is ncclInvalidUsage if this NCCL lacks it. */
#define TW_IP_CALL(name, ...) (tw_ip_real()->name ? tw_ip_real()->name(__VA_ARGS__) : ncclInvalidUsage)
/** Returns the real address of a wrapped function by name. NULL: not wrapped, or NCCL lacks it. */
void *tw_ip_real_at(const char *name);

/* ---- one call of a collective -------------------------------------------------------------------------- */

typedef enum tw_ip_kind {
    TW_IP_ALLGATHER,
    TW_IP_REDUCE_SCATTER,
    TW_IP_ALLREDUCE,
    TW_IP_ALLTOALL,
    TW_IP_KINDS
} tw_ip_kind_t;

typedef struct tw_ip_call {
    tw_ip_kind_t kind;
    const void *from;
    void *to;
    size_t count; /**< elements of one shard; in an all-reduce, of the whole tensor */
    ncclDataType_t type;
    ncclRedOp_t op;
    ncclComm_t comm;
    cudaStream_t stream;
    int has_config; /**< 1: the job called the variant that takes `config`, which may still be NULL */
    const ncclCollConfig_t *config;
} tw_ip_call_t;

/** Pass the call on to NCCL. ncclInvalidUsage (logged): this NCCL lacks the function. */
ncclResult_t tw_ip_pass(const tw_ip_call_t *call);
/** Returns the option with this optionId that the call's configuration has for this library, or NULL. */
const tw_ip_option_t *tw_ip_call_option(const tw_ip_call_t *call, int option);
/** Returns the launch event (a cudaEvent_t) of the call's configuration, or NULL if it has none. */
void *tw_ip_call_event(const tw_ip_call_t *call);
const char *tw_ip_kind_name(tw_ip_kind_t kind);

/** Convert a status to NCCL's result code. */
ncclResult_t tw_ip_result(tw_status_t status);

TW_C_END
