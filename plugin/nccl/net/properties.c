/* Fills in devices' properties in the struct of each version. */
#include "plugin/nccl/net/properties.h"

#include "plugin/nccl/log.h"
#include "plugin/nccl/net/net.h"

#define COMMS_MAX 65536

tw_nccl_result_t tw_net_properties_devices(int *n)
{
    const tw_net_devices_t *found = tw_net_devices_get();
    *n = found ? found->n : 0;
    return TW_NCCL_SUCCESS;
}

/* Initializers of the fields that all versions have under the same names. */
#define PROPERTIES_OF(device)                                                                    \
    .name = (char *)(uintptr_t)(device)->name,                                                   \
    .pci_path = (device)->pci_path[0] != '\0' ? (char *)(uintptr_t)(device)->pci_path : NULL,    \
    .guid = (device)->guid, .ptr_support = TW_NCCL_PTR_HOST, .speed_mbps = (device)->speed_mbps, \
    .latency_us = tw_net_latency_us(), .max_comms = COMMS_MAX, .max_recvs = TW_NET_RECVS_MAX,    \
    .net_device_type = TW_NCCL_NET_DEVICE_HOST, .net_device_version = TW_NCCL_NET_DEVICE_NO_VERSION
#define PROPERTIES_SINCE_V9(dev)                                        \
    .n_devs = 1, .devs = {dev}, .max_p2p_bytes = TW_NCCL_MESSAGE_BYTES, \
    .max_coll_bytes = TW_NCCL_MESSAGE_BYTES

static const tw_net_device_t *device_for(int dev)
{
    const tw_net_device_t *device = tw_net_device_get(dev);
    if (!device) {
        tw_error("net: there is no device %d", dev);
    }
    return device;
}

/* Define tw_net_properties_<version>, which fills `props` from `device`. */
#define DEFINE_PROPERTIES(version, ...)                                                           \
    tw_nccl_result_t tw_net_properties_##version(int dev, tw_nccl_net_props_##version##_t *props) \
    {                                                                                             \
        const tw_net_device_t *device = device_for(dev);                                          \
        if (!device) {                                                                            \
            return TW_NCCL_INVALID_ARGUMENT;                                                      \
        }                                                                                         \
        *props = (tw_nccl_net_props_##version##_t){PROPERTIES_OF(device), __VA_ARGS__};           \
        return TW_NCCL_SUCCESS;                                                                   \
    }

DEFINE_PROPERTIES(v7, )
DEFINE_PROPERTIES(v8, )
DEFINE_PROPERTIES(v9, PROPERTIES_SINCE_V9(dev))
DEFINE_PROPERTIES(v12, PROPERTIES_SINCE_V9(dev), .max_multi_request = 1, .rail_id = TW_NCCL_ID_UNDEFINED,
                  .plane_id = TW_NCCL_ID_UNDEFINED)

tw_nccl_result_t tw_net_properties_v11(int dev, tw_nccl_net_props_v11_t *props)
{
    props->max_multi_request = 1;
    return tw_net_properties_v9(dev, &props->v9);
}

tw_nccl_result_t tw_net_reg_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                    void **mhandle)
{
    (void)comm, (void)data, (void)bytes, (void)type, (void)offset, (void)fd, (void)mhandle;
    return tw_fail(TW_NCCL_INVALID_ARGUMENT, "net: DMA-BUF was not offered");
}

tw_nccl_result_t tw_net_check_memory(int type)
{
    if (type == TW_NCCL_PTR_HOST) {
        return TW_NCCL_SUCCESS;
    }
    return tw_fail(TW_NCCL_INVALID_ARGUMENT,
                   "net: memory of kind %d (2: a GPU's) cannot be registered: only the host's was offered",
                   type);
}

tw_nccl_result_t tw_net_finalize(void *context)
{
    tw_net_context_destroy(context);
    return TW_NCCL_SUCCESS;
}
