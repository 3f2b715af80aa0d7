#include "bench/congestion.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
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

/** Return 1 if fd is a connection over IP whose two ends have different addresses. */
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

const char *tw_congestion_of_routes(const char *device, char *list, size_t list_bytes)
{
    char command[128], line[512];
    list[0] = '\0';
    if (strpbrk(device, "'\\")) { /* Linux allows these in names; a shell's quotes below do not */
        return list;
    }
    snprintf(command, sizeof(command),
             "PATH=$PATH:/usr/sbin:/sbin exec ip -4 route show table all dev '%s' 2>/dev/null", device);
    FILE *routes = popen(command, "re");
    while (routes && fgets(line, sizeof(line), routes)) {
        char name[NAME_BYTES + 1], *at = strstr(line, " congctl ");
        if (at && (sscanf(at, " congctl lock %16s", name) == 1 || sscanf(at, " congctl %16s", name) == 1)) {
            tw_congestion_add(name, list, list_bytes);
        }
    }
    const int status = routes ? pclose(routes) : -1;
    if (!routes || (WIFEXITED(status) && WEXITSTATUS(status) == 127)) {
        tw_warn("ip (Debian: iproute2) cannot be run: routes may set another congestion control unseen");
    }
    return list;
}
