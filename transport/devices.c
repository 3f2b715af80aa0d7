/** Lists of network devices. */
#include "transport/devices.h"

#include <string.h>

#define BLANKS " \t"

int tw_devices_next(const char **at, char name[TW_DEVICES_NAME_BYTES])
{
    if (!**at) {
        return 0;
    }
    const char *begin = *at + strspn(*at, BLANKS);
    size_t bytes = strcspn(begin, ",");
    *at = begin + bytes + (begin[bytes] == ',');
    while (bytes > 0 && strchr(BLANKS, begin[bytes - 1])) {
        bytes--;
    }
    bytes = bytes < TW_DEVICES_NAME_BYTES ? bytes : TW_DEVICES_NAME_BYTES - 1;
    memcpy(name, begin, bytes);
    name[bytes] = '\0';
    return 1;
}

static int stands_before(const char *list, const char *end, const char *name)
{
    char other[TW_DEVICES_NAME_BYTES];
    for (const char *at = list; tw_devices_next(&at, other) && at < end;) {
        if (strcmp(other, name) == 0) {
            return 1;
        }
    }
    return 0;
}

static tw_status_t wrong(const char *who, const char *text, const char *why)
{
    tw_error("%s: TW_NET_DEVICES: \"%s\"%s", who, text, why);
    return TW_ERR_CONFIG;
}

tw_status_t tw_devices_check(const char *who, const char *list)
{
    char name[TW_DEVICES_NAME_BYTES];
    const size_t bytes = strlen(list);
    for (const char *at = list; tw_devices_next(&at, name);) {
        if (strlen(name) == TW_DEVICES_NAME_BYTES - 1) {
            return wrong(who, name, "...: no device has so long a name");
        }
        if (!name[0] || (!*at && list[bytes - 1] == ',')) {
            return wrong(who, list, ": between two commas, or at an end, there is no name");
        }
        if (stands_before(list, at, name)) {
            return wrong(who, name, " stands there twice");
        }
    }
    return TW_OK;
}
