#include "cluster/cluster.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster/state.h"

#define MASTER_PORT 29500
#define OUTER_NAMESPACES (CLONE_NEWNET | CLONE_NEWPID)
#define NODE_NAMESPACES (CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS)
#define EXIT_NODE_LOST 125

typedef struct supervisor {
    const tw_cluster_t *cluster;
    int n_nodes, up; /* up: socket to the caller */
    int *fds;        /* [n_nodes] sockets to the nodes, -1 when closed */
    pid_t *pids;     /* [n_nodes] */
    int *n_ended;    /* [n_nodes] ranks that have ended */
    struct pollfd *polls;
    int exit_code;
    double deadline_sec; /* 0: nothing has failed yet */
} supervisor_t;

/* ---- messages ----------------------------------------------------------------------------------------------- */

int tw_cluster_send(int fd, const tw_cluster_message_t *message)
{
    return send(fd, message, sizeof(*message), MSG_NOSIGNAL) == (ssize_t)sizeof(*message) ? 0 : -1;
}

int tw_cluster_receive(int fd, tw_cluster_message_t *message)
{
    ssize_t n;
    do {
        n = recv(fd, message, sizeof(*message), 0);
    } while (n < 0 && errno == EINTR);
    message->reason[TW_CLUSTER_REASON_BYTES - 1] = '\0';
    return n == (ssize_t)sizeof(*message);
}

void tw_cluster_tell(int fd, tw_cluster_event_t event)
{
    tw_cluster_message_t message = {.event = event};
    tw_cluster_send(fd, &message);
}

/* ---- where we are ------------------------------------------------------------------------------------------- */

typedef struct cluster_options {
    int kind;
} cluster_options_t;

static const char *const kind_names[] = {"none", "nodes", "loopback", NULL};

static const tw_config_field_t cluster_fields[] = {
    {.name = "TW_CLUSTER",
     .dflt = "none",
     .unit = "",
     .doc = "Set by the cluster in a box for its ranks: on nodes of their own, or together on loopback.",
     .type = TW_CONFIG_ENUM,
     .offset = offsetof(cluster_options_t, kind),
     .choices = kind_names},
};

const tw_config_table_t tw_cluster_config_table = {
    .module = "cluster",
    .fields = cluster_fields,
    .n_fields = sizeof(cluster_fields) / sizeof(cluster_fields[0]),
    .options_bytes = sizeof(cluster_options_t),
};

tw_cluster_kind_t tw_cluster_kind(void)
{
    cluster_options_t options;
    if (tw_config_init(&tw_cluster_config_table, &options) != TW_OK) {
        return TW_CLUSTER_NONE;
    }
    tw_cluster_kind_t kind = (tw_cluster_kind_t)options.kind;
    tw_config_cleanup(&tw_cluster_config_table, &options);
    return kind;
}

/* ---- supervisor --------------------------------------------------------------------------------------------- */

static int supervisor_init(supervisor_t *sup)
{
    size_t n = (size_t)sup->n_nodes;
    sup->fds = malloc(n * sizeof(*sup->fds));
    sup->pids = calloc(n, sizeof(*sup->pids));
    sup->n_ended = calloc(n, sizeof(*sup->n_ended));
    sup->polls = calloc(n, sizeof(*sup->polls));
    if (!sup->fds || !sup->pids || !sup->n_ended || !sup->polls) {
        return -1;
    }
    memset(sup->fds, 0xff, n * sizeof(*sup->fds));
    return 0;
}

/* In a new node: what belongs to the supervisor must not stay open here, or nobody would see it end. */
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
        snprintf(reason, TW_CLUSTER_REASON_BYTES, "socketpair: %s", strerror(errno));
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
        snprintf(reason, TW_CLUSTER_REASON_BYTES, "new namespaces for node %d: %s", node, strerror(error));
        return -1;
    }
    sup->pids[node] = pid;
    return 0;
}

/* Let all nodes do their next stage of setting up, and wait for them. */
static int run_stage(supervisor_t *sup, char *reason)
{
    for (int i = 0; i < sup->n_nodes; i++) {
        tw_cluster_tell(sup->fds[i], TW_CLUSTER_GO);
    }
    for (int i = 0; i < sup->n_nodes; i++) {
        tw_cluster_message_t message;
        if (!tw_cluster_receive(sup->fds[i], &message)) {
            snprintf(reason, TW_CLUSTER_REASON_BYTES, "node %d died", i);
            return -1;
        }
        if (message.event != TW_CLUSTER_READY) {
            memcpy(reason, message.reason, TW_CLUSTER_REASON_BYTES);
            return -1;
        }
    }
    return 0;
}

