#include "transport/control/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/devices.h"

#define BACKLOG 1024
#define SOCKET_FLAGS (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

static void close_keeping_errno(int fd)
{
    const int error = errno;
    close(fd);
    errno = error;
}

static void set_option(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof(value)); /* the option helps, but is not needed */
}

static socklen_t fill_address(const uint8_t address[16], int port, struct sockaddr_storage *out)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (!memcmp(address, mapped, sizeof(mapped))) {
        struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        memcpy(&v4.sin_addr, address + sizeof(mapped), sizeof(v4.sin_addr));
        memcpy(out, &v4, sizeof(v4));
        return sizeof(v4);
    }
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    memcpy(&v6.sin6_addr, address, sizeof(v6.sin6_addr));
    memcpy(out, &v6, sizeof(v6));
    return sizeof(v6);
}

/* ---- listening ----------------------------------------------------------------------------------------- */

static int listen_at(const uint8_t address[16], int port)
{
    struct sockaddr_storage at;
    const socklen_t bytes = fill_address(address, port, &at);
    const int fd = socket(at.ss_family, SOCKET_FLAGS, 0);
    if (fd < 0) {
        return -1;
    }
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (at.ss_family == AF_INET6) {
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    }
    if (!bind(fd, (struct sockaddr *)&at, bytes) && !listen(fd, BACKLOG)) {
        return fd;
    }
    close_keeping_errno(fd);
    return -1;
}

/** Read a loopback address. Returns 0 if the text is none. Names are not resolved: a host's own name may lead
 *  to loopback on that host, and elsewhere to one of its devices. */
static int loopback_read(const char *text, uint8_t address[16])
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST};
    struct addrinfo *list;
    if (getaddrinfo(text, NULL, &hints, &list)) {
        return 0;
    }
    const int is_address = tw_devices_address(list->ai_addr, address);
    freeaddrinfo(list);
    return is_address && tw_net_address_kind(address) >= TW_NET_KIND_LOOPBACK;
}

int tw_socket_listen(const char *host, int port)
{
    static const uint8_t any[2][16] = {{0}, {[10] = 0xff, 0xff}};
    static const uint8_t loopback[2][16] = {{[10] = 0xff, 0xff, 127, 0, 0, 1}, {[15] = 1}};
    uint8_t given[16];
    const int is_localhost = !strcmp(host, "localhost"), is_given = loopback_read(host, given);
    const int fd = listen_at(is_localhost ? loopback[0] : is_given ? given : any[0], port);
    /* Use another address if the host lacks this one's version of IP. */
    if (fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
        return listen_at(is_localhost ? loopback[1] : is_given ? loopback[0] : any[1], port);
    }
    return fd;
}

int tw_socket_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &bytes)) {
        return -1;
    }
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

int tw_socket_accept(int listener)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    }
    return fd;
}

/* ---- connecting ---------------------------------------------------------------------------------------- */

/** Connect to one address. Returns 0, or the errno. */
static int connect_one(int fd, const struct addrinfo *info, uint64_t deadline_ns)
{
    int error = connect(fd, info->ai_addr, info->ai_addrlen) ? errno : 0;
    while (error == EINPROGRESS || error == EINTR) {
        const uint64_t now = tw_time_ns();
        struct pollfd pollfd = {.fd = fd, .events = POLLOUT};
        socklen_t bytes = sizeof(error);
        if (now >= deadline_ns) {
            return ETIMEDOUT;
        }
        const int ready = poll(&pollfd, 1, (int)((deadline_ns - now) / 1000000 + 1));
        if (ready > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes)) {
            return errno;
        }
    }
    return error;
}

static int bind_to_device(int fd, const char *device)
{
    return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device) + 1);
}

/** Begin to connect. from or device NULL: the system chooses it. Returns the socket, or -1 with errno set. */
static int socket_begin(const struct sockaddr_storage *from, const char *device,
                        const struct sockaddr_storage *to, socklen_t bytes)
{
    const int fd = socket(to->ss_family, SOCKET_FLAGS, 0);
    if (fd < 0) {
        return -1;
    }
    set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if ((device && bind_to_device(fd, device)) || (from && bind(fd, (const struct sockaddr *)from, bytes)) ||
        (connect(fd, (const struct sockaddr *)to, bytes) && errno != EINPROGRESS)) {
        close_keeping_errno(fd);
        return -1;
    }
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    return fd;
}

