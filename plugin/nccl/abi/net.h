/** NCCL's net plugins, v7 to v12: how NCCL moves bytes between nodes. NCCL reads these tables by position.
 *  What all versions share is declared once; the comment of a version says how it differs from the one
 *  before. */
#pragma once

#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** What listen writes and connect reads; NCCL carries it from one process to the other. */
#define TW_NCCL_HANDLE_BYTES 128
/** The most requests that NCCL has under way on one connection. */
#define TW_NCCL_REQUESTS 32
/** The largest message: older versions count bytes in an int. */
#define TW_NCCL_MESSAGE_BYTES ((size_t)1 << 30)

/** Bits of ptr_support and of a registration's type: the kind of memory. */
#define TW_NCCL_PTR_HOST 1
#define TW_NCCL_PTR_CUDA 2

/** net_device_type: the host drives the network, not the GPU. */
#define TW_NCCL_NET_DEVICE_HOST 0
#define TW_NCCL_NET_DEVICE_NO_VERSION 0

/** rail_id, plane_id: not known. */
#define TW_NCCL_ID_UNDEFINED (-1)

/* ---- a communicator's configuration, and the profiler -------------------------------------------------- */

/** Settings of a connection. v10 passes it to connect, v11 and v12 to init. */
typedef struct tw_nccl_net_config {
    int traffic_class; /**< traffic class in the head of IP packets; negative: none was asked for */
} tw_nccl_net_config_t;

/** Callback by which a net tells the user's profiler of an event (from 2.26). type: the event starts, and the
 *  profiler sets *event if it wants it; or it stops. parent: the phandle that isend or irecv got. `plugin`
 *  says what `data` is. */
#define TW_NCCL_PROFILER_START 0
#define TW_NCCL_PROFILER_STOP 1
typedef tw_nccl_result_t (*tw_nccl_profiler_t)(void **event, int type, void *parent, int64_t plugin,
                                               void *data);
/** A message over sockets, in the form of NCCL's own, which profilers know. */
#define TW_NCCL_PROFILER_SOCKET ((2 << 16) | 1)
typedef struct tw_nccl_profiler_socket {
    uint8_t type; /**< always 1 */
    struct {
        int fd; /**< -1: several connections may carry it */
        int op; /**< 0: sent; 1: received */
        size_t bytes;
    } sock;
} tw_nccl_profiler_socket_t;

/* ---- what a device is ---------------------------------------------------------------------------------- */

/** The first fields of all versions' properties. The plugin owns the strings. */
#define TW_NCCL_NET_PROPS_FIRST                         \
    char *name;                                         \
    char *pci_path; /**< below /sys; NULL: none */      \
    uint64_t guid;  /**< equal for ports of one chip */ \
    int ptr_support;
#define TW_NCCL_NET_PROPS_LAST                   \
    int speed_mbps;                              \
    int port;                                    \
    float latency_us; /**< 0: NCCL guesses */    \
    int max_comms;                               \
    int max_recvs; /**< messages of one irecv */ \
    int net_device_type;                         \
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

/** v9, v10 add force_flush, the devices that make up a merged one, and the largest messages. */
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

/** v12 has room for 8 merged devices, and adds the ids of rail and plane. */
typedef struct tw_nccl_net_props_v12 {
    TW_NCCL_NET_PROPS_FROM_V9(8)
    int max_multi_request;
    int16_t rail_id, plane_id;
} tw_nccl_net_props_v12_t;

/* ---- functions that are the same in all versions ------------------------------------------------------- */

/** connect and accept must not block: they set *comm to NULL as long as the other side is not there. isend
 *  and irecv set *request to NULL if they cannot take the request now; iflush, if there is nothing to wait
 *  for. test: sizes may be NULL. */
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

/** The middle part of every table from v8 on. */
#define TW_NCCL_NET_REGISTRATION             \
    tw_nccl_net_accept_t accept;             \
    tw_nccl_net_reg_t reg_mr;                \
    tw_nccl_net_reg_dmabuf_t reg_mr_dma_buf; \
    tw_nccl_net_dereg_t dereg_mr;
/** The last part of every table; the last two may be NULL. */
#define TW_NCCL_NET_COMPLETION         \
    tw_nccl_net_flush_t iflush;        \
    tw_nccl_net_test_t test;           \
    tw_nccl_net_close_t close_send;    \
    tw_nccl_net_close_t close_recv;    \
    tw_nccl_net_close_t close_listen;  \
    tw_nccl_net_device_mr_t device_mr; \
    tw_nccl_net_consumed_t irecv_consumed;

/* ---- tables -------------------------------------------------------------------------------------------- */

/** The first part of tables up to v9. */
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

/** v10 (from 2.26) adds a profiler's handles, and connect's config with a traffic class. */
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

/** v11 (from 2.28) and v12 (from 2.30) have a context for each communicator. Their properties differ. */
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
