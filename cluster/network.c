/* Makes namespaces, links and their rates, with system calls, `ip` and `tc`. */
#include "cluster/state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define REASON TW_CLUSTER_TEXT_BYTES
#define COMMAND_BYTES 256

/* Default length of a link's queue: it has room for the data that a handful of TCP streams have in flight. */
#define LINK_QUEUE "50ms"

/* Burst of one TCP packet: 64 KiB, a header for each frame in it, and some more. */
#define LINK_PACKET_BYTES 81920
#define LINK_TICK_SEC 250e-6
/* TURN: bytes that one node's queue sends before the next queue's turn; FRAME: most bytes of a frame. */
#define LINK_TURN_BYTES 65536
#define LINK_FRAME_BYTES 3000

/* Linux's default congestion control. */
#define COMMON_TCP "cubic"

pid_t tw_cluster_fork(int namespaces)
{
    /* Make the system call itself: glibc's clone() wants a new stack, and fork() takes no flags. */
    pid_t pid = (pid_t)syscall(SYS_clone, namespaces | SIGCHLD, NULL, NULL, NULL, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return pid;
}

/* ---- files and tools ----------------------------------------------------------------------------------- */

static int write_file(const char *path, const char *text, char *reason)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (n != (ssize_t)strlen(text)) {
        snprintf(reason, REASON, "%s: %s", path, strerror(error));
        return -1;
    }
    return 0;
}

int tw_cluster_map_user(uid_t uid, gid_t gid, char reason[REASON])
{
    char map[64];
    snprintf(map, sizeof(map), "0 %u 1", (unsigned)uid);
    if (write_file("/proc/self/uid_map", map, reason) != 0 ||
        write_file("/proc/self/setgroups", "deny", reason) != 0) {
        return -1;
    }
    snprintf(map, sizeof(map), "0 %u 1", (unsigned)gid);
    return write_file("/proc/self/gid_map", map, reason);
}

/** Run a tool in a shell. The command contains only names and numbers of this program, so nothing needs
 *  quoting. Network tools are often in a directory that is not in a user's PATH. Return 0, or -1 with the
 *  first line of its stderr as reason. */
__attribute__((format(printf, 2, 3))) static int run_tool(char *reason, const char *format, ...)
{
    char command[COMMAND_BYTES], line[COMMAND_BYTES + 80], complaint[REASON / 2] = "", rest[512];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    snprintf(line, sizeof(line), "PATH=$PATH:/usr/sbin:/sbin exec %s 2>&1 </dev/null >/dev/null", command);
    FILE *tool = popen(line, "re");
    for (char *to = complaint; tool && fgets(to, to == rest ? sizeof(rest) : sizeof(complaint), tool);) {
        to = rest; /* read the rest, too, so that the tool can end */
    }
    int status = tool ? pclose(tool) : -1;
    if (status != 0) {
        complaint[strcspn(complaint, "\n")] = '\0';
        snprintf(reason, REASON, "%.*s: %s%s", REASON / 3, command,
                 complaint[0] ? complaint : "failed without a word",
                 WIFEXITED(status) && WEXITSTATUS(status) == 127 ? " (Debian: iproute2)" : "");
    }
    return status == 0 ? 0 : -1;
}

/* ---- links --------------------------------------------------------------------------------------------- */

static const char *nic_address(int node, int nic, int ipv6, char buf[TW_CLUSTER_ADDRESS_BYTES])
{
    snprintf(buf, TW_CLUSTER_ADDRESS_BYTES, ipv6 ? "fd77::%x:%x" : "10.77.%d.%d", nic, node + 1);
    return buf;
}

const char *tw_cluster_node_address(int node, char buf[TW_CLUSTER_ADDRESS_BYTES])
{
    const char *master = getenv("MASTER_ADDR"); /* set by the cluster for this rank */
    return nic_address(node, 0, master && strchr(master, ':'), buf);
}

const char *tw_cluster_master_address(const tw_cluster_t *cluster, char buf[TW_CLUSTER_ADDRESS_BYTES])
{
    return nic_address(0, 0, cluster->params->ipv6, buf);
}

