/** Which network interfaces NCCL is offered. Private to the folder. */
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

/** Choose among the interfaces that are up and have an address: those that `names` lists ("eth0,eth1", in
 *  that order); else, in the system's order, those that NCCL_SOCKET_IFNAME means, as NCCL reads it; else all
 *  with an address of a network, but for the loopback and those of containers and virtual machines; where
 *  there are none, a loopback with such an address, those with 169.254/16, those of containers, those with
 *  fe80::/10 alone, the loopback. Of the address family that NCCL_SOCKET_FAMILY says; else IPv4 where there
 *  is one. At least one, at most TW_NET_DEVICES_MAX. TW_ERR_CONFIG, TW_ERR_NOT_FOUND, TW_ERR_IO,
 *  TW_ERR_NO_MEMORY, logged; then there is nothing to clean up. */
tw_status_t tw_net_interfaces_choose(const char *names, tw_net_interfaces_t *out);
void tw_net_interfaces_cleanup(tw_net_interfaces_t *interfaces);

/** Whether NCCL_SOCKET_IFNAME with this text means an interface: "eth,ib" those that begin so, "=eth0" that
 *  one, "^docker" and "^=eth1" all others; a port may follow a name ("eth0:4000") and is ignored. */
int tw_net_interfaces_match(const char *text, const char *name);

TW_C_END
