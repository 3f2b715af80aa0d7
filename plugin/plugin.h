/** What existing jobs load: the NCCL plugin, libnccl-net-thinwire.so, and libthinwire-nccl.so
 *  (interpose/interpose.h). Programs do not link it; NCCL opens it, and reads the tables ncclNetPlugin_vN,
 *  ncclCollNetPlugin_vN and ncclTunerPlugin_vN. Read in this order:
 *    nccl/abi/      NCCL's plugin interface, version by version: layouts and numbers
 *    nccl/log.h     NCCL's logger as this process's log, statuses as NCCL's results
 *    nccl/net/      NCCL's messages between nodes, over TCP connections of our own
 *    nccl/collnet/  NCCL's all-reduces between nodes, quantized if a user asks for it
 *    nccl/tuner/    which algorithm and protocol NCCL takes, by what the network can do
 *
 *  There is no profiler plugin: it would tell a collnet the type of a gather, but NCCL hardly ever gives a
 *  collnet one, and a user's profiler would take its place. There is no env plugin: to be found it needs a
 *  variable of its own, as do those that it would set.
 *
 *  Here are only its variables, for a program that lists them. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

extern const tw_config_table_t tw_net_config_table;
extern const tw_config_table_t tw_collnet_config_table;
extern const tw_config_table_t tw_tuner_config_table;
extern const tw_config_table_t tw_interpose_config_table;

TW_C_END
