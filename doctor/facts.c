/* Reads what a rank knows about itself: its devices, its limits, and its host. */
#include <errno.h>
#include <glob.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/line.h"
#include "doctor/state.h"
#include "transport/devices.h"

#define PATH_BYTES 512
#define LINE_BYTES 4096
#define ANY_PORT "9" /* UDP port for asking the system for a route; nothing is sent to it */
#define NODE_FOLDER "/sys/devices/system/node"
#define RDMA_FOLDER "/sys/class/infiniband"

/* ---- numbers in files ---------------------------------------------------------------------------------- */

static int64_t device_number(const char *device, const char *file, int64_t otherwise)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    snprintf(path, sizeof(path), "/sys/class/net/%s/%s", device, file);
    return tw_line_read(path, "", line, sizeof(line)) ? strtoll(line, NULL, 10) : otherwise;
}

/** Whether the speed that a device reports is real. A virtual device's is not, unless it is a bond. */
static int is_hardware(const char *device)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "/sys/class/net/%s/device", device);
    const int has_device = access(path, F_OK) == 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s/bonding", device);
    return has_device || access(path, F_OK) == 0;
}

/** Read the third number of a file such as tcp_rmem: minimum, default, maximum. Returns 0 on failure. */
static int64_t most_of(const char *path)
{
    char line[LINE_BYTES];
    long long least, usual, most;
    return tw_line_read(path, "", line, sizeof(line)) &&
                   sscanf(line, "%lld %lld %lld", &least, &usual, &most) == 3
               ? most
               : 0;
}

static int64_t available_memory(void)
{
    char line[LINE_BYTES];
    long long kib = 0;
    return tw_line_read("/proc/meminfo", "MemAvailable:", line, sizeof(line)) &&
                   sscanf(line, "MemAvailable: %lld", &kib) == 1
               ? kib * 1024
               : 0;
}

/* ---- placement ----------------------------------------------------------------------------------------- */

/** Whether the folder of a NUMA node has all processors of the set. */
static int has_all(const char *folder, const cpu_set_t *set)
{
    int all = 1;
    for (size_t cpu = 0; cpu < CPU_SETSIZE && all; cpu++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof(path), "%s/cpu%zu", folder, cpu);
        all = !CPU_ISSET(cpu, set) || access(path, F_OK) == 0;
    }
    return all;
}

/** Returns the NUMA node that has all processors on which this process may run, or -1. */
static int numa_node(const cpu_set_t *set)
{
    glob_t nodes = {0};
    int found = -1, node;
    (void)glob(NODE_FOLDER "/node[0-9]*", 0, NULL, &nodes);
    for (size_t i = 0; i < nodes.gl_pathc; i++) {
        if (sscanf(nodes.gl_pathv[i], NODE_FOLDER "/node%d", &node) == 1 && has_all(nodes.gl_pathv[i], set)) {
            found = node;
        }
    }
    const int has_several = nodes.gl_pathc > 1;
    globfree(&nodes);
    return has_several ? found : -1;
}

/* ---- rdma ---------------------------------------------------------------------------------------------- */

/** Describe the first active RDMA port. The text stays empty if no port is active. */
static void find_rdma(char text[TW_DOCTOR_NAME_BYTES])
{
    glob_t ports = {0};
    (void)glob(RDMA_FOLDER "/*/ports/*", 0, NULL, &ports);
    for (size_t i = 0; i < ports.gl_pathc && !text[0]; i++) {
        char path[PATH_BYTES], state[LINE_BYTES], rate[LINE_BYTES] = "", device[25] = "";
        snprintf(path, sizeof(path), "%s/state", ports.gl_pathv[i]);
        if (tw_line_read(path, "", state, sizeof(state)) && strstr(state, "ACTIVE")) {
            snprintf(path, sizeof(path), "%s/rate", ports.gl_pathv[i]);
            (void)tw_line_read(path, "", rate, sizeof(rate));
            (void)sscanf(ports.gl_pathv[i], RDMA_FOLDER "/%24[^/]", device);
            snprintf(text, TW_DOCTOR_NAME_BYTES, "%s, %.32s", device, rate);
        }
    }
    globfree(&ports);
}

static void read_limits(tw_doctor_facts_t *facts)
{
    struct rlimit files;
    struct statvfs shm;
    cpu_set_t set;
    facts->numa = -1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        facts->cores = CPU_COUNT(&set);
        facts->numa = numa_node(&set);
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        facts->descriptors = files.rlim_cur == RLIM_INFINITY ? INT64_MAX : (int64_t)files.rlim_cur;
        facts->descriptors_hard = files.rlim_max == RLIM_INFINITY ? INT64_MAX : (int64_t)files.rlim_max;
    }
    if (statvfs("/dev/shm", &shm) == 0) {
        facts->shm_bytes = (int64_t)(shm.f_bavail * shm.f_frsize);
    }
    facts->memory_bytes = available_memory();
    facts->send_buffer = most_of("/proc/sys/net/ipv4/tcp_wmem");
    facts->receive_buffer = most_of("/proc/sys/net/ipv4/tcp_rmem");
}

