/** Reads which congestion control is in effect, from the kernel: of open connections, and of routes. */
#pragma once

#include <stddef.h>

#include "core/core.h"

TW_C_BEGIN

/** List the congestion control of this process's open TCP connections to other addresses than its own, each
 *  name once, as "cubic" or "bbr,cubic"; "" if there are none. Returns `list`, cut to list_bytes. */
const char *tw_congestion_in_use(char *list, size_t list_bytes);

/** List the congestion control that IPv4 routes by this interface set themselves, each name once; "": they
 *  set none, and connections have the system's. */
const char *tw_congestion_of_routes(const char *device, char *list, size_t list_bytes);

/** Add `name` to a list as above unless it is there. */
void tw_congestion_add(const char *name, char *list, size_t list_bytes);

TW_C_END
