/** Lists of network devices in the form of TW_NET_DEVICES, read alike by all that read that variable. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_DEVICES_NAME_BYTES 64 /**< room for a name and its 0: "eth0", or UCX's "mlx5_0:1" */

/** Names separated by commas; blanks around a name do not count, and an empty list has none. TW_ERR_CONFIG: a
 *  name is missing, too long or there twice; logged with `who` has the list ("rank 3"). It does not check
 *  whether the devices exist. */
tw_status_t tw_devices_check(const char *who, const char *list);
/** Get the next name of a list that was checked. *at is the list at first, and then moves on; 0: there is no
 *  more. */
int tw_devices_next(const char **at, char name[TW_DEVICES_NAME_BYTES]);

/** An IP address as 16 bytes, IPv4 mapped into IPv6. 0: it is of another kind, or NULL. */
struct sockaddr;
int tw_devices_address(const struct sockaddr *from, uint8_t address[16]);
/** Write the address as text, without a port; returns text. */
#define TW_DEVICES_ADDRESS_BYTES 46
const char *tw_devices_address_text(const uint8_t address[16], char text[TW_DEVICES_ADDRESS_BYTES]);

/** Find another device that is up and has an address in the subnet of this one. What is sent there leaves by
 *  whichever of the two the system's routes name first, unless its sockets are bound to a device. to: 16
 *  bytes, IPv4 mapped into IPv6: the subnet that has this address; NULL: any of this device's subnets. 1:
 *  there is one, and `twin` is its name. */
int tw_devices_twin(const char *device, const uint8_t *to, char twin[TW_DEVICES_NAME_BYTES]);
/** Returns 1 if this process may bind sockets to devices: it has CAP_NET_RAW, or Linux is 5.7 or later. */
int tw_devices_can_bind(void);

TW_C_END
