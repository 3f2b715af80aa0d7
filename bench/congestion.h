/** Congestion control as it is in effect: what the kernel says of connections that are open, and of
 *  routes. */
#pragma once

#include <stddef.h>

#include "core/core.h"

TW_C_BEGIN

/** Names, "cubic" or "bbr,cubic", of the congestion control of every TCP connection that this process has
 *  open to other addresses than its own, each once, or "" where there is none. with_own: also of those to its
 *  own. Returns list, cut to list_bytes. */
const char *tw_congestion_in_use(int with_own, char *list, size_t list_bytes);

/** Names that the IPv4 routes by this interface have of their own, each once, or "": their connections have
 *  the system's. */
const char *tw_congestion_of_routes(const char *device, char *list, size_t list_bytes);

/** Add `name` to a list as above unless it is there. */
void tw_congestion_add(const char *name, char *list, size_t list_bytes);

TW_C_END
