/* Connects the ranks. Each makes a handle before it knows its rank: its listener's address, and a secret. All
 * then use the handle of rank 0: the others connect to that address, and prove that they know its secret. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "plugin/nccl/collnet/state.h"
#include "transport/devices.h"

#define MAGIC 0x74774331u /* "twC1" */
#define SECRET_BYTES 16

/* Content of NCCL's handle; zeros follow. Both ends have the same byte order. */
typedef struct handle {
    uint32_t magic;
    uint32_t port;
    uint8_t address[16]; /* IPv4 mapped into IPv6 */
    uint8_t secret[SECRET_BYTES];
} handle_t;

_Static_assert(sizeof(handle_t) <= TW_NCCL_HANDLE_BYTES, "a handle fits into NCCL's");

struct tw_collnet_listener {
    int fd;
    handle_t handle;
    const tw_net_device_t *device;
    tw_collnet_settings_t settings;
};

static tw_status_t open_listener(tw_collnet_listener_t *listener)
{
    handle_t *handle = &listener->handle;
    char host[TW_DEVICES_ADDRESS_BYTES];
    int port = 0;
    handle->magic = MAGIC;
    memcpy(handle->address, listener->device->address, sizeof(handle->address));
    TW_FAIL_IF(getrandom(handle->secret, sizeof(handle->secret), 0) != (ssize_t)sizeof(handle->secret),
               TW_ERR_INTERNAL, "collnet: no random numbers: %s", strerror(errno));
    listener->fd = tw_transport_listen(tw_devices_address_text(handle->address, host), &port);
    TW_FAIL_IF(listener->fd < 0, TW_ERR_IO, "collnet: %s: cannot listen: %s", listener->device->name,
               strerror(errno));
    handle->port = (uint32_t)port;
    return TW_OK;
}

tw_status_t tw_collnet_listen(int dev, void *handle, tw_collnet_listener_t **out)
{
    const tw_net_device_t *device = tw_net_device_get(dev);
    tw_collnet_listener_t *listener;
    TW_FAIL_IF(!device, TW_ERR_INVALID, "collnet: there is no device %d", dev);
    listener = calloc(1, sizeof(*listener));
    TW_FAIL_IF(!listener, TW_ERR_NO_MEMORY, "collnet: out of memory for a listener");
    listener->device = device;
    listener->fd = -1;
    tw_status_t status = tw_collnet_settings_read(&listener->settings);
    if (status == TW_OK && listener->settings.is_open) {
        tw_error("collnet: what ncclSetEncryption was given seals the net alone; TW_NET_ENCRYPT=y and "
                 "TW_JOB_TOKEN seal the collnet, too");
        status = TW_ERR_CONFIG;
    }
    status = status == TW_OK ? open_listener(listener) : status;
    if (status != TW_OK) {
        tw_collnet_listener_close(listener);
        return status;
    }
    memset(handle, 0, TW_NCCL_HANDLE_BYTES);
    memcpy(handle, &listener->handle, sizeof(listener->handle));
    *out = listener;
    return TW_OK;
}

void tw_collnet_listener_close(tw_collnet_listener_t *listener)
{
    if (!listener) {
        return;
    }
    if (listener->fd >= 0) {
        close(listener->fd);
    }
    free(listener);
}

/** Make the token with which ranks join: the handle's secret in hex, and the user's token ("" if none). */
static void make_token(const handle_t *handle, const char *token, char out[TW_JOB_NAME_BYTES])
{
    size_t length = 0;
    for (int i = 0; i < SECRET_BYTES; i++) {
        length += (size_t)snprintf(out + length, TW_JOB_NAME_BYTES - length, "%02x", handle->secret[i]);
    }
    (void)snprintf(out + length, TW_JOB_NAME_BYTES - length, " %s", token);
}

static int is_handle(const handle_t *handle)
{
    return handle->magic == MAGIC && handle->port > 0 && handle->port <= UINT16_MAX;
}

tw_status_t tw_collnet_meeting_init(tw_collnet_meeting_t *meeting, void **handles, int world, int rank,
                                    tw_collnet_listener_t *listener)
{
    handle_t first;
    TW_FAIL_IF(rank < 0 || rank >= world, TW_ERR_INVALID, "collnet: rank %d of %d makes no sense", rank,
               world);
    memcpy(&first, handles[0], sizeof(first));
    TW_FAIL_IF(!is_handle(&first), TW_ERR_FORMAT, "collnet: rank %d: what rank 0 has sent is no handle",
               rank);
    TW_FAIL_IF(memcmp(handles[rank], &listener->handle, sizeof(listener->handle)) != 0, TW_ERR_INVALID,
               "collnet: rank %d: its handle is not the one of its listener", rank);
    *meeting =
        (tw_collnet_meeting_t){.listener = -1, .device = listener->device, .settings = listener->settings};
    meeting->job = (tw_job_t){.rank = rank, .world = world, .local_rank = 0, .local_world = 1};
    meeting->job.launcher = "nccl";
    meeting->job.master_port = (int)first.port;
    (void)tw_devices_address_text(first.address, meeting->job.master_addr);
    make_token(&first, listener->settings.token, meeting->job.token);
    if (rank == 0) {
        meeting->listener = listener->fd;
        listener->fd = -1;
    }
    return TW_OK;
}

tw_status_t tw_collnet_meet(tw_collnet_meeting_t *meeting, tw_transport_t **out)
{
    char node[32];
    tw_transport_params_t params = {.job = &meeting->job,
                                    .listener = meeting->listener,
                                    .net_devices = meeting->device->name,
                                    .node_id = node,
                                    .peer_timeout_sec = meeting->settings.timeout_sec};
    meeting->listener = -1;
    (void)snprintf(node, sizeof(node), "collnet %d", meeting->job.rank);
    return tw_transport_create_with(&params, out);
}
