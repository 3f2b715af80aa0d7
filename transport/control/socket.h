/** TCP sockets and network devices: thin wrappers that do not block. Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Listen on `port` (0: any free one), on the loopback device alone if `host` is its address, else on all
 *  devices, by IPv4 and IPv6. Returns the socket, or -1 with errno set. */
int tw_socket_listen(const char *host, int port);
/** The port of a listening socket. */
int tw_socket_port(int fd);
/** Accept a new connection. Returns it, or -1 with errno set (EAGAIN: there is none). */
int tw_socket_accept(int listener);
/** Connect, waiting until `deadline_ns`. TW_ERR_IO or TW_ERR_TIMEOUT with why in `reason`, silent; *fd is
 *  then as it was. */
tw_status_t tw_socket_connect(const char *host, int port, uint64_t deadline_ns, int *fd, char *reason,
                              size_t reason_bytes);
/** Begin to connect to an IP address of 16 bytes, IPv4 mapped into IPv6. index: the number of the device, for
 *  link-local addresses. Returns the socket, or -1 with errno set. */
int tw_socket_begin(const uint8_t address[16], int port, unsigned index);
/** One of this host's own addresses to connect from, and its device. index: the device's number, for
 *  link-local addresses. is_bound: packets use that device in both directions, whatever the routes say. */
typedef struct tw_socket_from {
    const uint8_t *own; /**< [16] */
    const char *device;
    unsigned index;
    int is_bound;
} tw_socket_from_t;
int tw_socket_begin_from(const tw_socket_from_t *from, const uint8_t address[16], int port);
/** Bind an accepted connection to a device, unless it came in by another one. Returns 0 if it did, or may
 *  not be bound. */
int tw_socket_keep_to(int fd, const char *device, unsigned index);
/** Have a connection break, within about the timeout, once the other host does not answer any more, even if
 *  nothing is sent. */
void tw_socket_keep_alive(int fd, double timeout_sec);
/** Send with a traffic class, 0 to 255, of IPv4 or IPv6, whichever the connection uses. */
void tw_socket_mark(int fd, int traffic_class);
/** Ask whether connecting has ended. TW_OK: it is connected; TW_IN_PROGRESS; TW_ERR_IO with *error set. */
tw_status_t tw_socket_begun(int fd, int *error);
/** The other end's IP address, IPv4 mapped into IPv6. 0: it has none. */
int tw_socket_peer_address(int fd, uint8_t address[16]);
/** Write the other end's address, as "10.0.0.3:4567". */
void tw_socket_peer_name(int fd, char *name, size_t name_bytes);
/** The device that carries this end's address; "" if none does. */
void tw_socket_device(int fd, char *device, size_t device_bytes);
/** The kind of an IP address of 16 bytes: 0: IPv4, mapped into IPv6; 1: IPv6; 2: link-local IPv6; 3, 4: IPv4
 *  and IPv6 of the loopback. Addresses of different kinds do not reach each other. */
#define TW_NET_KINDS 5
#define TW_NET_KIND_LOOPBACK 3 /**< kinds from this one on are the loopback's */
int tw_net_address_kind(const uint8_t address[16]);
/** The IP addresses of a device, 16 bytes each, in the order of their kinds. out: [max]. Returns how many
 *  there are; 0 after an error. */
int tw_net_device_addresses(const char *device, uint8_t *out, int max);
/** Whether `device` exists, is up, has a carrier and an address. */
int tw_net_device_usable(const char *device);

TW_C_END
