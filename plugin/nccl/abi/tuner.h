/** NCCL's tuner plugins, v2 to v7: NCCL asks one, for each collective operation, which algorithm and protocol
 *  to take. */
#ifndef TW_PLUGIN_NCCL_ABI_TUNER_H
#define TW_PLUGIN_NCCL_ABI_TUNER_H

#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** ncclFunc_t, as far as tuners are asked. */
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

/** Columns of a cost table: flags of 4 bytes beside 4 of data; of 8 beside 120; whole chunks with a flag
 *  each. */
typedef enum tw_nccl_proto { TW_NCCL_LL = 0, TW_NCCL_LL128, TW_NCCL_SIMPLE, TW_NCCL_PROTOS } tw_nccl_proto_t;

/** In a cost table: cannot be taken. */
#define TW_NCCL_FORBIDDEN (-1.0f)

/** v2 (from 2.21): the tuner names one algorithm and protocol, or leaves both. `bytes` is of the whole: of
 *  all ranks' parts in gathers and scatters. */
typedef struct tw_nccl_tuner_v2 {
    const char *name;
    tw_nccl_result_t (*init)(size_t world, size_t n_nodes, tw_nccl_logger_t logger, void **context);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int has_collnet, int has_nvls,
                                      int n_ops, int *algo, int *proto, int *n_channels);
    tw_nccl_result_t (*destroy)(void *context);
} tw_nccl_tuner_v2_t;

/** v3 (from 2.22): the tuner gets a table, float[n_algos][n_protos] under a wrong type, of microseconds; NCCL
 *  takes the lowest that is not negative. */
typedef struct tw_nccl_tuner_v3 {
    const char *name;
    tw_nccl_result_t (*init)(size_t world, size_t n_nodes, tw_nccl_logger_t logger, void **context);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int n_ops, float **table,
                                      int n_algos, int n_protos, int *n_channels);
    tw_nccl_result_t (*destroy)(void *context);
} tw_nccl_tuner_v3_t;

/** v4 (from 2.24): it is also told whether the user's buffers are registered. */
typedef struct tw_nccl_tuner_v4 {
    const char *name;
    tw_nccl_result_t (*init)(size_t world, size_t n_nodes, tw_nccl_logger_t logger, void **context);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int n_ops, float **table,
                                      int n_algos, int n_protos, int is_registered, int *n_channels);
    tw_nccl_result_t (*destroy)(void *context);
} tw_nccl_tuner_v4_t;

/** v5 (from 2.28): the communicator's id, NVLink domains, and NCCL's own constants, which a tuner may
 *  change. */
typedef struct tw_nccl_tuner_v5 {
    const char *name;
    tw_nccl_result_t (*init)(void **context, uint64_t comm_id, size_t world, size_t n_nodes,
                             tw_nccl_logger_t logger, void *nvl_domains, void *constants);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int n_ops, float **table,
                                      int n_algos, int n_protos, int is_registered, int *n_channels);
    tw_nccl_result_t (*finalize)(void *context);
} tw_nccl_tuner_v5_t;

/** v6 (from 2.30): with a function for the size of chunks; NULL leaves it to NCCL. */
typedef struct tw_nccl_tuner_v6 {
    const char *name;
    tw_nccl_result_t (*init)(void **context, uint64_t comm_id, size_t world, size_t n_nodes,
                             tw_nccl_logger_t logger, void *nvl_domains, void *constants);
    tw_nccl_result_t (*get_coll_info)(void *context, int func, size_t bytes, int n_ops, float **table,
                                      int n_algos, int n_protos, int is_registered, int *n_channels);
    tw_nccl_result_t (*finalize)(void *context);
    tw_nccl_result_t (*get_chunk_bytes)(void *context, int func, size_t bytes, int algo, int proto,
                                        int n_channels, size_t *chunk_bytes);
} tw_nccl_tuner_v6_t;

/** v7 (from 2.32.6): the constants have a row for one more kind of GPU. */
typedef tw_nccl_tuner_v6_t tw_nccl_tuner_v7_t;

TW_C_END

#endif
