/* The caller's side: decides which kind of cluster can be made, starts the supervisor and waits for it. */
#include "cluster/cluster.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster/state.h"

#define MASTER_PORT 29500
#define OUTER_NAMESPACES (CLONE_NEWNET | CLONE_NEWPID)

/* ---- what a rank can ask ------------------------------------------------------------------------------- */

typedef struct cluster_options {
    int kind;
    char *note;
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
    {.name = "TW_CLUSTER_NOTE",
     .dflt = "",
     .unit = "",
     .doc = "Set by the cluster in a box for its ranks: what it could not set up as it should, if anything.",
     .type = TW_CONFIG_STRING,
     .offset = offsetof(cluster_options_t, note)},
};

const tw_config_table_t tw_cluster_config_table =
    TW_CONFIG_TABLE("cluster", cluster_fields, cluster_options_t);

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

const char *tw_cluster_note(char buf[TW_CLUSTER_TEXT_BYTES])
{
    cluster_options_t options;
    buf[0] = '\0';
    if (tw_config_init(&tw_cluster_config_table, &options) == TW_OK) {
        snprintf(buf, TW_CLUSTER_TEXT_BYTES, "%s", options.note);
        tw_config_cleanup(&tw_cluster_config_table, &options);
    }
    return buf;
}

/* ---- requests to end ----------------------------------------------------------------------------------- */

static const int requests[] = {SIGTERM, SIGINT, SIGHUP};

/** Block the signals that ask to end, here and in child processes, except those that the caller ignores. */
static tw_status_t block_requests(tw_cluster_t *cluster)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        struct sigaction action;
        if (sigaction(requests[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(&set, requests[i]);
        }
    }
    cluster->requests = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    TW_FAIL_IF(cluster->requests < 0, TW_ERR_IO, "signalfd: %s", strerror(errno));
    sigprocmask(SIG_BLOCK, &set, &cluster->signals);
    return TW_OK;
}

/** Pass a signal that asks to end on to the ranks; the caller then waits for them. A further signal, more
 *  than TW_CLUSTER_SAME_REQUEST_SEC after the first, ends the caller at once, with all it has started. */
static void pass_on(const tw_cluster_t *cluster, int fd, int number, double *asked_sec)
{
    double now = tw_time_sec();
    if (*asked_sec > 0 && now - *asked_sec > TW_CLUSTER_SAME_REQUEST_SEC) {
        sigprocmask(SIG_SETMASK, &cluster->signals, NULL);
        (void)signal(number, SIG_DFL);
        (void)raise(number);
        _exit(128 + number); /* a container's first process cannot be killed by its own signal */
    }
    if (*asked_sec == 0) {
        tw_warn("asked to end (%s): so are the ranks, which are waited for; asked again, all end at once",
                strsignal(number));
        *asked_sec = now;
    }
    tw_cluster_message_t message = {.event = TW_CLUSTER_SIGNAL, .rank = number};
    tw_cluster_send(fd, &message);
}

/** Wait for the supervisor's last message, passing on signals meanwhile. Return 0 if the supervisor died. */
static int await_result(const tw_cluster_t *cluster, int fd, tw_cluster_message_t *result)
{
    double asked_sec = 0;
    for (;;) {
        struct signalfd_siginfo info;
        struct pollfd polls[] = {{.fd = fd, .events = POLLIN}, {.fd = cluster->requests, .events = POLLIN}};
        (void)poll(polls, 2, -1);
        if (polls[0].revents) {
            return tw_cluster_receive(fd, result);
        }
        if (polls[1].revents && read(cluster->requests, &info, sizeof(info)) == sizeof(info)) {
            pass_on(cluster, fd, (int)info.ssi_signo, &asked_sec);
        }
    }
}

/* ---- caller -------------------------------------------------------------------------------------------- */

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
    if (!(namespaces & CLONE_NEWUSER) || tw_cluster_map_user(user.uid, user.gid, message.text) == 0) {
        message = tw_cluster_supervise(cluster, up);
    }
    tw_cluster_send(up, &message);
    _exit(0);
}

/** Run a supervisor in new namespaces and wait for its last message. */
static tw_status_t run_supervisor(const tw_cluster_t *cluster, int namespaces, tw_cluster_message_t *result)
{
    int ends[2];
    TW_FAIL_IF(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0, TW_ERR_IO, "socketpair: %s",
               strerror(errno));
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
        snprintf(result->text, sizeof(result->text), "new namespaces: %s", strerror(error));
        return error == EPERM ? TW_ERR_UNSUPPORTED : TW_OK;
    }
    tw_cluster_tell(ends[0], TW_CLUSTER_GO, NULL);
    tw_status_t status = TW_OK;
    if (!await_result(cluster, ends[0], result)) {
        status = tw_fail(TW_ERR_INTERNAL, "the cluster's supervisor died");
    }
    close(ends[0]);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return status;
}

/** Run the cluster in namespaces. Without root rights, make a user namespace first and be root there. */
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

/** Return a port that is free now, or 0 if there is none. */
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
    TW_FAIL_IF(cluster->master_port == 0, TW_ERR_IO, "no free port on the loopback interface: %s",
               strerror(errno));
    tw_status_t status = run_supervisor(cluster, 0, result);
    return status == TW_ERR_UNSUPPORTED ? TW_OK : status;
}

