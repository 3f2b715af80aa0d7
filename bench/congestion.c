#include "bench/congestion.h"

#include <dirent.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAME_BYTES 16

void tw_congestion_add(const char *name, char *list, size_t list_bytes)
{
    size_t n = strlen(name), have = strlen(list);
    for (const char *at = list; n > 0 && (at = strstr(at, name)); at += n) {
        if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ',')) {
            return;
        }
    }
    snprintf(list + have, list_bytes - have, "%s%s", have > 0 && n > 0 ? "," : "", name);
}

static int same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

/** Return 1 if fd is a connection over IP to another address than its own. */
static int is_connection(int fd)
{
    struct sockaddr_storage own, peer;
    socklen_t own_bytes = sizeof(own), peer_bytes = sizeof(peer);
    if (getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &own_bytes) != 0 ||
        (peer.ss_family != AF_INET && peer.ss_family != AF_INET6)) {
        return 0;
    }
    return !same_address(&own, &peer);
}

const char *tw_congestion_in_use(char *list, size_t list_bytes)
{
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    list[0] = '\0';
    while (folder && (entry = readdir(folder))) {
        int fd = atoi(entry->d_name);
        char name[NAME_BYTES + 1] = "";
        socklen_t bytes = NAME_BYTES;
        if (is_connection(fd) && getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0) {
            tw_congestion_add(name, list, list_bytes);
        }
    }
    if (folder) {
        closedir(folder);
    }
    return list;
}

/** Return the attribute of this type among `bytes` of attributes, or NULL. */
static const struct rtattr *find_attribute(const struct rtattr *first, size_t bytes, int type)
{
    for (const struct rtattr *at = first; RTA_OK(at, bytes); at = RTA_NEXT(at, bytes)) {
        if (at->rta_type == type) {
            return at;
        }
    }
    return NULL;
}

static void add_route(const struct nlmsghdr *message, unsigned device, char *list, size_t list_bytes)
{
    const struct rtmsg *route = NLMSG_DATA(message);
    size_t bytes = RTM_PAYLOAD(message);
    const struct rtattr *out = find_attribute(RTM_RTA(route), bytes, RTA_OIF);
    const struct rtattr *metrics = find_attribute(RTM_RTA(route), bytes, RTA_METRICS);
    const struct rtattr *name =
        metrics ? find_attribute(RTA_DATA(metrics), RTA_PAYLOAD(metrics), RTAX_CC_ALGO) : NULL;
    if (name && out && *(const unsigned *)RTA_DATA(out) == device) {
        tw_congestion_add(RTA_DATA(name), list, list_bytes);
    }
}

/** Read one answer of the kernel, and list the congestion controls in it; return 0 after the last one. */
static int read_routes(int fd, unsigned device, char *list, size_t list_bytes)
{
    _Alignas(struct nlmsghdr) char answer[1 << 15];
    ssize_t n = recv(fd, answer, sizeof(answer), 0);
    size_t bytes = n > 0 ? (size_t)n : 0;
    for (const struct nlmsghdr *at = (const void *)answer; NLMSG_OK(at, bytes); at = NLMSG_NEXT(at, bytes)) {
        if (at->nlmsg_type == NLMSG_DONE || at->nlmsg_type == NLMSG_ERROR) {
            return 0;
        }
        if (at->nlmsg_type == RTM_NEWROUTE) {
            add_route(at, device, list, list_bytes);
        }
    }
    return n > 0;
}

const char *tw_congestion_of_routes(const char *device, char *list, size_t list_bytes)
{
    struct {
        struct nlmsghdr head;
        struct rtmsg route;
    } ask = {.head = {.nlmsg_len = sizeof(ask),
                      .nlmsg_type = RTM_GETROUTE,
                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
             .route = {.rtm_family = AF_INET}};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    list[0] = '\0';
    if (fd >= 0 && send(fd, &ask, sizeof(ask), 0) == (ssize_t)sizeof(ask)) {
        while (read_routes(fd, if_nametoindex(device), list, list_bytes)) {
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return list;
}