size_t tw_cluster_burst_bytes(double link_bps)
{
    double by_time = link_bps / 8 * LINK_TICK_SEC;
    return by_time > LINK_PACKET_BYTES ? (size_t)by_time : LINK_PACKET_BYTES;
}

/** Return the bytes of a link's queue: the windows of all connections that can share it, and headers. */
static size_t queue_bytes(const tw_cluster_params_t *params)
{
    const size_t world = (size_t)params->n_nodes * (size_t)params->ranks_per_node;
    const size_t queue = params->window_bytes * world * (size_t)params->ranks_per_node;
    return tw_cluster_burst_bytes(params->link_bps) + queue + queue / 4;
}

static int shape(const char *device, const tw_cluster_params_t *params, char *reason)
{
    char limit[64] = "latency " LINK_QUEUE;
    if (params->link_bps <= 0) {
        return 0;
    }
    if (params->window_bytes > 0) {
        snprintf(limit, sizeof(limit), "limit %zu", queue_bytes(params));
    }
    return run_tool(reason, "tc qdisc add dev %s root tbf rate %.0fbit burst %zu %s", device,
                    params->link_bps, tw_cluster_burst_bytes(params->link_bps), limit);
}

/** Add one queue for each node that packets go to; the queues take turns, packet by packet. */
static int add_turns(const char *device, const tw_cluster_params_t *params, char *reason)
{
    const size_t burst = tw_cluster_burst_bytes(params->link_bps), queue = queue_bytes(params);
    int failed = run_tool(reason, "tc qdisc add dev %s root handle 1: htb", device) != 0 ||
                 run_tool(reason,
                          "tc class add dev %s parent 1: classid 1:1 htb rate %.0fbit burst %zu cburst %zu "
                          "quantum %d",
                          device, params->link_bps, burst, burst, LINK_TURN_BYTES) != 0;
    for (int node = 0; node < params->n_nodes && !failed; node++) {
        const int id = node + 2; /* the end of the receiver's address selects a packet's queue */
        failed =
            run_tool(reason,
                     "tc class add dev %s parent 1:1 classid 1:%x htb rate %.0fbit ceil %.0fbit "
                     "burst %d cburst %d quantum %d",
                     device, id, params->link_bps / params->n_nodes, params->link_bps, LINK_FRAME_BYTES,
                     LINK_FRAME_BYTES, LINK_TURN_BYTES) != 0 ||
            run_tool(reason, "tc qdisc add dev %s parent 1:%x bfifo limit %zu", device, id, queue) != 0 ||
            run_tool(reason, "tc filter add dev %s parent 1: protocol %s u32 match u32 %d %s flowid 1:%x",
                     device, params->ipv6 ? "ipv6" : "ip", node + 1,
                     params->ipv6 ? "0xffff at 36" : "0xff at 16", id) != 0;
    }
    return failed ? -1 : 0;
}

/** Shape a node's end of its link. Real devices let connections take turns (Linux's fq_codel, fq). In a
 *  single queue, the connection with the most packets gets most of the link, and then even more. */
static int shape_own(const char *device, const tw_cluster_params_t *params, char *reason)
{
    return params->window_bytes > 0 && params->link_bps > 0 ? add_turns(device, params, reason)
                                                            : shape(device, params, reason);
}

int tw_cluster_make_bridge(int nic, char reason[REASON])
{
    if (run_tool(reason, "ip link add br%d type bridge", nic) != 0) {
        return -1;
    }
    /* addrgenmode none, here and below: IPv6 addresses would add packets to the counters. */
    return run_tool(reason, "ip link set br%d addrgenmode none up", nic);
}

int tw_cluster_make_port(const tw_cluster_t *cluster, int node, int nic, pid_t pid, char reason[REASON])
{
    char port[16];
    snprintf(port, sizeof(port), "port%d.%d", node, nic);
    if (run_tool(reason, "ip link add %s type veth peer name eth%d netns %d", port, nic, (int)pid) != 0 ||
        run_tool(reason, "ip link set %s addrgenmode none master br%d up", port, nic) != 0) {
        return -1;
    }
    return shape(port, cluster->params, reason);
}

