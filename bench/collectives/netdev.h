/** Counters of a network interface, as the kernel keeps them. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Bytes include Ethernet headers; packets are as handed to the interface, which may split or join them. */
typedef struct tw_netdev_counters {
    uint64_t rx_bytes, rx_packets, tx_bytes, tx_packets;
} tw_netdev_counters_t;

/** Add up the counters of `devices`, one or a list such as "eth0,eth1". /sys shows those of the network
 *  namespace that it was mounted in, as nodes of the cluster in a box have it. TW_ERR_NOT_FOUND, logged. */
tw_status_t tw_netdev_read(const char *devices, tw_netdev_counters_t *out);

/** What the library counted: payload `sent_bytes` in `sent_messages`, over `n_pauses` quiet moments at which
 *  the interface's counters were read. The interface must show at least the payload, and at most the payload
 *  and 10 % for headers and repeats, 300 bytes for each message, 2 KiB for each pause (heartbeats, address
 *  resolution), and the acknowledgements of what it received: a 66-byte segment for every packet, or for
 *  every second frame of a joined one. */
typedef struct tw_netdev_claim {
    uint64_t sent_bytes, sent_messages;
    int n_pauses;
} tw_netdev_claim_t;

/** Return 1 if the difference of two readings fits the claim. */
int tw_netdev_fits(const tw_netdev_counters_t *delta, const tw_netdev_claim_t *claim);

TW_C_END
