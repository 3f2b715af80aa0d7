/** Which ranks share a node, and which share memory. Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Return a hash that is equal on all ranks of a node: of host name, boot id and network namespace; or of
 *  `name`, if it is not empty. */
uint64_t tw_node_id(const char *name);
/** Return a hash that is equal for processes that can share memory: of node_id, IPC and PID namespace, and
 *  /dev/shm. */
uint64_t tw_shm_id(uint64_t node_id);

TW_C_END
