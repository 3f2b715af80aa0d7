/** Counters of a network interface, as the kernel keeps them. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Bytes with Ethernet headers; packets as handed to and from the interface, which cuts and joins larger
 *  ones. */
typedef struct tw_netdev_counters {
    uint64_t rx_bytes, rx_packets, tx_bytes, tx_packets;
} tw_netdev_counters_t;

/** Counters of `devices`, one or a list such as "eth0,eth1", added up, in the caller's network namespace.
 *  TW_ERR_NOT_FOUND, TW_ERR_IO or TW_ERR_FORMAT, logged. */
tw_status_t tw_netdev_read(const char *devices, tw_netdev_counters_t *out);
/** The same out of the text of /proc/net/dev; silent. */
tw_status_t tw_netdev_parse(const char *text, const char *devices, tw_netdev_counters_t *out);

/** What may have been sent, given what was counted above: payload `sent_bytes` in `sent_messages`, over
 *  `n_pauses` quiet moments at which the counters were read. The interface must show at least the payload,
 *  and at most the payload and 10 % for headers and repeats, 300 bytes for each message, 2 KiB for each pause
 *  (heartbeats, address resolution), and the acknowledgements of what it received: a 66-byte segment for
 *  every packet, or for every second frame of a joined one. */
typedef struct tw_netdev_claim {
    uint64_t sent_bytes, sent_messages;
    int n_pauses;
} tw_netdev_claim_t;

/** 1 if the difference of two readings fits the claim. */
int tw_netdev_fits(const tw_netdev_counters_t *delta, const tw_netdev_claim_t *claim);

TW_C_END
