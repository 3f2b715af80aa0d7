/** The net: NCCL's messages between nodes, over transport/p2p.h. Read in this order:
 *    net.h        the calls from which NCCL's versions are built
 *    options.c    variables
 *    interfaces.h which of this machine's network devices are offered
 *    device.c     what the system knows of them
 *    state.h      what the next four share
 *    ticker.c     progress when NCCL does not call
 *    context.c    an end of p2p for each device in use
 *    comm.c       listen, connect, accept, close
 *    request.c    send, receive, test
 *    versions.c   NCCL's interface, v7 to v12
 *
 *  Any thread may call anything; calls on one device of one context wait for each other. Nothing else blocks,
 *  except closing the last connection on a device: it waits until what was sent has left, for TW_PEER_TIMEOUT
 *  at most. All errors are logged. */
#pragma once

#include "core/core.h"
#include "plugin/nccl/abi/net.h"

TW_C_BEGIN

typedef struct tw_net_options {
    char *devices, *token;
    int merge, encrypt;
    int is_nccls; /**< encrypt and token come from ncclSetEncryption, not from the variables */
    int64_t streams;
    size_t chunk_bytes, eager_bytes;
    double timeout_sec, spin_sec;
    double gbps, alpha_us; /**< 0: not given */
} tw_net_options_t;

/** Read the variables, and take the secret below; the caller cleans up with tw_net_config_table.
 *  TW_ERR_CONFIG, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_net_options_init(tw_net_options_t *options);
/** Set what holds for all of NCCL in this process: its profiler (NULL: none), and the secret with which
 *  everything made from now on is sealed (copied; NULL: as the variables say). TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_net_begin(tw_nccl_profiler_t profiler, const char *secret);

/* ---- devices ------------------------------------------------------------------------------------------- */

#define TW_NET_DEVICES_MAX 16
#define TW_NET_NAME_BYTES 288 /**< room for the names of all merged devices together */
#define TW_NET_PATH_BYTES 512

typedef struct tw_net_device {
    char name[TW_NET_NAME_BYTES];     /**< several are separated by commas */
    char pci_path[TW_NET_PATH_BYTES]; /**< "": none */
    uint64_t guid;
    int speed_mbps;
    uint8_t address[16]; /**< where the device is reached; IPv4 mapped into IPv6 */
} tw_net_device_t;

typedef struct tw_net_devices {
    int n;
    tw_net_device_t device[TW_NET_DEVICES_MAX];
} tw_net_devices_t;

/** Find the devices that the options name, or else those that NCCL's own sockets would take: see
 *  interfaces.h. Where sockets may not be bound to devices, only the first of one subnet counts, with a
 *  warning. TW_ERR_CONFIG, TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_NO_MEMORY, logged.
 *
 *  With TW_NET_MERGE one device takes the place of all; it is not offered beside them. NCCL's graph search
 *  (2.19 to 2.30) takes every device in the list for a link of its own, unless two have the same guid and
 *  port: with both it would plan for twice the bandwidth there is, and lay some rings over the merged device
 *  and some over those that it merges. NCCL drops those only where it has merged them itself, by makeVDevice
 *  (v9 on). That stays NULL: where it is there, NCCL merges unasked whatever it takes for ports of one card,
 *  and it takes all devices without a PCI address for such, as in many virtual machines
 *  (NCCL_NET_MERGE_LEVEL is PORT unless set). */
tw_status_t tw_net_devices_find(const tw_net_options_t *options, tw_net_devices_t *devices);
/** "/sys/devices/pci0000:00/0000:00:03.0/virtio0/net" -> "/sys/devices/pci0000:00/0000:00:03.0": cut what
 *  comes after the last PCI address; "" if there is none. */
void tw_net_pci_path(char *path);

/* ---- contexts ------------------------------------------------------------------------------------------ */

/** What belongs to one communicator of NCCL's. */
typedef struct tw_net_context tw_net_context_t;

#define TW_NET_NO_CLASS (-1)

/** Make a context; the first call looks for devices. traffic_class: that of all it sends, 0 to 255; negative:
 *  the system's. TW_ERR_CONFIG, TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_NO_MEMORY. */
