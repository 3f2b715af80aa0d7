/** NCCL's net plugin interface, v7 to v12: it moves messages between nodes. A plugin exports a table of
 *  functions for each version, in which the order of members matters. Parts that versions share are declared
 *  once. The comment of each version says how it differs from the one before. */
#pragma once

#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** Size of a handle: the receiver's `listen` writes it, and the sender's `connect` gets it from NCCL. */
#define TW_NCCL_HANDLE_BYTES 128
/** The most requests that NCCL has running on one connection. */
#define TW_NCCL_REQUESTS 32
/** The largest message of all versions, because those up to v8 count bytes in an int. */
#define TW_NCCL_MESSAGE_BYTES ((size_t)1 << 30)

/** Kinds of memory: bits of ptr_support, and the `type` of a registration. */
#define TW_NCCL_PTR_HOST 1
#define TW_NCCL_PTR_CUDA 2

/** net_device_type and net_device_version of a plugin whose network is driven by the host, not by the GPU. */
#define TW_NCCL_NET_DEVICE_HOST 0
#define TW_NCCL_NET_DEVICE_NO_VERSION 0

/** rail_id or plane_id of a device for which it is not known. */
#define TW_NCCL_ID_UNDEFINED (-1)

/* ---- a communicator's configuration, and the profiler -------------------------------------------------- */

/** Settings of a connection. v10 passes it to connect, v11 and v12 to init. */
typedef struct tw_nccl_net_config {
    int traffic_class; /**< traffic class of IP packets, 0 to 255; negative: the job did not set one */
} tw_nccl_net_config_t;

/** Callback (from 2.26) with which a net tells the user's profiler that an event starts or stops (`type`). At
 *  the start the profiler sets *event if it wants the event; the net then passes it again at the stop.
 *  `parent` is the phandle that isend or irecv got. `plugin` is the type of the struct at `data`. */
#define TW_NCCL_PROFILER_START 0
#define TW_NCCL_PROFILER_STOP 1
typedef tw_nccl_result_t (*tw_nccl_profiler_t)(void **event, int type, void *parent, int64_t plugin,
                                               void *data);
/** `plugin` and `data` of an event that is a message over sockets. They are those of NCCL's own socket net,
 *  which profilers know. */
#define TW_NCCL_PROFILER_SOCKET ((2 << 16) | 1)
typedef struct tw_nccl_profiler_socket {
    uint8_t type; /**< always 1 */
    struct {
        int fd; /**< -1: the message may go over several sockets */
        int op; /**< 0: sent; 1: received */
        size_t bytes;
    } sock;
} tw_nccl_profiler_socket_t;

/* ---- what a device is ---------------------------------------------------------------------------------- */

/** The first and last fields of all versions' device properties. The plugin owns the strings. */
#define TW_NCCL_NET_PROPS_FIRST                         \
    char *name;                                         \
    char *pci_path; /**< below /sys; NULL: none */      \
    uint64_t guid;  /**< equal for ports of one chip */ \
    int ptr_support;
#define TW_NCCL_NET_PROPS_LAST                       \
    int speed_mbps;                                  \
    int port;                                        \
    float latency_us; /**< 0: NCCL assumes one */    \
    int max_comms;                                   \
    int max_recvs; /**< most messages of an irecv */ \
    int net_device_type;                             \
    int net_device_version;

typedef struct tw_nccl_net_props_v7 {
    TW_NCCL_NET_PROPS_FIRST
    TW_NCCL_NET_PROPS_LAST
} tw_nccl_net_props_v7_t;

/** v8 adds reg_is_global. */
typedef struct tw_nccl_net_props_v8 {
    TW_NCCL_NET_PROPS_FIRST
    int reg_is_global; /**< 1: a registration holds for all connections */
    TW_NCCL_NET_PROPS_LAST
} tw_nccl_net_props_v8_t;

/** v9 and v10 add force_flush, the list of devices that a merged device consists of (n_devs and devs), and
 *  the sizes of the largest messages. */
#define TW_NCCL_NET_PROPS_FROM_V9(most_devs) \
    TW_NCCL_NET_PROPS_FIRST                  \
    int reg_is_global;                       \
    int force_flush;                         \
    TW_NCCL_NET_PROPS_LAST                   \
    int n_devs, devs[most_devs];             \
    size_t max_p2p_bytes;                    \
    size_t max_coll_bytes;

