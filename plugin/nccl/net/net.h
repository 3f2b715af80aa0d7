/** The net plugin: it moves NCCL's messages between nodes, over transport/p2p.h. Read in this order:
 *    net.h        the calls from which each version's interface is built
 *    options.c    variables
 *    interfaces.h which of this machine's network interfaces are offered to NCCL
 *    device.c     their properties
 *    state.h      structs that the next four share
 *    ticker.c     progress when NCCL does not call
 *    context.c    a p2p end for each device in use
 *    comm.c       listen, connect, accept, close
 *    request.c    send, receive, test
 *    versions.c   NCCL's interface, v7 to v12
 *
 *  Any thread may call any function; calls on one device of one context wait for each other. Only closing the
 *  last connection on a device blocks: it waits until all posted bytes are sent, for TW_PEER_TIMEOUT at most.
 *  All errors are logged. */
#pragma once

#include "core/core.h"
#include "plugin/nccl/abi/net.h"

TW_C_BEGIN

typedef struct tw_net_options {
    char *devices, *token;
    int merge, encrypt;
    int is_nccls; /**< 1: encrypt and token come from ncclSetEncryption, not from the variables */
    int64_t streams;
    size_t chunk_bytes, eager_bytes;
    double timeout_sec, spin_sec;
    double gbps, alpha_us; /**< speed in Gb/s and time of a small message; 0: the user has not set it */
} tw_net_options_t;

/** Read the variables. If these ask for no encryption, tw_net_begin's secret turns it on. The caller
 *  cleans up by tw_config_cleanup(&tw_net_config_table, options). TW_ERR_CONFIG, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_net_options_init(tw_net_options_t *options);
/** Set two things for the whole process: the profiler (NULL: none), and the secret with which contexts made
 *  from now on encrypt (copied; NULL: only the variables count). TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_net_begin(tw_nccl_profiler_t profiler, const char *secret);

/* ---- devices ------------------------------------------------------------------------------------------- */

#define TW_NET_DEVICES_MAX 16
#define TW_NET_NAME_BYTES 288 /**< room for the names of all merged devices together */
#define TW_NET_PATH_BYTES 512

typedef struct tw_net_device {
    char name[TW_NET_NAME_BYTES];     /**< a merged device has several names, with commas between */
    char pci_path[TW_NET_PATH_BYTES]; /**< "": none */
    uint64_t guid;
    int speed_mbps;
    uint8_t address[16]; /**< address that peers connect to; IPv4 mapped into IPv6 */
} tw_net_device_t;

typedef struct tw_net_devices {
    int n;
    tw_net_device_t device[TW_NET_DEVICES_MAX];
} tw_net_devices_t;

/** Find the devices that the options name, or else those that NCCL's own socket net would use: see
 *  interfaces.h. If this process may not bind sockets to devices, only the first device of each subnet is
 *  listed, with a warning. TW_ERR_CONFIG, TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_NO_MEMORY, logged.
 *
 *  With TW_NET_MERGE the list has one merged device instead of the single ones, not in addition to them.
 *  NCCL's graph search (2.19 to 2.30) takes each device in the list for a separate link, unless two have the
 *  same guid and port. With both kinds it would plan for twice the real bandwidth, and put some rings on the
 *  merged device and some on its parts. NCCL removes the parts only if it has merged them itself, by
 *  makeVDevice (from v9). We leave that NULL: a plugin that has it lets NCCL merge, unasked, all devices that
 *  seem to be ports of one card (NCCL_NET_MERGE_LEVEL is PORT by default). Devices without a PCI address
 *  all seem to be ports of one card, as in many virtual machines. */
tw_status_t tw_net_devices_find(const tw_net_options_t *options, tw_net_devices_t *devices);
/** Cut a path in /sys after its last PCI address: "/sys/devices/pci0000:00/0000:00:03.0/virtio0/net" becomes
 *  "/sys/devices/pci0000:00/0000:00:03.0". A path without a PCI address becomes "". */
void tw_net_pci_path(char *path);

/* ---- contexts ------------------------------------------------------------------------------------------ */

/** The net's state for one communicator of NCCL. */
typedef struct tw_net_context tw_net_context_t;

#define TW_NET_NO_CLASS (-1)

/** Make a context. The first call in a process finds the devices. traffic_class is for its packets: 0 to
 *  255; negative: the system's default. TW_ERR_CONFIG, TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_NO_MEMORY. */
tw_status_t tw_net_context_create(int traffic_class, tw_net_context_t **out);
/** Release a context. Connections stay usable; closing the last one frees the context. Accepts NULL. */
void tw_net_context_destroy(tw_net_context_t *context);
/** Get the one context of NCCL's interfaces v7 to v10, which pass none. The first call makes it. It is never
 *  freed. */