static void set_scope(struct sockaddr_storage *address, unsigned device)
{
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;
    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) {
        v6->sin6_scope_id = device;
    }
}

int tw_socket_begin(const uint8_t address[16], int port, unsigned index)
{
    struct sockaddr_storage to;
    const socklen_t bytes = fill_address(address, port, &to);
    set_scope(&to, index);
    return socket_begin(NULL, NULL, &to, bytes);
}

int tw_socket_begin_from(const tw_socket_from_t *from, const uint8_t address[16], int port)
{
    struct sockaddr_storage own, to;
    (void)fill_address(from->own, 0, &own);
    const socklen_t bytes = fill_address(address, port, &to);
    set_scope(&own, from->index);
    set_scope(&to, from->index);
    return socket_begin(&own, from->is_bound ? from->device : NULL, &to, bytes);
}

/** Socket options that return the device on which a connection's first packet arrived. */
static const struct {
    int level, wanted, get, type;
    size_t index_at;
} came_by_ways[] = {
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, IPV6_2292PKTOPTIONS, IPV6_PKTINFO,
     offsetof(struct in6_pktinfo, ipi6_ifindex)},
    {IPPROTO_IP, IP_PKTINFO, IP_PKTOPTIONS, IP_PKTINFO, offsetof(struct in_pktinfo, ipi_ifindex)},
};

/** Return the interface index of the device on which a connection came in; 0 if the system does not say. */
static unsigned came_by(int fd)
{
    unsigned index = 0;
    for (size_t i = 0; i < sizeof(came_by_ways) / sizeof(came_by_ways[0]) && !index; i++) {
        uint8_t control[256];
        struct msghdr message = {.msg_control = control};
        socklen_t bytes = sizeof(control);
        set_option(fd, came_by_ways[i].level, came_by_ways[i].wanted, 1);
        if (getsockopt(fd, came_by_ways[i].level, came_by_ways[i].get, control, &bytes)) {
            continue;
        }
        message.msg_controllen = bytes;
        for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
            if (one->cmsg_level == came_by_ways[i].level && one->cmsg_type == came_by_ways[i].type) {
                memcpy(&index, CMSG_DATA(one) + came_by_ways[i].index_at, sizeof(index));
            }
        }
    }
    return index;
}

int tw_socket_keep_to(int fd, const char *device, unsigned index)
{
    return came_by(fd) == index && !bind_to_device(fd, device);
}

void tw_socket_keep_alive(int fd, double timeout_sec)
{
    const int sec = timeout_sec < 4 ? 4 : timeout_sec > 3600 ? 3600 : (int)timeout_sec;
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, sec / 2);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, sec / 4);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

void tw_socket_mark(int fd, int traffic_class)
{
    set_option(fd, IPPROTO_IP, IP_TOS, traffic_class);
    set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
}

tw_status_t tw_socket_begun(int fd, int *error)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLOUT};
    socklen_t bytes = sizeof(*error);
    if (poll(&pollfd, 1, 0) <= 0) {
        return TW_IN_PROGRESS;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &bytes)) {
        *error = errno;
    }
    return *error ? TW_ERR_IO : TW_OK;
}

static tw_status_t connect_any(const struct addrinfo *list, uint64_t deadline_ns, int *fd, int *error)
{
    for (const struct addrinfo *info = list; info; info = info->ai_next) {
        const int made = socket(info->ai_family, SOCKET_FLAGS, 0);
        *error = made < 0 ? errno : connect_one(made, info, deadline_ns);
        if (!*error) {
            set_option(made, IPPROTO_TCP, TCP_NODELAY, 1);
            *fd = made;
            return TW_OK;
        }
        if (made >= 0) {
            close(made);
        }
    }
    return *error == ETIMEDOUT ? TW_ERR_TIMEOUT : TW_ERR_IO;
}

tw_status_t tw_socket_connect(const char *host, int port, uint64_t deadline_ns, int *fd, char *reason,
                              size_t reason_bytes)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[16];
    int error = 0;
    snprintf(service, sizeof(service), "%d", port);
    const int failure = getaddrinfo(host, service, &hints, &list);
    if (failure) {
        snprintf(reason, reason_bytes, "%s: %s", host, gai_strerror(failure));
        return TW_ERR_IO;
    }
    tw_status_t status = connect_any(list, deadline_ns, fd, &error);
    if (status) {
        snprintf(reason, reason_bytes, "%s port %d: %s", host, port, strerror(error));
    }
    freeaddrinfo(list);
    return status;
}

