/** NCCL's tuner plugin interface, v2 to v7: chooses the algorithm and protocol of each collective. */
#pragma once

#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** ncclFunc_t: the collectives for which NCCL asks the tuner. */
typedef enum tw_nccl_func {
    TW_NCCL_BROADCAST = 0,
    TW_NCCL_REDUCE,
    TW_NCCL_ALL_GATHER,
    TW_NCCL_REDUCE_SCATTER,
    TW_NCCL_ALL_REDUCE,
    TW_NCCL_FUNCS
} tw_nccl_func_t;

/** Rows of a cost table. */
typedef enum tw_nccl_algo {
    TW_NCCL_TREE = 0,
    TW_NCCL_RING,
    TW_NCCL_COLLNET_DIRECT,
    TW_NCCL_COLLNET_CHAIN,
    TW_NCCL_NVLS,
    TW_NCCL_NVLS_TREE,
    TW_NCCL_PAT,
    TW_NCCL_ALGOS
} tw_nccl_algo_t;

/** Columns of a cost table. LL sends 4 bytes of flags with each 4 bytes of data, LL128 sends 8 with each 120,
 *  and SIMPLE sends one flag with a whole chunk. */
typedef enum tw_nccl_proto { TW_NCCL_LL = 0, TW_NCCL_LL128, TW_NCCL_SIMPLE, TW_NCCL_PROTOS } tw_nccl_proto_t;

/** Entry of a cost table for an algorithm and protocol that NCCL cannot use. */
#define TW_NCCL_FORBIDDEN (-1.0f)

/** v2 (from 2.21): the tuner sets *algo and *proto, or leaves both unchanged. `bytes` is the size of the
 *  whole tensor: in gathers and reduce-scatters that of all ranks' shards together. */
typedef struct tw_nccl_tuner_v2 {
    const char *name;
    tw_nccl_result_t (*init)(size_t world, size_t n_nodes, tw_nccl_logger_t logger, void **context);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int has_collnet, int has_nvls,
                                      int n_ops, int *algo, int *proto, int *n_channels);
    tw_nccl_result_t (*destroy)(void *context);
} tw_nccl_tuner_v2_t;

/** v3 (from 2.22): the tuner edits a table of costs in microseconds. `table` points to a float
 *  [n_algos][n_protos], although NCCL declares it as float **. NCCL uses the lowest entry that is not
 *  negative. */
typedef struct tw_nccl_tuner_v3 {
    const char *name;
    tw_nccl_result_t (*init)(size_t world, size_t n_nodes, tw_nccl_logger_t logger, void **context);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int n_ops, float **table,
                                      int n_algos, int n_protos, int *n_channels);
    tw_nccl_result_t (*destroy)(void *context);
} tw_nccl_tuner_v3_t;

/** v4 (from 2.24): NCCL also says whether the user's buffers are registered. */
typedef struct tw_nccl_tuner_v4 {
    const char *name;
    tw_nccl_result_t (*init)(size_t world, size_t n_nodes, tw_nccl_logger_t logger, void **context);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int n_ops, float **table,
                                      int n_algos, int n_protos, int is_registered, int *n_channels);
    tw_nccl_result_t (*destroy)(void *context);
} tw_nccl_tuner_v4_t;

/** v5 (from 2.28): init also gets the communicator's id, the NVLink domains, and NCCL's own constants, which
 *  a tuner may change. */
#define TW_NCCL_TUNER_FROM_V5                                                                          \
    const char *name;                                                                                  \
    tw_nccl_result_t (*init)(void **context, uint64_t comm_id, size_t world, size_t n_nodes,           \
                             tw_nccl_logger_t logger, void *nvl_domains, void *constants);             \
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int n_ops, float **table, \
                                      int n_algos, int n_protos, int is_registered, int *n_channels);  \
    tw_nccl_result_t (*finalize)(void *context);

typedef struct tw_nccl_tuner_v5 {
    TW_NCCL_TUNER_FROM_V5
} tw_nccl_tuner_v5_t;

/** v6 (from 2.30) adds a function that sets the size of chunks. If it is NULL, NCCL decides. */
typedef struct tw_nccl_tuner_v6 {
    TW_NCCL_TUNER_FROM_V5
    tw_nccl_result_t (*get_chunk_bytes)(void *context, int func, size_t bytes, int algo, int proto,
                                        int n_channels, size_t *chunk_bytes);
} tw_nccl_tuner_v6_t;

/** v7 (from 2.32.6): init's `constants` have a row for one more kind of GPU. */
typedef tw_nccl_tuner_v6_t tw_nccl_tuner_v7_t;

TW_C_END