static int make_nodes(supervisor_t *sup, char *reason)
{
    int isolated = sup->cluster->isolated;
    double link_bps = sup->cluster->params->link_bps;
    if (isolated && tw_cluster_make_bridge(reason) != 0) {
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
    for (int i = 0; i < sup->n_nodes && isolated; i++) {
        if (tw_cluster_make_port(i, sup->pids[i], link_bps, reason) != 0) {
            return -1;
        }
    }
    return run_stage(sup, reason);
}

static void note_failure(supervisor_t *sup, int exit_code)
{
    if (sup->exit_code == 0) {
        sup->exit_code = exit_code;
        sup->deadline_sec = tw_time_sec() + TW_CLUSTER_GRACE_SEC;
    }
}

static void note_exit(supervisor_t *sup, int node, const tw_cluster_message_t *message)
{
    int status = message->wait_status, first = sup->exit_code == 0;
    tw_log_level_t level = first ? TW_LOG_ERROR : TW_LOG_INFO;
    sup->n_ended[node]++;
    if (WIFSIGNALED(status)) {
        TW_LOG_AT(level, "rank %d (node %d): killed by signal %d (%s)", message->rank, node, WTERMSIG(status),
                  strsignal(WTERMSIG(status)));
        note_failure(sup, 128 + WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0) {
        TW_LOG_AT(level, "rank %d (node %d): exited with code %d", message->rank, node, WEXITSTATUS(status));
        note_failure(sup, WEXITSTATUS(status));
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
        note_failure(sup, EXIT_NODE_LOST);
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

/* Until all nodes are gone, or a rank has failed and the others' time is up. */
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
        poll(sup->polls, (nfds_t)sup->n_nodes, timeout_ms);
        for (int i = 0; i < sup->n_nodes; i++) {
            if (sup->polls[i].revents) {
                hear_node(sup, i);
            }
        }
    }
}

/* Nodes kill what still runs and pass on its last words. */
static void stop_nodes(supervisor_t *sup)
{
    for (int i = 0; i < sup->n_nodes; i++) {
        if (sup->fds[i] >= 0) {
            tw_cluster_tell(sup->fds[i], TW_CLUSTER_STOP);
            close(sup->fds[i]);
        }
    }
    for (int i = 0; i < sup->n_nodes; i++) {
        while (sup->pids[i] > 0 && waitpid(sup->pids[i], NULL, 0) < 0 && errno == EINTR) {
        }
    }
}

/* The supervisor's life. Returns its last message to the caller. */
static tw_cluster_message_t supervise(const tw_cluster_t *cluster, int up)
{
    tw_cluster_message_t message = {.event = TW_CLUSTER_FAILED};
    supervisor_t sup = {.cluster = cluster, .n_nodes = cluster->params->n_nodes, .up = up};
    if (supervisor_init(&sup) != 0) {
        snprintf(message.reason, sizeof(message.reason), "out of memory");
        return message;
    }
    if (make_nodes(&sup, message.reason) == 0) {
        for (int i = 0; i < sup.n_nodes; i++) {
            tw_cluster_tell(sup.fds[i], TW_CLUSTER_GO);
        }
        watch_nodes(&sup);
        message.event = TW_CLUSTER_FINISHED;
        message.rank = sup.exit_code;
    }
    stop_nodes(&sup);
    return message;
}

typedef struct identity {
    uid_t uid;
    gid_t gid;
} identity_t;

static void supervisor_main(const tw_cluster_t *cluster, int namespaces, identity_t user, int up)
{
    tw_cluster_message_t message;
    if (!tw_cluster_receive(up, &message)) {
        _exit(1);
    }
    message = (tw_cluster_message_t){.event = TW_CLUSTER_FAILED};
    if (!(namespaces & CLONE_NEWUSER) || tw_cluster_map_user(user.uid, user.gid, message.reason) == 0) {
        message = supervise(cluster, up);
    }
    tw_cluster_send(up, &message);
    _exit(0);
}

/* ---- caller ------------------------------------------------------------------------------------------------- */

/* Run a supervisor in new namespaces and wait for its last message. */
static tw_status_t run_supervisor(const tw_cluster_t *cluster, int namespaces, tw_cluster_message_t *result)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        tw_error("socketpair: %s", strerror(errno));
        return TW_ERR_IO;
    }
    identity_t user = {.uid = geteuid(), .gid = getegid()};
    fflush(NULL);
    pid_t pid = tw_cluster_fork(namespaces);
    if (pid == 0) {
        close(ends[0]);
        supervisor_main(cluster, namespaces, user, ends[1]);
    }
    int error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        *result = (tw_cluster_message_t){.event = TW_CLUSTER_FAILED};
        snprintf(result->reason, sizeof(result->reason), "new namespaces: %s", strerror(error));
        return error == EPERM ? TW_ERR_UNSUPPORTED : TW_OK;
    }
    tw_cluster_tell(ends[0], TW_CLUSTER_GO);
    tw_status_t status = TW_OK;
    if (!tw_cluster_receive(ends[0], result)) {
        tw_error("the cluster's supervisor died");
        status = TW_ERR_INTERNAL;
    }
    close(ends[0]);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return status;
}