typedef struct tw_nccl_net_props_v9 {
    TW_NCCL_NET_PROPS_FROM_V9(4)
} tw_nccl_net_props_v9_t;

/** v11 adds max_multi_request. */
typedef struct tw_nccl_net_props_v11 {
    tw_nccl_net_props_v9_t v9;
    int max_multi_request;
} tw_nccl_net_props_v11_t;

/** v12 lets a merged device consist of up to 8 devices, and adds the ids of rail and plane. */
typedef struct tw_nccl_net_props_v12 {
    TW_NCCL_NET_PROPS_FROM_V9(8)
    int max_multi_request;
    int16_t rail_id, plane_id;
} tw_nccl_net_props_v12_t;

/* ---- functions that are the same in all versions ------------------------------------------------------- */

/** connect and accept must not block. They set *send_comm or *recv_comm to NULL until the peer has done its
 *  part, and NCCL calls again. isend and irecv set *request to NULL if they cannot take the request now.
 *  iflush sets it to NULL if there is nothing to wait for. `sizes` of test may be NULL. */
typedef tw_nccl_result_t (*tw_nccl_net_devices_t)(int *n);
typedef tw_nccl_result_t (*tw_nccl_net_accept_t)(void *listen_comm, void **recv_comm, void **device_handle);
typedef tw_nccl_result_t (*tw_nccl_net_reg_t)(void *comm, void *data, size_t bytes, int type, void **mhandle);
typedef tw_nccl_result_t (*tw_nccl_net_reg_dmabuf_t)(void *comm, void *data, size_t bytes, int type,
                                                     uint64_t offset, int fd, void **mhandle);
typedef tw_nccl_result_t (*tw_nccl_net_dereg_t)(void *comm, void *mhandle);
typedef tw_nccl_result_t (*tw_nccl_net_flush_t)(void *recv_comm, int n, void **data, int *sizes,
                                                void **mhandles, void **request);
typedef tw_nccl_result_t (*tw_nccl_net_test_t)(void *request, int *done, int *sizes);
typedef tw_nccl_result_t (*tw_nccl_net_close_t)(void *comm);
typedef tw_nccl_result_t (*tw_nccl_net_device_mr_t)(void *comm, void *mhandle, void **device_mhandle);
typedef tw_nccl_result_t (*tw_nccl_net_consumed_t)(void *recv_comm, int n, void *request);
typedef tw_nccl_result_t (*tw_nccl_net_make_vdevice_t)(int *dev, void *props);

/** The middle members of every table from v8 on. */
#define TW_NCCL_NET_REGISTRATION             \
    tw_nccl_net_accept_t accept;             \
    tw_nccl_net_reg_t reg_mr;                \
    tw_nccl_net_reg_dmabuf_t reg_mr_dma_buf; \
    tw_nccl_net_dereg_t dereg_mr;
/** The last members of every table. A plugin may set device_mr and irecv_consumed to NULL. */
#define TW_NCCL_NET_COMPLETION         \
    tw_nccl_net_flush_t iflush;        \
    tw_nccl_net_test_t test;           \
    tw_nccl_net_close_t close_send;    \
    tw_nccl_net_close_t close_recv;    \
    tw_nccl_net_close_t close_listen;  \
    tw_nccl_net_device_mr_t device_mr; \
    tw_nccl_net_consumed_t irecv_consumed;

/* ---- tables -------------------------------------------------------------------------------------------- */

/** The first members of tables up to v9. */
#define TW_NCCL_NET_UP_TO_V9(properties_t)                                 \
    const char *name;                                                      \
    tw_nccl_result_t (*init)(tw_nccl_logger_t logger);                     \
    tw_nccl_net_devices_t devices;                                         \
    tw_nccl_result_t (*properties)(int dev, properties_t *props);          \
    tw_nccl_result_t (*listen)(int dev, void *handle, void **listen_comm); \
    tw_nccl_result_t (*connect)(int dev, void *handle, void **send_comm, void **device_handle);

