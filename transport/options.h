/** The transport's variables. Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Values of the variables of tw_transport_config_table. Times are in seconds. */
typedef struct tw_transport_options {
    char *job_token;
    int64_t rendezvous_port;
    double join_timeout, handshake_timeout, peer_timeout, spin;
    char *net_devices, *net_tls, *node_tls, *node_id;
    int64_t net_streams;
    int net_encrypt;
    size_t net_chunk, eager;
    /** not a variable: rank 0's listening socket; NULL or -1: none yet. Set to -1 when it is taken */
    int *listener;
} tw_transport_options_t;

#define TW_NET_CHUNK_MIN 4096
#define TW_NET_CHUNK_MAX (1 << 20)
#define TW_NET_STREAMS_MAX 64

TW_C_END
