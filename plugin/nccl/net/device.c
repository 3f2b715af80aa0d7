/* What network devices there are, and what the system knows of them. */
#include "plugin/nccl/net/net.h"

#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As NCCL's own sockets have it. */
#define UNKNOWN_SPEED_MBPS 10000

/* ---- addresses ---------------------------------------------------------------------------------------------- */

/* A device is worth a look if it is up; *is_v4: rather this than another one of its addresses. */
static int usable_address(const struct ifaddrs *entry, uint8_t address[16], int *is_v4)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (entry->ifa_addr == NULL || (entry->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING)) {
        return 0;
    }
    if (entry->ifa_addr->sa_family == AF_INET) {
        memcpy(address, mapped, sizeof(mapped));
        memcpy(address + 12, &((const struct sockaddr_in *)(const void *)entry->ifa_addr)->sin_addr, 4);
        *is_v4 = 1;
        return 1;
    }
    if (entry->ifa_addr->sa_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)entry->ifa_addr)->sin6_addr;

        memcpy(address, in6, 16);
        *is_v4 = 0;
        return !IN6_IS_ADDR_LINKLOCAL(in6); /* others need to know by which device */
    }
    return 0;
}

static tw_net_device_t *find_device(tw_net_devices_t *devices, const char *name)
{
    for (int i = 0; i < devices->n; ++i) {
        if (strcmp(devices->device[i].name, name) == 0) {
            return &devices->device[i];
        }
    }
    return NULL;
}

/* In the system's order. */
static void list_addresses(const struct ifaddrs *entries, tw_net_devices_t *devices)
{
    for (const struct ifaddrs *entry = entries; entry != NULL; entry = entry->ifa_next) {
        tw_net_device_t *device = find_device(devices, entry->ifa_name);
        uint8_t address[16];
        int is_v4;

        if (!usable_address(entry, address, &is_v4)) {
            continue;
        }
        if (device == NULL && devices->n < TW_NET_DEVICES_MAX) {
            device = &devices->device[devices->n++];
            *device = (tw_net_device_t){.guid = 0};
            (void)snprintf(device->name, sizeof(device->name), "%s", entry->ifa_name);
        } else if (device == NULL || !is_v4 || device->guid != 0) {
            continue;
        }
        memcpy(device->address, address, sizeof(address));
        device->guid = is_v4; /* until it is known: 1 if the address is settled */
    }
}

/* ---- what the system knows ---------------------------------------------------------------------------------- */

/* The first line of /sys/class/net/NAME/WHAT; 0 if there is none. */
static int read_line(const char *name, const char *what, char *line, int bytes)
{
    char path[TW_NET_PATH_BYTES];
    FILE *file;
    int found;

    (void)snprintf(path, sizeof(path), "/sys/class/net/%.64s/%s", name, what);
    file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    found = fgets(line, bytes, file) != NULL;
    (void)fclose(file);
    return found;
}

static int speed_of(const char *name)
{
    char line[32];
    long speed = read_line(name, "speed", line, sizeof(line)) ? strtol(line, NULL, 10) : 0;

    return speed > 0 && speed <= INT_MAX ? (int)speed : 0;
}

/* The hardware address as a number; the device's place in the list if it has none. */
static uint64_t guid_of(const char *name, int place)
{
    char line[64];
    uint64_t guid = 0;

    if (read_line(name, "address", line, sizeof(line))) {
        for (const char *c = line; *c != '\0'; ++c) {
            int digit = isdigit((unsigned char)*c) ? *c - '0' : tolower((unsigned char)*c) - 'a' + 10;

            guid = isxdigit((unsigned char)*c) ? guid << 4 | (uint64_t)digit : guid;
        }
    }
    return guid != 0 ? guid : (uint64_t)place + 1;
}

/* "0000:00:03.0" */
static int is_pci_address(const char *text, size_t length)
{
    static const char form[] = "hhhh:hh:hh.h";

    for (size_t i = 0; i < length; ++i) {
        if (i >= sizeof(form) - 1 ||
            (form[i] == 'h' ? !isxdigit((unsigned char)text[i]) : text[i] != form[i])) {
            return 0;
        }
    }
    return length == sizeof(form) - 1;
}

void tw_net_pci_path(char *path)
{
    size_t end = strlen(path);

    while (end > 0) {
        size_t begin = end;

        while (begin > 0 && path[begin - 1] != '/') {
            --begin;
        }
        if (is_pci_address(path + begin, end - begin)) {
            break;
        }
        end = begin > 0 ? begin - 1 : 0;
    }
    path[end] = '\0';
}

