/* What TCP makes of the link: one stream of iperf3 from node 0 to node 1, and the congestion control in
 * effect. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "bench/collectives/bench.h"
#include "bench/congestion.h"

#define SECONDS "2"
#define REPLY_BYTES (1 << 18)

/** Start argv with its output into a pipe; returns its end, or -1. */
static int spawn_reader(const char *const *argv, pid_t *pid)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    if (posix_spawn_file_actions_init(&actions) != 0) {
        close(ends[0]);
        close(ends[1]);
        return -1;
    }
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int status = posix_spawnp(pid, argv[0], &actions, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (status != 0) {
        close(ends[0]);
        return -1;
    }
    return ends[0];
}

/** Read until `stop` appears, or to the end. Returns bytes read; text ends with 0. */
static size_t read_until(int fd, const char *stop, char *text, size_t text_bytes)
{
    size_t have = 0;
    text[0] = '\0';
    while (have < text_bytes - 1) {
        ssize_t n = read(fd, text + have, text_bytes - 1 - have);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        have += (size_t)n;
        text[have] = '\0';
        if (stop && strstr(text, stop)) {
            break;
        }
    }
    return have;
}

/** On node 1: start a server that listens when this returns. 0: there is none. */
static pid_t start_server(int *fd)
{
    const char *argv[] = {"iperf3", "-s", "-1", "--forceflush", NULL};
    char text[4096];
    pid_t pid;
    *fd = spawn_reader(argv, &pid);
    if (*fd < 0) {
        return 0;
    }
    read_until(*fd, "listening", text, sizeof(text));
    return pid;
}

static void stop_server(pid_t pid, int fd)
{
    if (pid > 0) {
        kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
        close(fd);
    }
}

/** On node 0: received bits per second, 0 if that did not work. */
static double run_client(void)
{
    char address[TW_CLUSTER_ADDRESS_BYTES];
    const char *argv[] = {"iperf3", "-c", tw_cluster_node_address(1, address), "-t", SECONDS, "-J", NULL};
    char *text = malloc(REPLY_BYTES);
    pid_t pid;
    int fd = text ? spawn_reader(argv, &pid) : -1;
    if (fd < 0) {
        free(text);
        return 0;
    }
    size_t n = read_until(fd, NULL, text, REPLY_BYTES);
    close(fd);
    waitpid(pid, NULL, 0);
    json_t *reply = json_loadb(text, n, 0, NULL);
    const json_t *received = json_object_get(json_object_get(reply, "end"), "sum_received");
    double bps = json_number_value(json_object_get(received, "bits_per_second"));
    json_decref(reply);
    free(text);
    return bps;
}

static int first_rank_of(const tw_bench_rank_t *rank, int node)
{
    int r = 0;
    while (r < rank->world - 1 && rank->node_of[r] != node) {
        r++;
    }
    return r;
}

tw_status_t tw_bench_tcp_rate(tw_bench_rank_t *rank, double *bps)
{
    *bps = 0;
    if (rank->options->no_iperf || rank->kind != TW_CLUSTER_NODES || rank->n_nodes < 2) {
        return TW_OK;
    }
    int is_server = rank->rank == first_rank_of(rank, 1), fd = -1;
    pid_t server = is_server ? start_server(&fd) : 0;
    double own = 0, *all = calloc((size_t)rank->world, sizeof(*all));
    if (!all) {
        return tw_bench_no_memory(rank, (size_t)rank->world * sizeof(*all));
    }
    tw_status_t status = tw_bench_barrier(rank);
    if (status == TW_OK && rank->rank == 0) {
        own = run_client();
    }
    if (status == TW_OK) {
        status = tw_bench_gather(rank, &own, sizeof(own), all);
    }
    stop_server(server, fd);
    *bps = all[0];
    free(all);
    return status;
}

tw_status_t tw_bench_congestion(tw_bench_rank_t *rank, char list[TW_BENCH_REASON_BYTES])
{
    char own[64] = "";
    char(*all)[sizeof(own)] = calloc((size_t)rank->world, sizeof(own));
    list[0] = '\0';
    if (!all) {
        return tw_bench_no_memory(rank, (size_t)rank->world * sizeof(own));
    }
    tw_congestion_in_use(0, own, sizeof(own));
    tw_status_t status = tw_bench_gather(rank, own, sizeof(own), all);
    for (int r = 0; r < rank->world && status == TW_OK; r++) {
        char *rest = all[r], *name;
        while ((name = strsep(&rest, ","))) {
            tw_congestion_add(name, list, TW_BENCH_REASON_BYTES);
        }
    }
    free(all);
    return status;
}
