/** A communicator of what tw_coll_create finds, or of what tests make up. Private to collectives. */
#ifndef TW_COLLECTIVES_CREATE_H
#define TW_COLLECTIVES_CREATE_H

#include "collectives/communicator.h"
#include "collectives/gpu/device.h"

TW_C_BEGIN

typedef struct tw_coll_setup {
    const tw_coll_params_t *params;    /**< mem, wire: only whether all ask alike */
    const tw_coll_nccl_params_t *comm; /**< NULL: the ranks meet over the transport */
    const tw_gpu_device_t *device;     /**< NULL: host memory */
    tw_gpu_wire_t *nccl;               /**< NULL: the transport. Taken, also when creation fails */
    tw_progress_t *progress;           /**< the thread that this runs on; NULL: the caller is it */
    int device_index;                  /**< that is current where the communicator was asked for */
    int rank, world;                   /**< without a transport */
    uint64_t *node_ids; /**< [world] without a transport; equal for ranks of one node. Borrowed. */
} tw_coll_setup_t;

tw_status_t tw_coll_create_with(const tw_coll_setup_t *setup, tw_coll_t **out);

TW_C_END

#endif
