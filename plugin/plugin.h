/** Libraries that jobs of other frameworks load. libthinwire-nccl.so quantizes NCCL's collectives
 *  (interpose/interpose.h). libnccl-net-thinwire.so is a plugin of NCCL: NCCL opens it, and reads the tables
 *  ncclNetPlugin_vN, ncclCollNetPlugin_vN and ncclTunerPlugin_vN. Read the plugin in this order:
 *    nccl/abi/      NCCL's plugin interface, version by version: layouts and numbers
 *    nccl/log.h     sends log lines to NCCL's logger, converts statuses to NCCL's results
 *    nccl/net/      NCCL's messages between nodes, over TCP connections of our own
 *    nccl/collnet/  NCCL's all-reduces between nodes, quantized if a user asks for it
 *    nccl/tuner/    chooses NCCL's algorithm and protocol by the speed of the network
 *
 *  There is no profiler plugin. It could tell the collnet the type of a gather, but NCCL rarely uses a
 *  collnet for gathers, and only one profiler can be loaded, which may be the user's. There is no env plugin
 *  either: users would set a variable to load it, and can as well set the variables that it would set.
 *
 *  This header declares only the tables of variables, for a program that lists them. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

extern const tw_config_table_t tw_net_config_table;
extern const tw_config_table_t tw_collnet_config_table;
extern const tw_config_table_t tw_tuner_config_table;
extern const tw_config_table_t tw_interpose_config_table;

TW_C_END