tw_status_t tw_net_context_shared(tw_net_context_t **out);
/** Returns the devices of this process, or NULL before a context has found any. */
const tw_net_devices_t *tw_net_devices_get(void);
/** Returns device number `dev`, or NULL if there is none. */
const tw_net_device_t *tw_net_device_get(int dev);
/** Returns TW_NET_ALPHA_US, a small message's time, for NCCL's graph search; 0: the user has not set it. */
float tw_net_latency_us(void);

/* ---- connections --------------------------------------------------------------------------------------- */

#define TW_NET_RECVS_MAX 8 /**< messages in a group */

typedef struct tw_net_listener tw_net_listener_t;
typedef struct tw_net_comm tw_net_comm_t;

/** Listen on a device, and write a handle of TW_NCCL_HANDLE_BYTES to which a peer connects. TW_ERR_INVALID
 *  (no such device), TW_ERR_CONFIG, TW_ERR_UCX, TW_ERR_IO, TW_ERR_NO_MEMORY. */
tw_status_t tw_net_listen(tw_net_context_t *context, int dev, void *handle, tw_net_listener_t **out);
/** Connect to the listener that wrote the handle. TW_IN_PROGRESS: not connected yet; call again with the same
 *  handle, in which this call has noted its state. A negative traffic_class means the context's.
 *  TW_ERR_FORMAT (not a handle), TW_ERR_AUTH, TW_ERR_PEER, TW_ERR_TIMEOUT and as tw_net_listen. */
tw_status_t tw_net_connect(tw_net_context_t *context, int dev, void *handle, int traffic_class,
                           tw_net_comm_t **out);
/** Accept a connection. TW_IN_PROGRESS: none yet. Refuses peers that do not prove they know the secret. */
tw_status_t tw_net_accept(tw_net_listener_t *listener, tw_net_comm_t **out);
/** Close and free a listener. Accepts NULL. */
void tw_net_listener_close(tw_net_listener_t *listener);
/** Close and free a connection. Its unfinished requests are dropped. Accepts NULL. */
void tw_net_comm_close(tw_net_comm_t *comm);

/* ---- memory -------------------------------------------------------------------------------------------- */

typedef struct tw_net_region tw_net_region_t;

/** Register host memory. GPU memory is not offered to NCCL (ptr_support is TW_NCCL_PTR_HOST alone): for TCP
 *  the CPU copies all bytes at both ends anyway, transport/p2p.h takes no GPU memory over TCP, and NCCL's own
 *  kernels copy to host memory while messages are sent. TCP needs no registration. A region
 *  tells tw_net_deregister which messages to cancel before an aborted NCCL frees memory. TW_ERR_NO_MEMORY. */
tw_status_t tw_net_register(tw_net_comm_t *comm, void *data, size_t bytes, tw_net_region_t **out);
/** Deregister memory: no message touches it afterwards. Messages that use it end with TW_ERR_CANCELED. */
void tw_net_deregister(tw_net_region_t *region);

/* ---- messages ------------------------------------------------------------------------------------------ */

typedef struct tw_net_request tw_net_request_t;

typedef struct tw_net_buffer {
    void *data;
    size_t bytes;
    int tag;
    void *phandle; /**< identifies the message to the profiler; NULL: the profiler is not told */
} tw_net_buffer_t;

/** Post the sending of a message. TW_IN_PROGRESS: too many requests are running, try later. TW_ERR_INVALID
 *  (more than TW_NCCL_MESSAGE_BYTES, or data is NULL), TW_ERR_PEER, TW_ERR_NO_MEMORY. */
tw_status_t tw_net_send(tw_net_comm_t *comm, const tw_net_buffer_t *buffer, tw_net_request_t **out);
/** Post the receiving of n messages as one request, 1 to TW_NET_RECVS_MAX. Messages with equal tags arrive in
 *  the order in which they were sent. Errors as tw_net_send; TW_ERR_INVALID also if n is out of range. */
tw_status_t tw_net_recv(tw_net_comm_t *comm, const tw_net_buffer_t *buffers, int n, tw_net_request_t **out);
/** Test a request. TW_OK: all its messages are done, and sizes[i] are their bytes (`sizes` may be NULL).
 *  TW_IN_PROGRESS: it runs. TW_ERR_PEER, TW_ERR_CANCELED (its memory was deregistered), TW_ERR_TRUNCATED (a
 *  message was larger than its buffer). Unless it is TW_IN_PROGRESS, the request no longer exists. */
tw_status_t tw_net_test(tw_net_request_t *request, int *sizes);

TW_C_END