/** Limit the windows of all connections through the sender's buffer, which holds all unacknowledged bytes. */
static int limit_windows(const tw_cluster_params_t *params, char *reason)
{
    char text[96];
    if (params->window_bytes == 0) {
        return 0;
    }
    snprintf(text, sizeof(text), "4096 %zu %zu", params->window_bytes, params->window_bytes);
    return write_file("/proc/sys/net/ipv4/tcp_wmem", text, reason);
}

/** Make routes use the common congestion control, because with another one, which this machine may use,
 *  streams share a link differently. Set it by route: a namespace's sysctl accepts only the algorithms that
 *  this machine allows to everybody, a route accepts all that the kernel has. */
static void use_common_tcp(int node, int nic, int ipv6, char *note)
{
    char address[TW_CLUSTER_ADDRESS_BYTES], reason[REASON];
    nic_address(node, nic, ipv6, address);
    const int failed =
        ipv6
            ? run_tool(reason,
                       "ip -6 route replace fd77::%x:0/112 dev eth%d proto kernel src %s congctl " COMMON_TCP,
                       nic, nic, address)
            : run_tool(reason,
                       "ip route replace 10.77.%d.0/24 dev eth%d proto kernel scope link src %s "
                       "congctl " COMMON_TCP,
                       nic, nic, address);
    if (failed) {
        snprintf(note, REASON, "node %d: TCP without " COMMON_TCP ": %.*s", node, REASON / 2, reason);
    }
}

int tw_cluster_make_device(const tw_cluster_t *cluster, int node, int nic, char reason[REASON],
                           char note[REASON])
{
    const int ipv6 = cluster->params->ipv6;
    char address[TW_CLUSTER_ADDRESS_BYTES], device[16];
    nic_address(node, nic, ipv6, address);
    snprintf(device, sizeof(device), "eth%d", nic);
    if (run_tool(reason, "ip link set %s addrgenmode none", device) != 0 ||
        run_tool(reason, ipv6 ? "ip addr add %s/112 dev %s nodad" : "ip addr add %s/24 dev %s", address,
                 device) != 0 ||
        shape_own(device, cluster->params, reason) != 0 || limit_windows(cluster->params, reason) != 0 ||
        run_tool(reason, "ip link set %s up", device) != 0) {
        return -1;
    }
    use_common_tcp(node, nic, ipv6, note);
    return 0;
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

static int mount_over(const char *type, const char *where, unsigned long flags, char *reason)
{
    if (mount(type, where, type, MS_NOSUID | MS_NODEV | MS_NOEXEC | flags, NULL) != 0) {
        snprintf(reason, REASON, "mount %s on %s: %s", type, where, strerror(errno));
        return -1;
    }
    return 0;
}

int tw_cluster_enter_node(const tw_cluster_t *cluster, int node, char reason[REASON])
{
    char name[16];
    snprintf(name, sizeof(name), "node%d", node);
    if (sethostname(name, strlen(name)) != 0) {
        snprintf(reason, REASON, "sethostname: %s", strerror(errno));
        return -1;
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        snprintf(reason, REASON, "make mounts private: %s", strerror(errno));
        return -1;
    }
    /* Containers may forbid a new /proc. The old one is good enough: only its process numbers differ. */
    if (mount_over("proc", "/proc", 0, reason) != 0) {
        tw_debug("node %d: %s", node, reason);
    }
    /* /sys/class/net lists the interfaces of the namespace that it was mounted in. */
    if (mount_over("sysfs", "/sys", MS_RDONLY, reason) != 0 ||
        mount_over("tmpfs", "/dev/shm", 0, reason) != 0) {
        return -1;
    }
    if (run_tool(reason, "ip link set lo up") != 0) {
        return -1;
    }
    return cluster->params->ipv6 ? run_tool(reason, "ip -4 addr flush dev lo") : 0;
}
