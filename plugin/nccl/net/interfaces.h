/** Chooses the network interfaces that are offered to NCCL. Private to the folder. */
#pragma once

#include <net/if.h>

#include "plugin/nccl/net/net.h"

TW_C_BEGIN

typedef struct tw_net_interface {
    char name[IF_NAMESIZE];
    uint8_t address[16]; /**< IPv4 mapped into IPv6 */
} tw_net_interface_t;

typedef struct tw_net_interfaces {
    int n;
    tw_net_interface_t *item; /**< [n] */
} tw_net_interfaces_t;

/** Choose interfaces among those that are up and have an address:
 *    1. those that `names` lists ("eth0,eth1"), in that order;
 *    2. if `names` is empty, those that NCCL_SOCKET_IFNAME matches, in the system's order;
 *    3. if that is not set either, all of the first kind that exists here: network interfaces with a routable
 *       address; a loopback with a routable address; interfaces with 169.254/16; interfaces of containers and
 *       virtual machines; interfaces with fe80::/10 only; the loopback.
 *  Addresses are of the family NCCL_SOCKET_FAMILY; if it is not set, IPv4 is preferred. On success there are
 *  1 to TW_NET_DEVICES_MAX interfaces. TW_ERR_CONFIG, TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_NO_MEMORY, logged;
 *  then there is nothing to clean up. */
tw_status_t tw_net_interfaces_choose(const char *names, tw_net_interfaces_t *out);
void tw_net_interfaces_cleanup(tw_net_interfaces_t *interfaces);

/** Returns 1 if NCCL_SOCKET_IFNAME with this text matches an interface: "eth,ib" matches names with these
 *  prefixes, "=eth0" that name alone, "^docker" and "^=eth1" all other names. A port after a name
 *  ("eth0:4000") is ignored. */
int tw_net_interfaces_match(const char *text, const char *name);

TW_C_END
