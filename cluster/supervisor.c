/* Makes the nodes, watches their ranks, and ends them all. */
#include "cluster/state.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODE_NAMESPACES (CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS)
#define EXIT_NODE_LOST 125

typedef struct supervisor {
    const tw_cluster_t *cluster;
    int n_nodes, up; /* up: socket to the caller */
    int *fds;        /* [n_nodes] sockets to the nodes, -1 when closed */
    pid_t *pids;     /* [n_nodes] processes of the nodes */
    int *n_ended;    /* [n_nodes] ranks that have ended */
    struct pollfd *polls;
    int exit_code, was_killed; /* was_killed 1: a signal killed the rank that exit_code is from */
    /* first note of any node about what it could not set up as it should, or "" */
    char note[TW_CLUSTER_TEXT_BYTES];
    double deadline_sec; /* time to stop ranks that still run; 0: nothing has failed yet */
} supervisor_t;

static int supervisor_init(supervisor_t *sup)
{
    size_t n = (size_t)sup->n_nodes;
    sup->fds = malloc(n * sizeof(*sup->fds));
    sup->pids = calloc(n, sizeof(*sup->pids));
    sup->n_ended = calloc(n, sizeof(*sup->n_ended));
    sup->polls = calloc(n + 1, sizeof(*sup->polls));
    if (!sup->fds || !sup->pids || !sup->n_ended || !sup->polls) {
        return -1;
    }
    memset(sup->fds, 0xff, n * sizeof(*sup->fds));
    return 0;
}

/** Run a node, in its new process. Close the supervisor's sockets, or no node would notice its end. */
static void start_node_child(supervisor_t *sup, int node, int fd)
{
    for (int i = 0; i <= node; i++) {
        close(sup->fds[i]);
    }
    close(sup->up);
    _exit(tw_cluster_node_main(sup->cluster, node, fd));
}

static int start_node(supervisor_t *sup, int node, char *reason)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        snprintf(reason, TW_CLUSTER_TEXT_BYTES, "socketpair: %s", strerror(errno));
        return -1;
    }
    sup->fds[node] = ends[0];
    pid_t pid = tw_cluster_fork(sup->cluster->isolated ? NODE_NAMESPACES : 0);
    if (pid == 0) {
        start_node_child(sup, node, ends[1]);
    }
    int error = errno;
    close(ends[1]);
    if (pid < 0) {
        snprintf(reason, TW_CLUSTER_TEXT_BYTES, "new namespaces for node %d: %s", node, strerror(error));
        return -1;
    }
    sup->pids[node] = pid;
    return 0;
}

static void tell_nodes(const supervisor_t *sup, tw_cluster_event_t event)
{
    for (int i = 0; i < sup->n_nodes; i++) {
        tw_cluster_tell(sup->fds[i], event, sup->note);
    }
}

/** Let all nodes run their next stage of set-up, and wait until they have. */
static int run_stage(supervisor_t *sup, char *reason)
{
    tell_nodes(sup, TW_CLUSTER_GO);
    for (int i = 0; i < sup->n_nodes; i++) {
        tw_cluster_message_t message;
        if (!tw_cluster_receive(sup->fds[i], &message)) {
            snprintf(reason, TW_CLUSTER_TEXT_BYTES, "node %d died", i);
            return -1;
        }
        if (message.event != TW_CLUSTER_READY) {
            memcpy(reason, message.text, TW_CLUSTER_TEXT_BYTES);
            return -1;
        }
        if (sup->note[0] == '\0') {
            memcpy(sup->note, message.text, TW_CLUSTER_TEXT_BYTES);
        }
    }
    return 0;
}

static int make_bridges(const supervisor_t *sup, char *reason)
{
    for (int nic = 0; nic < sup->cluster->n_nics; nic++) {
        if (tw_cluster_make_bridge(nic, reason) != 0) {
            return -1;
        }
    }
    return 0;
}

static int make_ports(const supervisor_t *sup, char *reason)
{
    const tw_cluster_t *cluster = sup->cluster;
    for (int i = 0; i < sup->n_nodes * cluster->n_nics; i++) {
        int node = i / cluster->n_nics, nic = i % cluster->n_nics;
        if (tw_cluster_make_port(cluster, node, nic, sup->pids[node], reason) != 0) {
            return -1;
        }
    }
    return 0;
}

static int make_nodes(supervisor_t *sup, char *reason)
{
    int isolated = sup->cluster->isolated;
    if (isolated && make_bridges(sup, reason) != 0) {
        return -1;
    }
    for (int i = 0; i < sup->n_nodes; i++) {
        if (start_node(sup, i, reason) != 0) {
            return -1;
        }
    }
    if (run_stage(sup, reason) != 0) {
        return -1;
    }
    if (isolated && make_ports(sup, reason) != 0) {
        return -1;
    }
    return run_stage(sup, reason);
}

/** Return 1 if an exit decides the job's exit code. The first failure does. So does the first rank that a
 *  signal kills, since earlier failures are probably its consequences. */
