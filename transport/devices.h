/** Lists of network devices in the form of TW_NET_DEVICES. All readers of that variable use this parser. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_DEVICES_NAME_BYTES 64 /**< room for a name and its 0: "eth0", or UCX's "mlx5_0:1" */

/** Check a list of device names. Names are separated by commas; blanks around a name are ignored, and the
 *  list may be empty. TW_ERR_CONFIG: a name is missing, too long or listed twice; logged with `who`, the
 *  list's owner ("rank 3"). Does not check whether the devices exist. */
tw_status_t tw_devices_check(const char *who, const char *list);
/** Get the next name of a checked list. At first *at is the list; each call moves it on. Returns 0 after the
 *  last name. */
int tw_devices_next(const char **at, char name[TW_DEVICES_NAME_BYTES]);

/** Convert an IP address to 16 bytes, IPv4 mapped into IPv6. Returns 0 if it is NULL or no IP address. */
struct sockaddr;
int tw_devices_address(const struct sockaddr *from, uint8_t address[16]);
/** Write the address as text, without a port; returns text. */
#define TW_DEVICES_ADDRESS_BYTES 46
const char *tw_devices_address_text(const uint8_t address[16], char text[TW_DEVICES_ADDRESS_BYTES]);

/** Find another device that is up and has an address in a subnet of `device`. Unless a socket is bound to a
 *  device, packets to that subnet leave by whichever of the two devices comes first in the routing table. to:
 *  an address of 16 bytes, IPv4 mapped into IPv6, in the subnet to look at; NULL: all of the device's
 *  subnets. Returns 1 if such a device exists; `twin` is its name. */
int tw_devices_twin(const char *device, const uint8_t *to, char twin[TW_DEVICES_NAME_BYTES]);
/** Returns 1 if this process may bind sockets to devices: it has CAP_NET_RAW, or Linux is 5.7 or later. */
int tw_devices_can_bind(void);

TW_C_END
