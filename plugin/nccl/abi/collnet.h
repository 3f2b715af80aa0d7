/** NCCL's collnet plugins, v8 to v12: operations between nodes that the network does as a whole. A collnet
 *  has the net's name, devices and properties. A comment at each version says how it differs. */
#pragma once

#include "plugin/nccl/abi/net.h"
#include "plugin/nccl/abi/types.h"

TW_C_BEGIN

/** ncclRedOp_t. A mean comes as a sum: NCCL scales on the GPU. */
#define TW_NCCL_SUM 0

/** A run of bytes in a window. NCCL passes exactly one; in v8 its size has 32 bits. */
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

/** Every rank calls connect once; it may block. If it fails, NCCL no longer closes the listener, so the
 *  plugin does. handles: those of all ranks, in rank order. */
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

/** The operations. *request becomes NULL if the plugin cannot take one now: NCCL asks again. All ranks pass
 *  the same counts and windows in the same order.
 *
 *  The whole tensor of a gather or a scatter has bytes_per_rank bytes of each rank, in rank order. The window
 *  is window_bytes of them, from window_offset on. A rank's own data (send_data of a gather, recv_data of a
 *  scatter) is that part of the window which belongs to it, perhaps nothing. */
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

/** v11 (from 2.28) and v12 (from 2.30) have a context for each communicator. Their properties differ. */
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