tw_status_t tw_net_context_create(int traffic_class, tw_net_context_t **out);
/** Connections that are still open stay usable; the context goes with the last of them. Accepts NULL. */
void tw_net_context_destroy(tw_net_context_t *context);
/** The context of the versions that have none. The first call makes it; it is never freed. */
tw_status_t tw_net_context_shared(tw_net_context_t **out);
/** The devices of this process; NULL: no context was made yet, or there is no device. */
const tw_net_devices_t *tw_net_devices_get(void);
const tw_net_device_t *tw_net_device_get(int dev);
/** How long a message takes, as the user says, for NCCL's search; 0: the user has not said. */
float tw_net_latency_us(void);

/* ---- connections --------------------------------------------------------------------------------------- */

#define TW_NET_RECVS_MAX 8 /**< messages in a group */

typedef struct tw_net_listener tw_net_listener_t;
typedef struct tw_net_comm tw_net_comm_t;

/** Write a handle of TW_NCCL_HANDLE_BYTES. TW_ERR_INVALID (device), TW_ERR_CONFIG, TW_ERR_UCX, TW_ERR_IO,
 *  TW_ERR_NO_MEMORY. */
tw_status_t tw_net_listen(tw_net_context_t *context, int dev, void *handle, tw_net_listener_t **out);
/** Connect to the listener that wrote the handle. TW_IN_PROGRESS: call again with the same handle, which
 *  keeps the state. traffic_class: that of this connection; negative: the context's. TW_ERR_FORMAT: not a
 *  handle; TW_ERR_AUTH, TW_ERR_PEER, TW_ERR_TIMEOUT and as listen. */
tw_status_t tw_net_connect(tw_net_context_t *context, int dev, void *handle, int traffic_class,
                           tw_net_comm_t **out);
/** Accept a connection. TW_IN_PROGRESS: nobody is there yet. Strangers that connect are refused. */
tw_status_t tw_net_accept(tw_net_listener_t *listener, tw_net_comm_t **out);
/** Both accept NULL. */
void tw_net_listener_close(tw_net_listener_t *listener);
/** Requests that have not ended are dropped. */
void tw_net_comm_close(tw_net_comm_t *comm);

/* ---- memory -------------------------------------------------------------------------------------------- */

typedef struct tw_net_region tw_net_region_t;

/** Register memory of the host. A GPU's is not offered (NCCL_PTR_HOST alone): what goes by TCP is copied by
 *  the processor at both ends, even where UCX knows CUDA (transport/p2p.h takes no memory of a GPU over TCP),
 *  and NCCL's own kernels stage it, overlapped. TCP needs no registration, but when NCCL is aborted it gives
 *  memory back that messages under way still use. TW_ERR_NO_MEMORY. */
tw_status_t tw_net_register(tw_net_comm_t *comm, void *data, size_t bytes, tw_net_region_t **out);
/** Forget memory: nothing touches it afterwards. Messages from or to it end with TW_ERR_CANCELED. */
void tw_net_deregister(tw_net_region_t *region);

/* ---- messages ------------------------------------------------------------------------------------------ */

typedef struct tw_net_request tw_net_request_t;

typedef struct tw_net_buffer {
    void *data;
    size_t bytes;
    int tag;
    void *phandle; /**< identifies the message to the profiler; NULL: nothing */
} tw_net_buffer_t;

/** Send a message. TW_OK; TW_IN_PROGRESS: too many are under way, try later; TW_ERR_INVALID (more than
 *  TW_NCCL_MESSAGE_BYTES, or no memory given), TW_ERR_PEER, TW_ERR_NO_MEMORY. */
tw_status_t tw_net_send(tw_net_comm_t *comm, const tw_net_buffer_t *buffer, tw_net_request_t **out);
/** Receive up to TW_NET_RECVS_MAX messages by one request; those with equal tags come in the order in
 *  which they were sent. TW_ERR_INVALID also for n. */
tw_status_t tw_net_recv(tw_net_comm_t *comm, const tw_net_buffer_t *buffers, int n, tw_net_request_t **out);
/** Test a request. TW_OK: it is done, sizes[i] bytes came, or went (sizes may be NULL). TW_IN_PROGRESS:
 *  not yet. TW_ERR_PEER, TW_ERR_CANCELED (its memory was deregistered), TW_ERR_TRUNCATED (more came than
 *  there was room for). After TW_OK and after an error the request no longer exists. */
tw_status_t tw_net_test(tw_net_request_t *request, int *sizes);

TW_C_END