/* As root; else as root of a user namespace. */
static tw_status_t run_isolated(tw_cluster_t *cluster, tw_cluster_message_t *result)
{
    cluster->isolated = 1;
    cluster->master_port = MASTER_PORT;
    tw_status_t status = run_supervisor(cluster, OUTER_NAMESPACES, result);
    if (status == TW_ERR_UNSUPPORTED) {
        status = run_supervisor(cluster, OUTER_NAMESPACES | CLONE_NEWUSER, result);
    }
    return status == TW_ERR_UNSUPPORTED ? TW_OK : status;
}

/* A port that is free now; 0 if there is none. */
static int find_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &length) == 0) {
        port = ntohs(address.sin_port);
    }
    if (fd >= 0) {
        close(fd);
    }
    return port;
}

static tw_status_t run_loopback(tw_cluster_t *cluster, tw_cluster_message_t *result)
{
    cluster->isolated = 0;
    cluster->master_port = find_free_port();
    if (cluster->master_port == 0) {
        tw_error("no free port on the loopback interface: %s", strerror(errno));
        return TW_ERR_IO;
    }
    tw_status_t status = run_supervisor(cluster, 0, result);
    return status == TW_ERR_UNSUPPORTED ? TW_OK : status;
}

static tw_status_t check_params(const tw_cluster_params_t *params)
{
    if (params->n_nodes < 1 || params->n_nodes > TW_CLUSTER_MAX_NODES) {
        tw_error("cluster: %d nodes: must be 1 to %d", params->n_nodes, TW_CLUSTER_MAX_NODES);
        return TW_ERR_INVALID;
    }
    if (params->ranks_per_node < 1 || params->ranks_per_node > TW_CLUSTER_MAX_RANKS / params->n_nodes) {
        tw_error("cluster: %d ranks per node on %d nodes: must be 1 to %d", params->ranks_per_node,
                 params->n_nodes, TW_CLUSTER_MAX_RANKS / params->n_nodes);
        return TW_ERR_INVALID;
    }
    if (!(params->link_bps >= 0) || !params->argv || !params->argv[0]) {
        tw_error("cluster: %s", params->link_bps >= 0 ? "no command" : "the link's rate is negative");
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

static tw_status_t make_token(char token[TW_CLUSTER_TOKEN_BYTES])
{
    unsigned char random[(TW_CLUSTER_TOKEN_BYTES - 1) / 2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        tw_error("getrandom: %s", strerror(errno));
        return TW_ERR_IO;
    }
    for (size_t i = 0; i < sizeof(random); i++) {
        snprintf(token + 2 * i, 3, "%02x", random[i]);
    }
    return TW_OK;
}

tw_status_t tw_cluster_run(const tw_cluster_params_t *params, int *exit_code)
{
    tw_cluster_t cluster = {.params = params};
    tw_cluster_message_t result;
    tw_status_t status = check_params(params);
    if (status == TW_OK) {
        status = make_token(cluster.token);
    }
    if (status != TW_OK) {
        return status;
    }
    status = run_isolated(&cluster, &result);
    if (status == TW_OK && result.event == TW_CLUSTER_FAILED) {
        TW_LOG_AT(params->no_loopback ? TW_LOG_ERROR : TW_LOG_WARN, "no cluster can be made here (%s)%s",
                  result.reason,
                  params->no_loopback ? ""
                                      : ": all nodes run on the loopback interface, and no link is shaped");
        if (params->no_loopback) {
            return TW_ERR_UNSUPPORTED;
        }
        status = run_loopback(&cluster, &result);
    }
    if (status == TW_OK && result.event == TW_CLUSTER_FAILED) {
        tw_error("cluster: %s", result.reason);
        status = TW_ERR_IO;
    }
    if (status == TW_OK) {
        *exit_code = result.rank;
    }
    return status;
}