static void read_pci_path(const char *name, char out[TW_NET_PATH_BYTES])
{
    char link[TW_NET_PATH_BYTES], *path;

    (void)snprintf(link, sizeof(link), "/sys/class/net/%.64s/device", name);
    path = realpath(link, NULL);
    (void)snprintf(out, TW_NET_PATH_BYTES, "%s", path != NULL ? path : "");
    free(path);
    tw_net_pci_path(out);
}

static void describe(tw_net_device_t *device, int place)
{
    device->guid = guid_of(device->name, place);
    device->speed_mbps = speed_of(device->name);
    read_pci_path(device->name, device->pci_path);
}

static void guess_speeds(tw_net_devices_t *devices, double gbps)
{
    int speed_mbps = gbps > 0 ? (int)(gbps * 1e3 / devices->n) : UNKNOWN_SPEED_MBPS;

    for (int i = 0; i < devices->n; ++i) {
        if (devices->device[i].speed_mbps == 0) {
            devices->device[i].speed_mbps = speed_mbps > 0 ? speed_mbps : 1;
        }
    }
}

/* ---- which of them ------------------------------------------------------------------------------------------ */

static int begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static int leads_nowhere(const char *name)
{
    return strcmp(name, "lo") == 0 || begins_with(name, "docker") || begins_with(name, "virbr");
}

/* All but those that lead nowhere, unless there are only such. */
static void choose_all(const tw_net_devices_t *all, tw_net_devices_t *chosen)
{
    chosen->n = 0;
    for (int i = 0; i < all->n; ++i) {
        if (!leads_nowhere(all->device[i].name)) {
            chosen->device[chosen->n++] = all->device[i];
        }
    }
    if (chosen->n == 0) {
        *chosen = *all;
    }
}

static tw_status_t unknown_device(const tw_net_devices_t *all, const char *name)
{
    const char *names[TW_NET_DEVICES_MAX], *nearest;

    for (int i = 0; i < all->n; ++i) {
        names[i] = all->device[i].name;
    }
    nearest = tw_nearest_name(name, names, (size_t)all->n);
    tw_error("net: TW_NET_DEVICES: \"%s\" is not up, or has no address%s%s", name,
             nearest != NULL ? "; the nearest name is " : "", nearest != NULL ? nearest : "");
    return TW_ERR_CONFIG;
}

static tw_status_t choose_named(tw_net_devices_t *all, const char *names, tw_net_devices_t *chosen)
{
    char text[1024], *rest = NULL;

    if (snprintf(text, sizeof(text), "%s", names) >= (int)sizeof(text)) {
        tw_error("net: TW_NET_DEVICES is too long");
        return TW_ERR_CONFIG;
    }
    chosen->n = 0;
    for (char *name = strtok_r(text, ", ", &rest); name != NULL; name = strtok_r(NULL, ", ", &rest)) {
        const tw_net_device_t *device = find_device(all, name);

        if (device == NULL) {
            return unknown_device(all, name);
        }
        if (find_device(chosen, name) == NULL) {
            chosen->device[chosen->n++] = *device;
        }
    }
    return TW_OK;
}

/* Into the first: reached where that one is, as fast as all together. */
static void merge(tw_net_devices_t *devices)
{
    tw_net_device_t *first = &devices->device[0];
    size_t length = strlen(first->name);

    for (int i = 1; i < devices->n; ++i) {
        length += (size_t)snprintf(first->name + length, sizeof(first->name) - length, ",%s",
                                   devices->device[i].name);
        first->speed_mbps += devices->device[i].speed_mbps;
    }
    devices->n = 1;
}

static tw_status_t choose(const tw_net_options_t *options, tw_net_devices_t *all, tw_net_devices_t *chosen)
{
    tw_status_t status = TW_OK;

    if (options->devices[0] != '\0') {
        status = choose_named(all, options->devices, chosen);
    } else {
        choose_all(all, chosen);
    }
    if (status == TW_OK && chosen->n == 0) {
        tw_error("net: there is no network device that is up and has an address");
        status = TW_ERR_NOT_FOUND;
    }
    return status;
}

tw_status_t tw_net_devices_find(const tw_net_options_t *options, tw_net_devices_t *devices)
{
    tw_net_devices_t all = {.n = 0};
    struct ifaddrs *entries;
    if (getifaddrs(&entries) != 0) {
        tw_error("net: cannot list network devices: %s", strerror(errno));
        return TW_ERR_IO;
    }
    list_addresses(entries, &all);
    freeifaddrs(entries);
    TW_TRY(choose(options, &all, devices));
    for (int i = 0; i < devices->n; ++i) {
        describe(&devices->device[i], i);
    }
    guess_speeds(devices, options->gbps);
    if (options->merge) {
        merge(devices);
    }
    return TW_OK;
}
