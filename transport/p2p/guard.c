#include "transport/p2p/guard.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define EVERYTHING 0xffffffffu
#define INSTRUCTIONS_MAX BPF_MAXINSNS
/** What one address takes at most. */
#define INSTRUCTIONS_PER_ADDRESS 9

/* ---- sockets ----------------------------------------------------------------------------------------------- */

/** The local port of a TCP socket; -1: it is none. */
static int port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    int type = 0;
    socklen_t type_bytes = sizeof(type);
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) || type != SOCK_STREAM) {
        return -1;
    }
    if (address.ss_family == AF_INET) {
        return ntohs(((struct sockaddr_in *)&address)->sin_port);
    }
    return address.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port) : -1;
}

static int is_listening(int fd)
{
    int listening = 0;
    socklen_t bytes = sizeof(listening);
    return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) && listening;
}

/** Call visit(arg, fd, port) for every TCP socket of this process. */
static void each_socket(void (*visit)(void *arg, int fd, int port), void *arg)
{
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        const int fd = (int)strtol(entry->d_name, NULL, 10);
        const int port = entry->d_name[0] == '.' || fd == dirfd(folder) ? -1 : port_of(fd);
        if (port > 0) {
            visit(arg, fd, port);
        }
    }
    if (folder) {
        closedir(folder);
    }
}

static void note_listener(void *arg, int fd, int port)
{
    tw_guard_t *guard = arg;
    (void)port;
    int *grown = is_listening(fd)
                     ? realloc(guard->before, ((size_t)guard->n_before + 1) * sizeof(*guard->before))
                     : NULL;
    if (grown) {
        guard->before = grown;
        guard->before[guard->n_before++] = fd;
    }
}

void tw_guard_init(tw_guard_t *guard)
{
    *guard = (tw_guard_t){.listener = -1};
    each_socket(note_listener, guard);
}

void tw_guard_cleanup(tw_guard_t *guard)
{
    free(guard->before);
    *guard = (tw_guard_t){.listener = -1};
}

/* ---- filters ----------------------------------------------------------------------------------------------- */

static tw_status_t attach(int fd, struct sock_filter *code, size_t n)
{
    const struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) ? TW_ERR_UNSUPPORTED
                                                                                   : TW_OK;
}

static tw_status_t admit_nobody(int fd)
{
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    return attach(fd, code, 1);
}

static void detach(int fd)
{
    int ignored = 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof(ignored));
}

static uint32_t word_at(const uint8_t *address, int i)
{
    uint32_t word;
    memcpy(&word, address + 4 * i, sizeof(word));
    return ntohl(word);
}

static int is_v4(const uint8_t *address)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return !memcmp(address, mapped, sizeof(mapped));
}

/** Accept what has these words of the IP header, from a byte on. Returns the end of the code. */
static size_t match(struct sock_filter *code, size_t n, uint32_t from, const uint8_t *address, int first_word)
{
    for (int i = first_word; i < 4; i++) {
        const uint32_t at = (uint32_t)SKF_NET_OFF + from + 4 * (uint32_t)(i - first_word);
        const uint8_t behind = (uint8_t)(2 * (3 - i) + 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_at(address, i), 0, behind);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, EVERYTHING);
    return n;
}

/** IPv4's source is at byte 12 of the header, IPv6's at 8. */
static size_t match_all(struct sock_filter *code, const uint8_t *addresses, size_t n_addresses)
{
    size_t n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)SKF_NET_OFF);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4);
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 1, 0);
    const size_t to_v6 = n;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, 0);
    for (size_t i = 0; i < n_addresses; i++) {
        const uint8_t *address = addresses + i * TW_GUARD_ADDRESS_BYTES;
        n = is_v4(address) ? match(code, n, 12, address, 3) : n;
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    code[to_v6].k = (uint32_t)(n - to_v6 - 1);
    for (size_t i = 0; i < n_addresses; i++) {
        const uint8_t *address = addresses + i * TW_GUARD_ADDRESS_BYTES;
        n = is_v4(address) ? n : match(code, n, 8, address, 0);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    return n;
}

/* ---- what may come in -------------------------------------------------------------------------------------- */

/** What find_new looks for. */
typedef struct search {
    tw_guard_t *guard;
    const void *address;
    size_t bytes;
} search_t;

static void find_new(void *arg, int fd, int port)
{
    const search_t *search = arg;
    const uint16_t port_bytes = htons((uint16_t)port);
    for (int i = 0; i < search->guard->n_before; i++) {
        if (search->guard->before[i] == fd) {
            return;
        }
    }
    if (is_listening(fd) && memmem(search->address, search->bytes, &port_bytes, sizeof(port_bytes))) {
        search->guard->listener = fd;
        search->guard->port = port;
    }
}

tw_status_t tw_guard_close(tw_guard_t *guard, const void *address, size_t bytes)
{
    search_t search = {guard, address, bytes};
    each_socket(find_new, &search);
    if (guard->listener >= 0 && !admit_nobody(guard->listener)) {
        return TW_OK;
    }
    guard->listener = -1;
    return TW_ERR_UNSUPPORTED;
}

tw_status_t tw_guard_admit(tw_guard_t *guard, const uint8_t *addresses, size_t n)
{
    const size_t longest = 6 + n * INSTRUCTIONS_PER_ADDRESS;
    struct sock_filter *code = malloc(longest * sizeof(*code));
    tw_status_t status = TW_ERR_UNSUPPORTED;
    if (code) {
        const size_t n_code = match_all(code, addresses, n);
        status = n_code <= INSTRUCTIONS_MAX ? attach(guard->listener, code, n_code) : TW_ERR_UNSUPPORTED;
    }
    free(code);
    if (status) {
        detach(guard->listener);
    }
    return status;
}

static void take_filter_off(void *arg, int fd, int port)
{
    const tw_guard_t *guard = arg;
    if (port == guard->port && fd != guard->listener && !is_listening(fd)) {
        detach(fd);
    }
}

void tw_guard_shut(tw_guard_t *guard)
{
    if (guard->listener >= 0) {
        (void)admit_nobody(guard->listener); /* it took one before */
        each_socket(take_filter_off, guard);
    }
}
