/** TCP sockets and network devices: thin wrappers. Only tw_socket_connect blocks. Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Listen on `port` (0: any free one), by IPv4 and IPv6, on all devices, or if `host` is a loopback address
 *  on loopback only. Returns the socket, or -1 with errno set. */
int tw_socket_listen(const char *host, int port);
/** Return the port of a listening socket. */
int tw_socket_port(int fd);
/** Accept a new connection. Returns its socket, or -1 with errno set (EAGAIN: none is pending). */
int tw_socket_accept(int listener);
/** Connect, waiting until `deadline_ns`. TW_ERR_IO or TW_ERR_TIMEOUT (silent): `reason` says why, and *fd is
 *  unchanged. */
tw_status_t tw_socket_connect(const char *host, int port, uint64_t deadline_ns, int *fd, char *reason,
                              size_t reason_bytes);
/** Begin to connect to an IP address of 16 bytes, IPv4 mapped into IPv6. index: the device's interface index,
 *  for link-local addresses. Returns the socket, or -1 with errno set. */
int tw_socket_begin(const uint8_t address[16], int port, unsigned index);
/** A local address to connect from, and its device. index: the device's interface index, for link-local
 *  addresses. is_bound: packets use that device in both directions, whatever the routes say. */
typedef struct tw_socket_from {
    const uint8_t *own; /**< [16] */
    const char *device;
    unsigned index;
    int is_bound;
} tw_socket_from_t;
int tw_socket_begin_from(const tw_socket_from_t *from, const uint8_t address[16], int port);
/** Bind an accepted connection to a device and return 1. Return 0, without binding, if it came in by another
 *  device or this process may not bind sockets. */
int tw_socket_keep_to(int fd, const char *device, unsigned index);
/** Make a connection break within about the timeout once the other host no longer answers, even if this end
 *  sends nothing. */
void tw_socket_keep_alive(int fd, double timeout_sec);
/** Set the traffic class, 0 to 255, of the connection's IPv4 or IPv6 packets. */
void tw_socket_mark(int fd, int traffic_class);
/** Check a connection that is being opened. TW_OK: connected; TW_IN_PROGRESS; TW_ERR_IO with *error set. */
tw_status_t tw_socket_begun(int fd, int *error);
/** Get the other end's IP address, IPv4 mapped into IPv6. Returns 0 if it has no IP address. */
int tw_socket_peer_address(int fd, uint8_t address[16]);
/** Write the other end's address, as "10.0.0.3:4567". */
void tw_socket_peer_name(int fd, char *name, size_t name_bytes);
/** Write the name of the device that has this end's address; "" if no device has it. */
void tw_socket_device(int fd, char *device, size_t device_bytes);
/** Return the kind of an IP address of 16 bytes: 0: IPv4, mapped into IPv6; 1: IPv6; 2: link-local IPv6; 3
 *  and 4: IPv4 and IPv6 loopback. Addresses of different kinds cannot reach each other. */
#define TW_NET_KINDS 5
#define TW_NET_KIND_LOOPBACK 3 /**< kinds from this one on are loopback */
int tw_net_address_kind(const uint8_t address[16]);
/** Write the IP addresses of a device to `out`, [max], 16 bytes each, in the order of their kinds. Returns
 *  how many there are; 0 after an error. */
int tw_net_device_addresses(const char *device, uint8_t *out, int max);
/** Return 1 if `device` exists, is up, and has a carrier and an address. */
int tw_net_device_usable(const char *device);

TW_C_END
