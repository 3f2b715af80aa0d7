/** A library that a job opens once it runs, and that calls NCCL itself; each function does what NCCL's of
 *  that name does. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_EXTENSION_H
#define TW_TESTS_PLUGIN_INTERPOSE_EXTENSION_H

#include "plugin/interpose/nccl_calls.h"

extern "C" {
ncclResult_t extension_init_rank(ncclComm_t *comm, int world, ncclUniqueId id, int rank);
ncclResult_t extension_all_gather(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream);
}

#endif
