/* Reports this machine: CPU, codec backends, network interfaces, RDMA devices, TCP. */
#include "bench/info/info.h"

#include <errno.h>
#include <glob.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench/congestion.h"
#include "core/line.h"
#include "quant/quant.h"

#define LIST_BYTES 1024
#define MAX_BACKENDS 16
#define CPUINFO_BYTES 8192
#define RDMA_FOLDER "/sys/class/infiniband"

static void append_word(char *list, size_t list_bytes, const char *word)
{
    size_t used = strlen(list);
    snprintf(list + used, list_bytes - used, "%s%s", used > 0 ? " " : "", word);
}

/* ---- CPU ----------------------------------------------------------------------------------------------- */

/** Get the value of the first line "key : value" in /proc/cpuinfo; "" if there is none. */
static void cpuinfo_value(const char *key, char *value, size_t value_bytes)
{
    char line[CPUINFO_BYTES];
    const char *text = tw_line_read("/proc/cpuinfo", key, line, sizeof(line)) ? strchr(line, ':') : NULL;
    snprintf(value, value_bytes, "%s", text ? text + strspn(text, ": \t") : "");
}

/** List those instruction sets of this CPU that our kernels can use, in Linux's spelling. */
static void cpu_features(char *list, size_t list_bytes)
{
    static const char *const wanted[] = {"avx",      "avx2",     "f16c",        "fma",          "avx512f",
                                         "avx512bw", "avx512vl", "avx512_vnni", "avx512_vbmi2", "avx512_bf16",
                                         "asimd",    "asimdhp",  "bf16",        "sve"};
    char flags[CPUINFO_BYTES];
    char *rest;
    list[0] = '\0';
    cpuinfo_value("flags", flags, sizeof(flags));
    if (flags[0] == '\0') {
        cpuinfo_value("Features", flags, sizeof(flags));
    }
    for (char *flag = strtok_r(flags, " ", &rest); flag; flag = strtok_r(NULL, " ", &rest)) {
        for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
            if (strcmp(flag, wanted[i]) == 0) {
                append_word(list, list_bytes, flag);
            }
        }
    }
}

static int usable_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

static void backends(info_report_t *report, const char *key, tw_mem_t mem)
{
    const char *names[MAX_BACKENDS];
    size_t n = tw_quant_backends(mem, names, MAX_BACKENDS);
    char list[LIST_BYTES] = "";
    for (size_t i = 0; i < n; i++) {
        append_word(list, sizeof(list), names[i]);
    }
    info_text(report, key, list);
}

void info_cpu(info_report_t *report)
{
    char text[LIST_BYTES];
    struct utsname system;
    info_begin(report, "cpu", NULL);
    cpuinfo_value("model name", text, sizeof(text));
    info_text(report, "model", text);
    info_int(report, "usable_cores", usable_cores());
    cpu_features(text, sizeof(text));
    info_text(report, "features", text);
    if (uname(&system) == 0) {
        snprintf(text, sizeof(text), "%s %s %s", system.sysname, system.release, system.machine);
        info_text(report, "system", text);
    }
    info_end(report);

    info_begin(report, "quant", NULL);
    backends(report, "host_backends", TW_MEM_HOST);
    backends(report, "cuda_backends", TW_MEM_CUDA);
    info_end(report);
}

/* ---- tcp ----------------------------------------------------------------------------------------------- */

void info_tcp(info_report_t *report)
{
    char text[LIST_BYTES] = "";
    socklen_t bytes = sizeof(text) - 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    info_begin(report, "tcp", NULL);
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, text, &bytes) != 0) {
        tw_warn("cannot ask a TCP socket for its congestion control: %s", strerror(errno));
    }
    info_text(report, "congestion_control", text);
    if (!tw_line_read("/proc/sys/net/ipv4/tcp_available_congestion_control", "", text, sizeof(text))) {
        snprintf(text, sizeof(text), "unknown");
    }
    info_text(report, "available", text);
    info_end(report);
    if (fd >= 0) {
        close(fd);
    }
}

/* ---- network ------------------------------------------------------------------------------------------- */

/** List the IPv4 and IPv6 addresses of an interface. */
static void nic_addresses(const struct ifaddrs *all, const char *name, char *list, size_t list_bytes)
{
    list[0] = '\0';
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        char host[128]; /* a numeric address with its scope */
        socklen_t bytes;

        if (!entry->ifa_addr || strcmp(entry->ifa_name, name) != 0) {
            continue;
        }
        if (entry->ifa_addr->sa_family == AF_INET) {
            bytes = sizeof(struct sockaddr_in);
        } else if (entry->ifa_addr->sa_family == AF_INET6) {
            bytes = sizeof(struct sockaddr_in6);
        } else {
            continue;
        }
        if (getnameinfo(entry->ifa_addr, bytes, host, sizeof(host), NULL, 0, NI_NUMERICHOST) == 0) {
            append_word(list, list_bytes, host);
        }
    }
}

static void nic_file(const char *name, const char *file, char *line, size_t line_bytes)
{
    char path[512];
    snprintf(path, sizeof(path), "/sys/class/net/%s/%s", name, file);
    if (!tw_line_read(path, "", line, line_bytes)) {
        snprintf(line, line_bytes, "unknown");
    }
}

static void one_nic(info_report_t *report, const struct ifaddrs *addresses, const char *name)
{
    char text[LIST_BYTES];
    long speed;
    info_begin(report, "nic", name);
    nic_file(name, "operstate", text, sizeof(text));
    info_text(report, "state", text);
    /* Virtual links and links that are down have no speed, or -1. */
    nic_file(name, "speed", text, sizeof(text));
    speed = strtol(text, NULL, 10);
    if (speed > 0) {
        info_int(report, "speed_mbps", speed);
    }
    nic_file(name, "mtu", text, sizeof(text));
    info_int(report, "mtu", strtol(text, NULL, 10));
    nic_addresses(addresses, name, text, sizeof(text));
    info_text(report, "address", text);
    if (tw_congestion_of_routes(name, text, sizeof(text))[0] != '\0') {
        info_text(report, "congestion_control", text);
    }
    info_end(report);
}

/** Report the port of an RDMA device. `folder` is like "/sys/class/infiniband/mlx5_0/ports/1". */
static void rdma_port(info_report_t *report, const char *folder)
{
    static const char *const files[] = {"state", "link_layer", "rate"};
    static const char *const keys[] = {"state", "link", "rate"};
    char device[256] = "", port[256] = "", name[520], path[1024], line[LIST_BYTES];
    (void)sscanf(folder, RDMA_FOLDER "/%255[^/]/ports/%255s", device, port);
    snprintf(name, sizeof(name), "%s:%s", device, port);
    info_begin(report, "rdma", name);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        info_text(report, keys[i], tw_line_read(path, "", line, sizeof(line)) ? line : "unknown");
    }
    info_end(report);
}

void info_nics(info_report_t *report)
{
    struct ifaddrs *addresses = NULL;
    struct if_nameindex *names = if_nameindex();
    glob_t ports;
    if (!names || getifaddrs(&addresses) != 0) {
        tw_warn("cannot list the network interfaces: %s", strerror(errno));
    }
    for (const struct if_nameindex *nic = names; nic && nic->if_name; nic++) {
        one_nic(report, addresses, nic->if_name);
    }
    freeifaddrs(addresses);
    if_freenameindex(names);
    if (glob(RDMA_FOLDER "/*/ports/*", 0, NULL, &ports) == 0) {
        for (size_t i = 0; i < ports.gl_pathc; i++) {
            rdma_port(report, ports.gl_pathv[i]);
        }
        globfree(&ports);
    }
}