/* ---- devices ------------------------------------------------------------------------------------------- */

/** Convert an address to IPv6. Returns 0 if it is neither IPv4 nor IPv6, or is link-local. */
static int as_ipv6(const struct sockaddr *address, struct sockaddr_in6 *out)
{
    *out = (struct sockaddr_in6){.sin6_family = AF_INET6};
    return tw_devices_address(address, out->sin6_addr.s6_addr) && !IN6_IS_ADDR_LINKLOCAL(&out->sin6_addr);
}

/** Find an IPv4 address of the device, or else an IPv6 address. Returns 0 if the device has none. */
static int find_address(const struct ifaddrs *all, const char *name, struct sockaddr_in6 *out)
{
    int found = 0;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        struct sockaddr_in6 address;
        if (strcmp(one->ifa_name, name) == 0 && as_ipv6(one->ifa_addr, &address) &&
            (!found || one->ifa_addr->sa_family == AF_INET)) {
            *out = address;
            found = 1;
        }
    }
    return found;
}

static tw_status_t add_device(const struct ifaddrs *all, const char *name, tw_doctor_facts_t *facts)
{
    tw_doctor_device_t *device = &facts->devices[facts->n_devices];
    TW_FAIL_IF(facts->n_devices == TW_DOCTOR_DEVICES_MAX, TW_ERR_CONFIG,
               "rank %d: TW_NET_DEVICES names more than %d devices", facts->rank, TW_DOCTOR_DEVICES_MAX);
    TW_FAIL_IF(!find_address(all, name, &device->address), TW_ERR_CONFIG, "rank %d: network device %s: %s",
               facts->rank, name, if_nametoindex(name) ? "it has no address" : "there is none of that name");
    snprintf(device->name, sizeof(device->name), "%.*s", (int)sizeof(device->name) - 1, name);
    device->mtu = (int32_t)device_number(name, "mtu", 0);
    const int64_t speed = is_hardware(name) ? device_number(name, "speed", 0) : 0;
    device->speed_mbps = speed > 0 ? (int32_t)speed : 0;
    device->numa = (int32_t)device_number(name, "device/numa_node", -1);
    facts->n_devices++;
    return TW_OK;
}

/** Find the address of this host from which packets to another host leave. Returns 0 if there is no route. */
static int own_address(const char *host, struct sockaddr_in6 *out)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int found = 0;
    if (getaddrinfo(host, ANY_PORT, &hints, &list) != 0) {
        return 0;
    }
    for (const struct addrinfo *one = list; one && !found; one = one->ai_next) {
        struct sockaddr_storage own;
        socklen_t bytes = sizeof(own);
        const int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0) {
            found = connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
                    getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 &&
                    as_ipv6((const struct sockaddr *)&own, out);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    freeaddrinfo(list);
    return found;
}

/** The device on the route to rank 0. If that is loopback or unknown: the first other that runs, or "lo". */
static const char *device_to_master(const struct ifaddrs *all, const char *host)
{
    struct sockaddr_in6 own, address;
    const char *usable = "lo";
    const int known = own_address(host, &own);
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        if (!as_ipv6(one->ifa_addr, &address)) {
            continue;
        }
        if (!(one->ifa_flags & IFF_LOOPBACK)) {
            if (known && memcmp(&address.sin6_addr, &own.sin6_addr, sizeof(own.sin6_addr)) == 0) {
                return one->ifa_name;
            }
            if ((one->ifa_flags & IFF_RUNNING) && strcmp(usable, "lo") == 0) {
                usable = one->ifa_name;
            }
        }
    }
    return usable;
}

static tw_status_t add_devices(const struct ifaddrs *all, const tw_job_t *job, const char *names,
                               tw_doctor_facts_t *facts)
{
    const char *list = names && *names ? names : device_to_master(all, job->master_addr);
    char who[32], name[TW_DEVICES_NAME_BYTES];
    snprintf(who, sizeof(who), "rank %d", job->rank);
    TW_TRY(tw_devices_check(who, list));
    while (tw_devices_next(&list, name)) {
        TW_TRY(add_device(all, name, facts));
    }
    return TW_OK;
}

tw_status_t tw_doctor_facts_read(const tw_job_t *job, const char *names, tw_doctor_facts_t *facts)
{
    struct ifaddrs *all = NULL;
    *facts = (tw_doctor_facts_t){.rank = job->rank, .local_rank = job->local_rank};
    if (gethostname(facts->host, sizeof(facts->host) - 1) != 0) {
        snprintf(facts->host, sizeof(facts->host), "unknown");
    }
    read_limits(facts);
    find_rdma(facts->rdma);
    const char *tls = getenv("TW_NET_TLS");
    facts->is_tcp = !tls || strcmp(tls, "tcp") == 0;
    TW_FAIL_IF(getifaddrs(&all) != 0, TW_ERR_IO, "rank %d: cannot list network devices: %s", job->rank,
               strerror(errno));
    const tw_status_t status = add_devices(all, job, names, facts);
    freeifaddrs(all);
    return status;
}
