/** NCCL's collnet plugin interface, v8 to v12. A collnet runs whole collectives between nodes, where a net
 *  only moves messages. Its name, devices and properties must be those of the net plugin. The comment of each
 *  version says how it differs from the one before. */
#pragma once

#include "plugin/nccl/abi/net.h"
#include "plugin/nccl/abi/types.h"

TW_C_BEGIN

/** A value of ncclRedOp_t. NCCL asks for a sum in place of a mean, and scales on the GPU. */
#define TW_NCCL_SUM 0

/** One contiguous part of a window's memory. NCCL passes exactly one part. In v8 its size has 32 bits. */
typedef struct tw_nccl_sge_v8 {
    void *mhandle;
    void *address;
    uint32_t bytes;
} tw_nccl_sge_v8_t;

typedef struct tw_nccl_sge_v9 {
    void *mhandle;
    void *address;
    size_t bytes;
} tw_nccl_sge_v9_t;

/** Every rank calls connect once, with the handles of all ranks in rank order. It may block. If it fails, it
 *  must close listen_comm, which NCCL then does not close. */
typedef tw_nccl_result_t (*tw_nccl_collnet_connect_t)(void **handles, int world, int rank, void *listen_comm,
                                                      void **coll_comm);
typedef tw_nccl_result_t (*tw_nccl_collnet_support_t)(int type, int op, int *is_supported);
typedef tw_nccl_result_t (*tw_nccl_collnet_flush_t)(void *coll_comm, void *data, int bytes, void *mhandle,
                                                    void **request);

#define TW_NCCL_COLLNET_REGISTRATION         \
    tw_nccl_collnet_connect_t connect;       \
    tw_nccl_collnet_support_t support;       \
    tw_nccl_net_reg_t reg_mr;                \
    tw_nccl_net_reg_dmabuf_t reg_mr_dma_buf; \
    tw_nccl_net_dereg_t dereg_mr;

/** The operations. If the plugin cannot start one now, it sets *request to NULL, and NCCL calls again later.
 *  All ranks pass the same counts and windows in the same order.
 *
 *  The whole tensor of a gather or a reduce-scatter has bytes_per_rank bytes for each rank, in rank order.
 *  One call handles a window of it: window_bytes bytes from window_offset on. A rank's own data (send_data of
 *  a gather, recv_data of a reduce-scatter) is the overlap of its bytes with the window, which may be
 *  empty. */
#define TW_NCCL_COLLNET_OPERATIONS(count_t, sge_t)                                                       \
    tw_nccl_result_t (*iallreduce)(void *coll_comm, void *send_data, void *recv_data, count_t count,     \
                                   int type, int op, void *send_mhandle, void *recv_mhandle,             \
                                   void **request);                                                      \
    tw_nccl_result_t (*iallgather)(void *coll_comm, void *send_data, int n_parts, sge_t *recv_parts,     \
                                   size_t bytes_per_rank, size_t window_offset, size_t window_bytes,     \
                                   void *send_mhandle, void **request);                                  \
    tw_nccl_result_t (*ireducescatter)(void *coll_comm, int n_parts, sge_t *send_parts, void *recv_data, \
                                       size_t bytes_per_rank, size_t window_offset, size_t window_bytes, \
                                       int type, int op, void *recv_mhandle, void **request);            \
    tw_nccl_collnet_flush_t iflush;                                                                      \
    tw_nccl_net_test_t test;                                                                             \
    tw_nccl_net_close_t close_coll;                                                                      \
    tw_nccl_net_close_t close_listen;

/** v8 (from 2.20): counts are ints. */
typedef struct tw_nccl_collnet_v8 {
    const char *name;
    tw_nccl_result_t (*init)(tw_nccl_logger_t logger);
    tw_nccl_net_devices_t devices;
    tw_nccl_result_t (*properties)(int dev, tw_nccl_net_props_v8_t *props);
    tw_nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    TW_NCCL_COLLNET_REGISTRATION
    TW_NCCL_COLLNET_OPERATIONS(int, tw_nccl_sge_v8_t)
} tw_nccl_collnet_v8_t;

/** v9 (from 2.24), v10 (from 2.26): counts are size_t; make_vdevice may be NULL. */
typedef struct tw_nccl_collnet_v9 {
    const char *name;
    tw_nccl_result_t (*init)(tw_nccl_logger_t logger);
    tw_nccl_net_devices_t devices;
    tw_nccl_result_t (*properties)(int dev, tw_nccl_net_props_v9_t *props);
    tw_nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    TW_NCCL_COLLNET_REGISTRATION
    TW_NCCL_COLLNET_OPERATIONS(size_t, tw_nccl_sge_v9_t)
    tw_nccl_net_make_vdevice_t make_vdevice;
} tw_nccl_collnet_v9_t;

typedef tw_nccl_collnet_v9_t tw_nccl_collnet_v10_t;

/** v11 (from 2.28) and v12 (from 2.30) have a context per communicator. Only their properties differ. */
#define TW_NCCL_COLLNET_WITH_CONTEXT(properties_t)                                        \
    const char *name;                                                                     \
    tw_nccl_result_t (*init)(void **context, uint64_t comm_id, tw_nccl_logger_t logger);  \
    tw_nccl_net_devices_t devices;                                                        \
    tw_nccl_result_t (*properties)(int dev, properties_t *props);                         \
    tw_nccl_result_t (*listen)(void *context, int dev, void *handle, void **listen_comm); \
    TW_NCCL_COLLNET_REGISTRATION                                                          \
    TW_NCCL_COLLNET_OPERATIONS(size_t, tw_nccl_sge_v9_t)                                  \
    tw_nccl_net_make_vdevice_t make_vdevice;                                              \
    tw_nccl_result_t (*finalize)(void *context);

typedef struct tw_nccl_collnet_v11 {
    TW_NCCL_COLLNET_WITH_CONTEXT(tw_nccl_net_props_v11_t)
} tw_nccl_collnet_v11_t;

typedef struct tw_nccl_collnet_v12 {
    TW_NCCL_COLLNET_WITH_CONTEXT(tw_nccl_net_props_v12_t)
} tw_nccl_collnet_v12_t;

TW_C_END
