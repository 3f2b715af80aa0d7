/** Which ranks share a node, and which share memory. Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** A hash that is the same on one node: of host name, boot and network namespace; or of `name`, if it is not
 *  empty. */
uint64_t tw_node_id(const char *name);
/** A hash that is the same where processes of one node can share memory: of node_id, IPC and PID namespace,
 *  and /dev/shm. */
uint64_t tw_shm_id(uint64_t node_id);

TW_C_END
