/* The system's interfaces, and the choice among them. */
#include "plugin/nccl/net/interfaces.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/devices.h"

#define NAMES_BYTES 512

/** Returns AF_INET or AF_INET6 as NCCL_SOCKET_FAMILY says, or (like NCCL) AF_UNSPEC for any other value. */
static int wanted_family(void)
{
    const char *text = getenv("NCCL_SOCKET_FAMILY");
    if (text && strcmp(text, "AF_INET") == 0) {
        return AF_INET;
    }
    return text && strcmp(text, "AF_INET6") == 0 ? AF_INET6 : AF_UNSPEC;
}

/** Returns 1 and writes the entry's address if its interface is up and the address is of the family. */
static int usable_address(const struct ifaddrs *entry, int family, uint8_t address[16])
{
    return entry->ifa_addr && (entry->ifa_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING) &&
           (family == AF_UNSPEC || entry->ifa_addr->sa_family == family) &&
           tw_devices_address(entry->ifa_addr, address);
}

/** From where an address can be reached, best first: from other networks; from the same link (169.254/16);
 *  from the same link, by fe80::/10, which every device that is up gives itself; only from this host. */
typedef enum reach { ANYWHERE, LINK, LINK_BY_ITSELF, HOST } reach_t;

static int is_v4(const uint8_t address[16])
{
    return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)address);
}

static reach_t reach_of(const uint8_t address[16])
{
    const struct in6_addr *in6 = (const struct in6_addr *)(const void *)address;
    if (is_v4(address)) {
        return address[12] == 127 ? HOST : address[12] == 169 && address[13] == 254 ? LINK : ANYWHERE;
    }
    return IN6_IS_ADDR_LOOPBACK(in6) ? HOST : IN6_IS_ADDR_LINKLOCAL(in6) ? LINK_BY_ITSELF : ANYWHERE;
}

/** Returns 1 if `address` reaches farther than `than`, or as far and only `address` is IPv4. */
static int is_better(const uint8_t address[16], const uint8_t than[16])
{
    reach_t own = reach_of(address), other = reach_of(than);
    return own != other ? own < other : is_v4(address) && !is_v4(than);
}

static tw_net_interface_t *interfaces_find(const tw_net_interfaces_t *all, const char *name)
{
    for (int i = 0; i < all->n; i++) {
        if (strcmp(all->item[i].name, name) == 0) {
            return &all->item[i];
        }
    }
    return NULL;
}

static tw_status_t interfaces_add(tw_net_interfaces_t *all, const tw_net_interface_t *one)
{
    tw_net_interface_t *larger = realloc(all->item, ((size_t)all->n + 1) * sizeof(*larger));
    TW_FAIL_IF(!larger, TW_ERR_NO_MEMORY, "net: out of memory");
    all->item = larger;
    all->item[all->n++] = *one;
    return TW_OK;
}

/** List the interfaces in the system's order, each with its best address (is_better). */
static tw_status_t list(const struct ifaddrs *entries, tw_net_interfaces_t *all)
{
    int family = wanted_family();
    for (const struct ifaddrs *entry = entries; entry; entry = entry->ifa_next) {
        tw_net_interface_t one = {.name = ""}, *known = interfaces_find(all, entry->ifa_name);
        if (!usable_address(entry, family, one.address)) {
            continue;
        }
        if (!known) {
            (void)snprintf(one.name, sizeof(one.name), "%s", entry->ifa_name);
            TW_TRY(interfaces_add(all, &one));
        } else if (is_better(one.address, known->address)) {
            memcpy(known->address, one.address, sizeof(one.address));
        }
    }
    return TW_OK;
}

void tw_net_interfaces_cleanup(tw_net_interfaces_t *interfaces)
{
    free(interfaces->item);
    *interfaces = (tw_net_interfaces_t){0};
}

/* ---- which of them ------------------------------------------------------------------------------------- */

/** Returns 1 if an entry of a list matches `name`: equals it if is_exact, otherwise is a prefix. The entry is
 *  the `length` characters at `text`, where a port may follow (":4000"). */
static int matches(const char *text, size_t length, const char *name, int is_exact)
{
    const char *port = memchr(text, ':', length);
    length = port ? (size_t)(port - text) : length;
    return length > 0 && strncmp(name, text, length) == 0 && (!is_exact || name[length] == '\0');
}

int tw_net_interfaces_match(const char *text, const char *name)
{
    int is_not = text[0] == '^', is_exact = text[is_not] == '=';
    int found = 0;
    for (text += is_not + is_exact; *text != '\0'; text += strspn(text, ",")) {
        size_t length = strcspn(text, ",");
        found |= matches(text, length, name, is_exact);
        text += length;
    }
    return found != is_not;
}

/* Prefixes of devices of containers and virtual machines, in the form of NCCL_SOCKET_IFNAME. */
#define OF_CONTAINERS                                                                                      \
    "cali,cilium_,cni,docker,flannel,genev_sys_,kube,lxcbr,lxdbr,ovn-k8s-mp,podman,tunl,veth,virbr,vxlan_" \
    "sys_"

/** Returns 1 for Docker's bridges: "br-" and 12 hex digits. Others ("br-ex", "br-storage") are networks. */
static int is_dockers(const char *name)
{
    return strncmp(name, "br-", 3) == 0 && strspn(name + 3, "0123456789abcdef") == 12 && name[15] == '\0';
}

/** Ranks of interfaces, best first. If the user has not chosen, all interfaces of the best rank are offered.
 *  ROUTED_LOOPBACK: an address on the loopback that the host announces to routers. LINK_ALONE: 169.254/16
 *  only, as a management card has, with the same address in every host, or a cable between two hosts.
 *  UNNUMBERED: fe80::/10 only. */