/** Return 1 if a link may have this rate; 0 means not shaped, and is allowed. */
static int rate_fits(double link_bps)
{
    return link_bps == 0 || link_bps >= TW_CLUSTER_LINK_MIN_BPS;
}

tw_status_t tw_cluster_parse_link(const char *text, double *link_bps)
{
    double rate;
    if (tw_parse_rate(text, &rate) != TW_OK || !rate_fits(rate)) {
        return TW_ERR_INVALID;
    }
    *link_bps = rate;
    return TW_OK;
}

static tw_status_t cluster_check_params(const tw_cluster_params_t *params)
{
    TW_FAIL_IF(params->n_nodes < 1 || params->n_nodes > TW_CLUSTER_MAX_NODES, TW_ERR_INVALID,
               "cluster: %d nodes: must be 1 to %d", params->n_nodes, TW_CLUSTER_MAX_NODES);
    TW_FAIL_IF(params->ranks_per_node < 1 || params->ranks_per_node > TW_CLUSTER_MAX_RANKS / params->n_nodes,
               TW_ERR_INVALID, "cluster: %d ranks per node on %d nodes: must be 1 to %d",
               params->ranks_per_node, params->n_nodes, TW_CLUSTER_MAX_RANKS / params->n_nodes);
    TW_FAIL_IF(params->n_nics < 0 || params->n_nics > TW_CLUSTER_MAX_NICS, TW_ERR_INVALID,
               "cluster: %d nics per node: must be 1 to %d", params->n_nics, TW_CLUSTER_MAX_NICS);
    TW_FAIL_IF(!rate_fits(params->link_bps), TW_ERR_INVALID,
               "cluster: a link of %g bit/s: must be at least %g", params->link_bps, TW_CLUSTER_LINK_MIN_BPS);
    TW_FAIL_IF(!(params->grace_sec >= 0) || !params->argv || !params->argv[0], TW_ERR_INVALID, "cluster: %s",
               params->grace_sec >= 0 ? "no command" : "the time of grace is negative");
    return TW_OK;
}

/** Return how long the other ranks may run after the first failure. They notice it within TW_PEER_TIMEOUT. */
static double choose_grace(const tw_cluster_params_t *params)
{
    const char *text = getenv("TW_PEER_TIMEOUT");
    double timeout_sec = TW_CLUSTER_PEER_TIMEOUT_SEC;
    if (params->grace_sec > 0) {
        return params->grace_sec;
    }
    if (text && tw_parse_time(text, &timeout_sec) != TW_OK) {
        timeout_sec = TW_CLUSTER_PEER_TIMEOUT_SEC; /* an invalid value, which the ranks will report */
    }
    return timeout_sec + TW_CLUSTER_GRACE_SEC;
}

static tw_status_t make_token(char token[TW_CLUSTER_TOKEN_BYTES])
{
    unsigned char random[(TW_CLUSTER_TOKEN_BYTES - 1) / 2];
    TW_FAIL_IF(getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random), TW_ERR_IO, "getrandom: %s",
               strerror(errno));
    for (size_t i = 0; i < sizeof(random); i++) {
        snprintf(token + 2 * i, 3, "%02x", random[i]);
    }
    return TW_OK;
}

/** Run the cluster in namespaces. If that is impossible and the caller allows it, run it on loopback. */
static tw_status_t run_somewhere(tw_cluster_t *cluster, tw_cluster_message_t *result)
{
    int is_final = cluster->params->no_loopback;
    TW_TRY(run_isolated(cluster, result));
    if (result->event != TW_CLUSTER_FAILED) {
        return TW_OK;
    }
    TW_LOG_AT(is_final ? TW_LOG_ERROR : TW_LOG_WARN, "no cluster can be made here (%s)%s", result->text,
              is_final ? "" : ": all nodes run on the loopback interface, and no link is shaped");
    return is_final ? TW_ERR_UNSUPPORTED : run_loopback(cluster, result);
}

tw_status_t tw_cluster_run(const tw_cluster_params_t *params, int *exit_code)
{
    tw_cluster_t cluster = {.params = params,
                            .n_nics = params->n_nics > 0 ? params->n_nics : 1,
                            .grace_sec = choose_grace(params)};
    tw_cluster_message_t result;
    TW_TRY(cluster_check_params(params));
    TW_TRY(make_token(cluster.token));
    TW_TRY(block_requests(&cluster));
    tw_status_t status = run_somewhere(&cluster, &result);
    sigprocmask(SIG_SETMASK, &cluster.signals, NULL);
    close(cluster.requests);
    if (status == TW_OK && result.event == TW_CLUSTER_FAILED) {
        status = tw_fail(TW_ERR_IO, "cluster: %s", result.text);
    }
    if (status == TW_OK) {
        *exit_code = result.rank;
    }
    return status;
}

tw_status_t tw_cluster_run_self(const tw_cluster_params_t *params, int *exit_code)
{
    char path[PATH_MAX];
    tw_cluster_params_t of_self = *params;
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    TW_FAIL_IF(n < 0, TW_ERR_IO, "/proc/self/exe: %s", strerror(errno));
    path[n] = '\0';
    of_self.path = path;
    return tw_cluster_run(&of_self, exit_code);
}
