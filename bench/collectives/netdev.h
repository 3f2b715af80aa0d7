/** Reads the kernel's counters of a network interface. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Bytes include Ethernet headers. A packet is what the kernel hands to the interface or gets from it; the
 *  interface may split packets into frames, or join frames. */
typedef struct tw_netdev_counters {
    uint64_t rx_bytes, rx_packets, tx_bytes, tx_packets;
} tw_netdev_counters_t;

/** Read the sum of the counters of `devices`, which is a name or a list such as "eth0,eth1". They come from
 *  /sys, which shows the devices of the network namespace in which it was mounted; each node of a cluster in
 *  a box has mounted /sys in its own namespace. TW_ERR_NOT_FOUND, logged. */
tw_status_t tw_netdev_read(const char *devices, tw_netdev_counters_t *out);

/** What the library counted: payload bytes and messages that were sent, and pauses in which the interface's
 *  counters were read. The interface must have sent at least the payload. It may also have sent 10 % of it
 *  for headers and repeats, 300 bytes for each message, 2 KiB for each pause (heartbeats, address
 *  resolution), and acknowledgements: 66 bytes for every packet received, and for every second frame if
 *  frames were joined. */
typedef struct tw_netdev_claim {
    uint64_t sent_bytes, sent_messages;
    int n_pauses;
} tw_netdev_claim_t;

/** Return 1 if `delta`, the difference of two readings, fits the claim. */
int tw_netdev_fits(const tw_netdev_counters_t *delta, const tw_netdev_claim_t *claim);

TW_C_END