enum { NETWORK, ROUTED_LOOPBACK, LINK_ALONE, CONTAINERS, UNNUMBERED, LOOPBACK, RANKS };

static int rank_of(const tw_net_interface_t *one)
{
    reach_t reach = reach_of(one->address);
    if (strcmp(one->name, "lo") == 0) {
        return reach == ANYWHERE ? ROUTED_LOOPBACK : LOOPBACK;
    }
    if (reach != LINK_BY_ITSELF &&
        (is_dockers(one->name) || tw_net_interfaces_match(OF_CONTAINERS, one->name))) {
        return CONTAINERS;
    }
    return reach == ANYWHERE ? NETWORK : reach == LINK ? LINK_ALONE : UNNUMBERED;
}

static tw_status_t choose_any(const tw_net_interfaces_t *all, tw_net_interfaces_t *chosen)
{
    for (int rank = 0; rank < RANKS && chosen->n == 0; rank++) {
        for (int i = 0; i < all->n; i++) {
            if (rank_of(&all->item[i]) == rank) {
                TW_TRY(interfaces_add(chosen, &all->item[i]));
            }
        }
    }
    return TW_OK;
}

static const char *all_names(const tw_net_interfaces_t *all, char names[NAMES_BYTES])
{
    size_t n = 0;
    names[0] = '\0';
    for (int i = 0; i < all->n && n < NAMES_BYTES; i++) {
        n += (size_t)snprintf(names + n, NAMES_BYTES - n, "%s%s", i > 0 ? " " : "", all->item[i].name);
    }
    return names;
}

static tw_status_t choose_matching(const tw_net_interfaces_t *all, const char *text,
                                   tw_net_interfaces_t *chosen)
{
    char names[NAMES_BYTES];
    for (int is_unnumbered = 0; is_unnumbered <= 1 && chosen->n == 0; is_unnumbered++) {
        for (int i = 0; i < all->n; i++) {
            const tw_net_interface_t *one = &all->item[i];
            if (tw_net_interfaces_match(text, one->name) &&
                (reach_of(one->address) == LINK_BY_ITSELF) == is_unnumbered) {
                TW_TRY(interfaces_add(chosen, one));
            }
        }
    }
    TW_FAIL_IF(chosen->n == 0, TW_ERR_CONFIG,
               "net: NCCL_SOCKET_IFNAME=%s: no network device that is up and has an address is meant; "
               "there are: %s",
               text, all_names(all, names));
    return TW_OK;
}

static tw_status_t unknown(const tw_net_interfaces_t *all, const char *name)
{
    const char **names = calloc((size_t)all->n + 1, sizeof(*names)), *nearest = NULL;
    for (int i = 0; names && i < all->n; i++) {
        names[i] = all->item[i].name;
    }
    nearest = names ? tw_nearest_name(name, names, (size_t)all->n) : NULL;
    tw_error("net: TW_NET_DEVICES: \"%s\" is not up, or has no address%s%s", name,
             nearest ? "; the nearest name is " : "", nearest ? nearest : "");
    free(names);
    return TW_ERR_CONFIG;
}

static tw_status_t choose_named(const tw_net_interfaces_t *all, const char *names,
                                tw_net_interfaces_t *chosen)
{
    char name[TW_DEVICES_NAME_BYTES];
    TW_TRY(tw_devices_check("net", names));
    while (tw_devices_next(&names, name)) {
        const tw_net_interface_t *one = interfaces_find(all, name);
        if (!one) {
            return unknown(all, name);
        }
        TW_TRY(interfaces_add(chosen, one));
    }
    TW_FAIL_IF(chosen->n > TW_NET_DEVICES_MAX, TW_ERR_CONFIG,
               "net: TW_NET_DEVICES names %d devices; at most %d can be used", chosen->n, TW_NET_DEVICES_MAX);
    return TW_OK;
}

static tw_status_t interfaces_choose(const tw_net_interfaces_t *all, const char *names,
                                     tw_net_interfaces_t *chosen)
{
    const char *ifname = getenv("NCCL_SOCKET_IFNAME");
    if (names[0] != '\0') {
        TW_TRY(choose_named(all, names, chosen));
    } else if (ifname && strlen(ifname) > 1) { /* NCCL ignores a single character */
        TW_TRY(choose_matching(all, ifname, chosen));
    } else {
        TW_TRY(choose_any(all, chosen));
    }
    TW_FAIL_IF(chosen->n == 0, TW_ERR_NOT_FOUND,
               "net: there is no network device that is up and has an address");
    if (chosen->n > TW_NET_DEVICES_MAX) {
        tw_warn("net: of %d network devices the first %d are offered; TW_NET_DEVICES or NCCL_SOCKET_IFNAME "
                "choose",
                chosen->n, TW_NET_DEVICES_MAX);
        chosen->n = TW_NET_DEVICES_MAX;
    }
    return TW_OK;
}

tw_status_t tw_net_interfaces_choose(const char *names, tw_net_interfaces_t *out)
{
    tw_net_interfaces_t all = {0};
    struct ifaddrs *entries;
    *out = (tw_net_interfaces_t){0};
    TW_FAIL_IF(getifaddrs(&entries) != 0, TW_ERR_IO, "net: cannot list network devices: %s", strerror(errno));
    tw_status_t status = list(entries, &all);
    freeifaddrs(entries);
    status = status == TW_OK ? interfaces_choose(&all, names, out) : status;
    tw_net_interfaces_cleanup(&all);
    if (status != TW_OK) {
        tw_net_interfaces_cleanup(out);
    }
    return status;
}
