/* Reads a network device's properties from the system. interfaces.c chooses the devices for NCCL. */
#include "plugin/nccl/net/net.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/line.h"
#include "plugin/nccl/net/interfaces.h"
#include "transport/devices.h"

/* Speed in Mb/s of a device that reports none. NCCL's own socket net assumes this speed, too. */
#define UNKNOWN_SPEED_MBPS 10000

/* ---- what the system knows ----------------------------------------------------------------------------- */

/** Read the first line of /sys/class/net/<name>/<what>. Returns 0 if there is none. */
static int sys_read_line(const char *name, const char *what, char *line, size_t bytes)
{
    char path[TW_NET_PATH_BYTES];
    (void)snprintf(path, sizeof(path), "/sys/class/net/%.64s/%s", name, what);
    return tw_line_read(path, "", line, bytes);
}

static int speed_of(const char *name)
{
    char line[32];
    long speed = sys_read_line(name, "speed", line, sizeof(line)) ? strtol(line, NULL, 10) : 0;
    return speed > 0 && speed <= INT_MAX ? (int)speed : 0;
}

/** Returns the device's hardware address as a number, or its place in the list if it has none. */
static uint64_t guid_of(const char *name, int place)
{
    char line[64];
    uint64_t guid = 0;
    if (sys_read_line(name, "address", line, sizeof(line))) {
        for (const char *c = line; *c != '\0'; c++) {
            int digit = isdigit((unsigned char)*c) ? *c - '0' : tolower((unsigned char)*c) - 'a' + 10;

            guid = isxdigit((unsigned char)*c) ? guid << 4 | (uint64_t)digit : guid;
        }
    }
    return guid != 0 ? guid : (uint64_t)place + 1;
}

/** Returns 1 if the text has the form "0000:00:03.0". */
static int is_pci_address(const char *text, size_t length)
{
    static const char form[] = "hhhh:hh:hh.h";
    for (size_t i = 0; i < length; i++) {
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
            begin--;
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
    (void)snprintf(out, TW_NET_PATH_BYTES, "%s", path ? path : "");
    free(path);
    tw_net_pci_path(out);
}

static void device_describe(tw_net_device_t *device, int place)
{
    device->guid = guid_of(device->name, place);
    device->speed_mbps = speed_of(device->name);
    read_pci_path(device->name, device->pci_path);
}

static void guess_speeds(tw_net_devices_t *devices, double gbps)
{
    int speed_mbps = gbps > 0 ? (int)(gbps * 1e3 / devices->n) : UNKNOWN_SPEED_MBPS;
    for (int i = 0; i < devices->n; i++) {
        if (devices->device[i].speed_mbps == 0) {
            devices->device[i].speed_mbps = speed_mbps > 0 ? speed_mbps : 1;
        }
    }
}

/** Returns 1 (logged) if packets to this device's subnet would leave by a device that is in the list. */
static int is_claimed(const tw_net_devices_t *devices, const tw_net_device_t *device)
{
    char twin[TW_DEVICES_NAME_BYTES];
    for (int i = 0; i < devices->n; i++) {
        if (tw_devices_twin(device->name, devices->device[i].address, twin)) {
            tw_warn("net: %s and %s are in one subnet, and this process may not bind sockets to devices "
                    "(CAP_NET_RAW, or Linux 5.7): the first alone is offered",
                    devices->device[i].name, device->name);
            return 1;
        }
    }
    return 0;
}

/** Merge all devices into one. It has the first device's address, and the sum of their speeds. */
static void merge(tw_net_devices_t *devices)
{
    tw_net_device_t *first = &devices->device[0];
    size_t length = strlen(first->name);
    for (int i = 1; i < devices->n; i++) {
        length += (size_t)snprintf(first->name + length, sizeof(first->name) - length, ",%s",
                                   devices->device[i].name);
        first->speed_mbps += devices->device[i].speed_mbps;
    }
    devices->n = 1;
}

tw_status_t tw_net_devices_find(const tw_net_options_t *options, tw_net_devices_t *devices)
{
    tw_net_interfaces_t chosen;
    TW_TRY(tw_net_interfaces_choose(options->devices, &chosen));
    int can_bind = tw_devices_can_bind();
    *devices = (tw_net_devices_t){.n = 0};
    for (int i = 0; i < chosen.n; i++) {
        tw_net_device_t *device = &devices->device[devices->n];
        (void)snprintf(device->name, sizeof(device->name), "%s", chosen.item[i].name);
        memcpy(device->address, chosen.item[i].address, sizeof(device->address));
        if (can_bind || !is_claimed(devices, device)) {
            device_describe(device, devices->n++);
        }
    }
    tw_net_interfaces_cleanup(&chosen);
    guess_speeds(devices, options->gbps);
    if (options->merge) {
        merge(devices);
    }
    return TW_OK;
}