#define TW_NCCL_NET_MESSAGES(size_type)                                                             \
    tw_nccl_result_t (*isend)(void *send_comm, void *data, size_type bytes, int tag, void *mhandle, \
                              void **request);                                                      \
    tw_nccl_result_t (*irecv)(void *recv_comm, int n, void **data, size_type *sizes, int *tags,     \
                              void **mhandles, void **request);                                     \
    TW_NCCL_NET_COMPLETION

/** v7 (from 2.19): sizes are ints. */
typedef struct tw_nccl_net_v7 {
    TW_NCCL_NET_UP_TO_V9(tw_nccl_net_props_v7_t)
    tw_nccl_net_accept_t accept;
    tw_nccl_result_t (*reg_mr)(void *comm, void *data, int bytes, int type, void **mhandle);
    tw_nccl_net_reg_dmabuf_t reg_mr_dma_buf;
    tw_nccl_net_dereg_t dereg_mr;
    TW_NCCL_NET_MESSAGES(int)
} tw_nccl_net_v7_t;

/** v8 (from 2.20): the size of a registration is a size_t. */
typedef struct tw_nccl_net_v8 {
    TW_NCCL_NET_UP_TO_V9(tw_nccl_net_props_v8_t)
    TW_NCCL_NET_REGISTRATION
    TW_NCCL_NET_MESSAGES(int)
} tw_nccl_net_v8_t;

/** v9 (from 2.24): sizes are size_t, except in test and iflush. */
typedef struct tw_nccl_net_v9 {
    TW_NCCL_NET_UP_TO_V9(tw_nccl_net_props_v9_t)
    TW_NCCL_NET_REGISTRATION
    TW_NCCL_NET_MESSAGES(size_t)
    tw_nccl_net_make_vdevice_t make_vdevice;
} tw_nccl_net_v9_t;

/** v10 (from 2.26) adds the profiler's handles (phandle), and a config with a traffic class to connect. */
#define TW_NCCL_NET_FROM_V10                                                                     \
    TW_NCCL_NET_REGISTRATION                                                                     \
    tw_nccl_result_t (*isend)(void *send_comm, void *data, size_t bytes, int tag, void *mhandle, \
                              void *phandle, void **request);                                    \
    tw_nccl_result_t (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags,     \
                              void **mhandles, void **phandles, void **request);                 \
    TW_NCCL_NET_COMPLETION                                                                       \
    tw_nccl_net_make_vdevice_t make_vdevice;

typedef struct tw_nccl_net_v10 {
    const char *name;
    tw_nccl_result_t (*init)(tw_nccl_logger_t logger, tw_nccl_profiler_t profiler);
    tw_nccl_net_devices_t devices;
    tw_nccl_result_t (*properties)(int dev, tw_nccl_net_props_v9_t *props);
    tw_nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    tw_nccl_result_t (*connect)(int dev, tw_nccl_net_config_t *config, void *handle, void **send_comm,
                                void **device_handle);
    TW_NCCL_NET_FROM_V10
} tw_nccl_net_v10_t;

/** v11 (from 2.28) and v12 (from 2.30) have a context per communicator. Only their properties differ. */
#define TW_NCCL_NET_WITH_CONTEXT(properties_t)                                               \
    const char *name;                                                                        \
    tw_nccl_result_t (*init)(void **context, uint64_t comm_id, tw_nccl_net_config_t *config, \
                             tw_nccl_logger_t logger, tw_nccl_profiler_t profiler);          \
    tw_nccl_net_devices_t devices;                                                           \
    tw_nccl_result_t (*properties)(int dev, properties_t *props);                            \
    tw_nccl_result_t (*listen)(void *context, int dev, void *handle, void **listen_comm);    \
    tw_nccl_result_t (*connect)(void *context, int dev, void *handle, void **send_comm,      \
                                void **device_handle);                                       \
    TW_NCCL_NET_FROM_V10                                                                     \
    tw_nccl_result_t (*finalize)(void *context);                                             \
    tw_nccl_result_t (*set_net_attr)(void *context, void *attributes);

typedef struct tw_nccl_net_v11 {
    TW_NCCL_NET_WITH_CONTEXT(tw_nccl_net_props_v11_t)
} tw_nccl_net_v11_t;

typedef struct tw_nccl_net_v12 {
    TW_NCCL_NET_WITH_CONTEXT(tw_nccl_net_props_v12_t)
} tw_nccl_net_v12_t;

TW_C_END
