/** Lists of network devices, and devices that share a subnet. */
#include "transport/devices.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
    return tw_fail(TW_ERR_CONFIG, "%s: TW_NET_DEVICES: \"%s\"%s", who, text, why);
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

/* ---- addresses ----------------------------------------------------------------------------------------- */

int tw_devices_address(const struct sockaddr *from, uint8_t address[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (from && from->sa_family == AF_INET6) {
        memcpy(address, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16);
        return 1;
    }
    if (from && from->sa_family == AF_INET) {
        memcpy(address, mapped, sizeof(mapped));
        memcpy(address + 12, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
        return 1;
    }
    return 0;
}

const char *tw_devices_address_text(const uint8_t address[16], char text[TW_DEVICES_ADDRESS_BYTES])
{
    const int is_v4 = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)address);
    return inet_ntop(is_v4 ? AF_INET : AF_INET6, address + (is_v4 ? 12 : 0), text, TW_DEVICES_ADDRESS_BYTES);
}

/* ---- subnets ------------------------------------------------------------------------------------------- */

/** Get the bytes of an IP address. Returns how many; 0 if it is no IP address. */
static size_t bytes_of(const struct sockaddr *address, const uint8_t **data)
{
    if (address && address->sa_family == AF_INET) {
        *data = (const uint8_t *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
        return 4;
    }
    if (address && address->sa_family == AF_INET6) {
        *data = ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr.s6_addr;
        return 16;
    }
    return 0;
}

/** Return 1 if an address of `n` bytes is in the entry's subnet. Link-local addresses are in none: they
 *  always use their own device. */
static int list_has(const struct ifaddrs *entry, const uint8_t *address, size_t n)
{
    const uint8_t *own = NULL, *mask = NULL;
    const int is_up = (entry->ifa_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
    if (!is_up || bytes_of(entry->ifa_addr, &own) != n || bytes_of(entry->ifa_netmask, &mask) != n ||
        (n == 16 && IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)(const void *)address))) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if ((own[i] ^ address[i]) & mask[i]) {
            return 0;
        }
    }
    return 1;
}

static const char *find_twin(const struct ifaddrs *all, const struct ifaddrs *entry, const uint8_t *to)
{
    const uint8_t *target = NULL;
    size_t n = bytes_of(entry->ifa_addr, &target);
    if (to && n) {
        n = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)to) ? 4 : 16;
        target = to + 16 - n;
    }
    if (!n || !list_has(entry, target, n)) {
        return NULL;
    }
    for (const struct ifaddrs *other = all; other; other = other->ifa_next) {
        if (strcmp(other->ifa_name, entry->ifa_name) != 0 && list_has(other, target, n)) {
            return other->ifa_name;
        }
    }
    return NULL;
}

int tw_devices_twin(const char *device, const uint8_t *to, char twin[TW_DEVICES_NAME_BYTES])
{
    struct ifaddrs *all = NULL;
    const char *found = NULL;
    if (getifaddrs(&all)) {
        return 0;
    }
    for (const struct ifaddrs *entry = all; entry && !found; entry = entry->ifa_next) {
        found = strcmp(entry->ifa_name, device) == 0 ? find_twin(all, entry, to) : NULL;
    }
    if (found) {
        (void)snprintf(twin, TW_DEVICES_NAME_BYTES, "%s", found);
    }
    freeifaddrs(all);
    return found != NULL;
}

int tw_devices_can_bind(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int can = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", sizeof("lo"));
    if (fd >= 0) {
        close(fd);
    }
    return can;
}