/* ---- names --------------------------------------------------------------------------------------------- */

/** Convert an IPv4 address that is mapped into IPv6 back to IPv4. */
static socklen_t unwrap(struct sockaddr_storage *address, socklen_t bytes)
{
    const struct sockaddr_in6 v6 = *(struct sockaddr_in6 *)address;
    return v6.sin6_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)
               ? fill_address(v6.sin6_addr.s6_addr, ntohs(v6.sin6_port), address)
               : bytes;
}

void tw_socket_peer_name(int fd, char *name, size_t name_bytes)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    char host[INET6_ADDRSTRLEN + 16], service[16];
    const int flags = NI_NUMERICHOST | NI_NUMERICSERV;
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) ||
        getnameinfo((struct sockaddr *)&address, unwrap(&address, bytes), host, sizeof(host), service,
                    sizeof(service), flags)) {
        snprintf(name, name_bytes, "?");
    } else {
        snprintf(name, name_bytes, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, service);
    }
}

int tw_socket_peer_address(int fd, uint8_t address[16])
{
    struct sockaddr_storage storage = {0};
    socklen_t bytes = sizeof(storage);
    return !getpeername(fd, (struct sockaddr *)&storage, &bytes) &&
           tw_devices_address((struct sockaddr *)&storage, address);
}

/** Return the interface index of a link-local address; 0 for other addresses. */
static unsigned scope_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_scope_id : 0;
}

void tw_socket_device(int fd, char *device, size_t device_bytes)
{
    struct sockaddr_storage storage;
    const struct sockaddr *socket_own = (struct sockaddr *)&storage;
    socklen_t bytes = sizeof(storage);
    struct ifaddrs *list = NULL;
    uint8_t own[16], other[16];
    device[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&storage, &bytes) || !tw_devices_address(socket_own, own) ||
        getifaddrs(&list)) {
        return;
    }
    for (const struct ifaddrs *i = list; i && !device[0]; i = i->ifa_next) {
        /* The same link-local address may exist on several links. The loopback device has all of 127.0.0.0/8,
         * though it lists only one address. */
        const int match = tw_net_address_kind(own) >= TW_NET_KIND_LOOPBACK
                              ? i->ifa_addr && (i->ifa_flags & IFF_LOOPBACK)
                              : tw_devices_address(i->ifa_addr, other) && !memcmp(own, other, sizeof(own)) &&
                                    scope_of(i->ifa_addr) == scope_of(socket_own);
        if (match) {
            snprintf(device, device_bytes, "%s", i->ifa_name);
        }
    }
    freeifaddrs(list);
}

int tw_net_device_usable(const char *device)
{
    const unsigned up = IFF_UP | IFF_RUNNING;
    struct ifaddrs *list = NULL;
    int usable = 0;
    if (getifaddrs(&list)) {
        return 0;
    }
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        usable |= !strcmp(i->ifa_name, device) && i->ifa_addr && (i->ifa_flags & up) == up &&
                  (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
    }
    freeifaddrs(list);
    return usable;
}

int tw_net_address_kind(const uint8_t address[16])
{
    struct in6_addr ip;
    memcpy(&ip, address, sizeof(ip));
    if (IN6_IS_ADDR_V4MAPPED(&ip)) {
        return address[12] == 127 ? TW_NET_KIND_LOOPBACK : 0;
    }
    return IN6_IS_ADDR_LOOPBACK(&ip) ? TW_NET_KIND_LOOPBACK + 1 : IN6_IS_ADDR_LINKLOCAL(&ip) ? 2 : 1;
}

int tw_net_device_addresses(const char *device, uint8_t *out, int max)
{
    struct ifaddrs *list = NULL;
    int n = 0;
    if (getifaddrs(&list)) {
        return 0;
    }
    for (int kind = 0; kind < TW_NET_KINDS; kind++) {
        for (const struct ifaddrs *i = list; i && n < max; i = i->ifa_next) {
            uint8_t address[16];
            if (!strcmp(i->ifa_name, device) && tw_devices_address(i->ifa_addr, address) &&
                tw_net_address_kind(address) == kind) {
                memcpy(out + 16 * n++, address, sizeof(address));
            }
        }
    }
    freeifaddrs(list);
    return n;
}