static int is_the_cause(const supervisor_t *sup, int was_killed)
{
    return sup->exit_code == 0 || was_killed > sup->was_killed;
}

static void note_failure(supervisor_t *sup, int exit_code, int was_killed)
{
    if (sup->exit_code == 0) {
        sup->deadline_sec = tw_time_sec() + sup->cluster->grace_sec;
    }
    if (is_the_cause(sup, was_killed)) {
        sup->exit_code = exit_code;
        sup->was_killed = was_killed;
    }
}

static void note_exit(supervisor_t *sup, int node, const tw_cluster_message_t *message)
{
    int status = message->wait_status, was_killed = WIFSIGNALED(status);
    tw_log_level_t level = is_the_cause(sup, was_killed) ? TW_LOG_ERROR : TW_LOG_INFO;
    sup->n_ended[node]++;
    if (was_killed) {
        TW_LOG_AT(level, "rank %d (node %d): killed by signal %d (%s)", message->rank, node, WTERMSIG(status),
                  strsignal(WTERMSIG(status)));
        note_failure(sup, 128 + WTERMSIG(status), 1);
    } else if (WEXITSTATUS(status) != 0) {
        TW_LOG_AT(level, "rank %d (node %d): exited with code %d", message->rank, node, WEXITSTATUS(status));
        note_failure(sup, WEXITSTATUS(status), 0);
    }
}

static void hear_node(supervisor_t *sup, int node)
{
    tw_cluster_message_t message;
    if (tw_cluster_receive(sup->fds[node], &message)) {
        note_exit(sup, node, &message);
        return;
    }
    close(sup->fds[node]);
    sup->fds[node] = -1;
    if (sup->n_ended[node] < sup->cluster->params->ranks_per_node && sup->exit_code == 0) {
        tw_error("node %d: died", node);
        note_failure(sup, EXIT_NODE_LOST, 0);
    }
}

static int count_open(const supervisor_t *sup)
{
    int n = 0;
    for (int i = 0; i < sup->n_nodes; i++) {
        n += sup->fds[i] >= 0;
    }
    return n;
}

/** Read a message of the caller (a signal that asks to end), and pass it on to the nodes. */
static void hear_caller(supervisor_t *sup)
{
    tw_cluster_message_t message;
    if (!tw_cluster_receive(sup->up, &message)) {
        sup->up = -1; /* the caller is gone, and this process ends, too */
        return;
    }
    for (int i = 0; i < sup->n_nodes; i++) {
        tw_cluster_send(sup->fds[i], &message);
    }
}

/** Watch the nodes until all have ended, or until the grace time after a rank's failure has passed. */
static void watch_nodes(supervisor_t *sup)
{
    while (count_open(sup) > 0) {
        int timeout_ms = -1;
        if (sup->exit_code != 0) {
            double left_sec = sup->deadline_sec - tw_time_sec();
            if (left_sec <= 0) {
                return;
            }
            timeout_ms = (int)(left_sec * 1e3) + 1;
        }
        for (int i = 0; i < sup->n_nodes; i++) {
            sup->polls[i] = (struct pollfd){.fd = sup->fds[i], .events = POLLIN};
        }
        sup->polls[sup->n_nodes] = (struct pollfd){.fd = sup->up, .events = POLLIN};
        poll(sup->polls, (nfds_t)sup->n_nodes + 1, timeout_ms);
        for (int i = 0; i < sup->n_nodes; i++) {
            if (sup->polls[i].revents) {
                hear_node(sup, i);
            }
        }
        if (sup->polls[sup->n_nodes].revents) {
            hear_caller(sup);
        }
    }
}

/** Stop all nodes. They kill the ranks that still run, and forward their last output. */
static void stop_nodes(supervisor_t *sup)
{
    for (int i = 0; i < sup->n_nodes; i++) {
        if (sup->fds[i] >= 0) {
            tw_cluster_tell(sup->fds[i], TW_CLUSTER_STOP, NULL);
            close(sup->fds[i]);
        }
    }
    for (int i = 0; i < sup->n_nodes; i++) {
        while (sup->pids[i] > 0 && waitpid(sup->pids[i], NULL, 0) < 0 && errno == EINTR) {
        }
    }
}

tw_cluster_message_t tw_cluster_supervise(const tw_cluster_t *cluster, int up)
{
    tw_cluster_message_t message = {.event = TW_CLUSTER_FAILED};
    supervisor_t sup = {.cluster = cluster, .n_nodes = cluster->params->n_nodes, .up = up};
    if (supervisor_init(&sup) != 0) {
        snprintf(message.text, sizeof(message.text), "out of memory");
        return message;
    }
    if (make_nodes(&sup, message.text) == 0) {
        tell_nodes(&sup, TW_CLUSTER_GO);
        watch_nodes(&sup);
        message.event = TW_CLUSTER_FINISHED;
        message.rank = sup.exit_code;
    }
    stop_nodes(&sup);
    return message;
}
