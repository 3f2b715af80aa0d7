/** Reads from the kernel which TCP congestion control open connections and routes use. */
#pragma once

#include <stddef.h>

#include "core/core.h"

TW_C_BEGIN

/** List the congestion control of this process's TCP connections to other addresses than its own, each name
 *  once, like "cubic" or "bbr,cubic"; "" if there are no connections. Returns `list`, cut to list_bytes. */
const char *tw_congestion_in_use(char *list, size_t list_bytes);

/** List the congestion controls that are set in an interface's IPv4 routes, each once. "" means that no route
 *  has one, so that connections use the system's. Returns `list`. */
const char *tw_congestion_of_routes(const char *device, char *list, size_t list_bytes);

/** Append `name` to a list such as "cubic,bbr", unless the list has it. */
void tw_congestion_add(const char *name, char *list, size_t list_bytes);

TW_C_END
