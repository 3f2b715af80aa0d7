/** What NCCL asks about devices: how many there are, and their properties, in each version's form. The net
 *  and the collnet give the same answers. */
#pragma once

#include "plugin/nccl/abi/net.h"

TW_C_BEGIN

/** The net and the collnet share one name, by which NCCL knows that their devices are the same. */
#define TW_NET_PLUGIN_NAME "Thinwire"

/** Count the devices; 0 before there is a context. */
tw_nccl_result_t tw_net_properties_devices(int *n);

/** Fill in a device's properties. Invalid argument, logged: there is no such device. v10's are v9's. */
tw_nccl_result_t tw_net_properties_v7(int dev, tw_nccl_net_props_v7_t *props);
tw_nccl_result_t tw_net_properties_v8(int dev, tw_nccl_net_props_v8_t *props);
tw_nccl_result_t tw_net_properties_v9(int dev, tw_nccl_net_props_v9_t *props);
tw_nccl_result_t tw_net_properties_v11(int dev, tw_nccl_net_props_v11_t *props);
tw_nccl_result_t tw_net_properties_v12(int dev, tw_nccl_net_props_v12_t *props);

/** Refuse memory by DMA-BUF, which neither offers: invalid argument, logged. */
tw_nccl_result_t tw_net_reg_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                    void **mhandle);
/** Check that memory is the host's: no other kind was offered. Invalid argument, logged: it is not. */
tw_nccl_result_t tw_net_check_memory(int type);
/** End a context. NCCL 2.28 also calls it, with NULL, for one that failed to begin. */
tw_nccl_result_t tw_net_finalize(void *context);

TW_C_END
