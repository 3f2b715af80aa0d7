/** Functions in the tables of both the net and the collnet: the number of devices, their properties in each
 *  version's struct, and a few functions that both tables share. */
#pragma once

#include "plugin/nccl/abi/net.h"

TW_C_BEGIN

/** The name of both the net and the collnet: equal names tell NCCL that they have the same devices. */
#define TW_NET_PLUGIN_NAME "Thinwire"

/** Set *n to the number of devices, which is 0 before a context exists. */
tw_nccl_result_t tw_net_properties_devices(int *n);

/** Fill in properties; v10 uses v9's struct. TW_NCCL_INVALID_ARGUMENT (logged): there is no such device. */
tw_nccl_result_t tw_net_properties_v7(int dev, tw_nccl_net_props_v7_t *props);
tw_nccl_result_t tw_net_properties_v8(int dev, tw_nccl_net_props_v8_t *props);
tw_nccl_result_t tw_net_properties_v9(int dev, tw_nccl_net_props_v9_t *props);
tw_nccl_result_t tw_net_properties_v11(int dev, tw_nccl_net_props_v11_t *props);
tw_nccl_result_t tw_net_properties_v12(int dev, tw_nccl_net_props_v12_t *props);

/** reg_mr_dma_buf: TW_NCCL_INVALID_ARGUMENT (logged), because neither plugin offers DMA-BUF. */
tw_nccl_result_t tw_net_reg_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                    void **mhandle);
/** Check that a registration's type is host memory. Otherwise TW_NCCL_INVALID_ARGUMENT, logged. */
tw_nccl_result_t tw_net_check_memory(int type);
/** finalize: release a context. NCCL 2.28 also calls it with NULL if init has failed. */
tw_nccl_result_t tw_net_finalize(void *context);

TW_C_END
