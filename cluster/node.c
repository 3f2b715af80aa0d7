/* A node: starts its ranks, passes on their output, and reports how they ended. */
#include "cluster/state.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_BYTES 4096
#define STREAMS_PER_RANK 2
#define PREFIX_BYTES 24

/* A rank's stdout or stderr, forwarded to the caller's. */
typedef struct stream {
    int from, to;
    char prefix[PREFIX_BYTES];
    size_t n_held;
    char held[LINE_BYTES];
} stream_t;

typedef struct node {
    const tw_cluster_t *cluster;
    int index, ranks_per_node, fd, children;
    const char *note;  /* what a node could not set up as it should, or "" */
    pid_t *pids;       /* [ranks_per_node]; -1: the rank has ended */
    stream_t *streams; /* [ranks_per_node * STREAMS_PER_RANK]; `from` is -1 if closed */
    struct pollfd *polls;
} node_t;

/* ---- output -------------------------------------------------------------------------------------------- */

/** Write a line in one call, so that lines of different ranks do not mix. */
static void stream_put_line(stream_t *stream, const char *line, size_t n)
{
    char out[PREFIX_BYTES + LINE_BYTES + 1];
    size_t n_prefix = strlen(stream->prefix);
    memcpy(out, stream->prefix, n_prefix);
    memcpy(out + n_prefix, line, n);
    out[n_prefix + n] = '\n';
    ssize_t written = write(stream->to, out, n_prefix + n + 1);
    (void)written; /* if the reader has closed the pipe, the rank goes on */
}

static void stream_flush(stream_t *stream, int at_end)
{
    size_t start = 0;
    for (;;) {
        char *end = memchr(stream->held + start, '\n', stream->n_held - start);
        if (!end) {
            break;
        }
        size_t stop = (size_t)(end - stream->held);
        stream_put_line(stream, stream->held + start, stop - start);
        start = stop + 1;
    }
    stream->n_held -= start;
    memmove(stream->held, stream->held + start, stream->n_held);
    if (stream->n_held == LINE_BYTES || (at_end && stream->n_held > 0)) {
        stream_put_line(stream, stream->held, stream->n_held);
        stream->n_held = 0;
    }
}

static void stream_close(stream_t *stream)
{
    stream_flush(stream, 1);
    close(stream->from);
    stream->from = -1;
}

/** Forward what can be read from a stream; return 0 if nothing can be read now. */
static int stream_pump(stream_t *stream)
{
    ssize_t n = read(stream->from, stream->held + stream->n_held, LINE_BYTES - stream->n_held);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (n <= 0) {
        stream_close(stream);
        return 0;
    }
    stream->n_held += (size_t)n;
    stream_flush(stream, 0);
    return 1;
}

static stream_t *rank_streams(const node_t *node, int local_rank)
{
    return node->streams + (size_t)local_rank * STREAMS_PER_RANK;
}

/* ---- ranks --------------------------------------------------------------------------------------------- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

static void set_devices(const tw_cluster_t *cluster)
{
    char list[TW_CLUSTER_MAX_NICS * 8] = "lo";
    for (int nic = 0, n = 0; nic < cluster->n_nics && cluster->isolated; nic++) {
        n += snprintf(list + n, sizeof(list) - (size_t)n, "%seth%d", nic > 0 ? "," : "", nic);
    }
    setenv("TW_NET_DEVICES", list, 1);
}

static void set_environment(const node_t *node, int local_rank)
{
    const tw_cluster_t *cluster = node->cluster;
    int ranks_per_node = node->ranks_per_node;
    char address[TW_CLUSTER_ADDRESS_BYTES];
    set_number("RANK", node->index * ranks_per_node + local_rank);
    set_number("WORLD_SIZE", cluster->params->n_nodes * ranks_per_node);
    set_number("LOCAL_RANK", local_rank);
    set_number("LOCAL_WORLD_SIZE", ranks_per_node);
    setenv("MASTER_ADDR", cluster->isolated ? tw_cluster_master_address(cluster, address) : "127.0.0.1", 1);
    set_number("MASTER_PORT", cluster->master_port);
    setenv("TW_JOB_TOKEN", cluster->token, 1);
    set_devices(cluster);
    setenv("TW_CLUSTER", cluster->isolated ? "nodes" : "loopback", 1);
    if (node->note[0]) {
        setenv("TW_CLUSTER_NOTE", node->note, 1);
    }
    if (!cluster->isolated) {
        set_number("TW_NODE_ID", node->index);
    }
}

/** In the new process: run the rank's program. Never returns. */
static void exec_rank(const node_t *node, int local_rank, pid_t parent, const int *outputs)
{
    const tw_cluster_params_t *params = node->cluster->params;
    if (getppid() != parent) {
        _exit(127);
    }
    set_environment(node, local_rank);
    if (outputs) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, STDIN_FILENO);
        close(null);
        dup2(outputs[0], STDOUT_FILENO);
        dup2(outputs[1], STDERR_FILENO);
    }
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &node->cluster->signals, NULL);
    const char *path = params->path ? params->path : params->argv[0];
    execvp(path, (char *const *)params->argv);
    fprintf(stderr, "cannot run %s: %s\n", path, strerror(errno));
    _exit(127);
}

/** Make a pipe for each of stdout and stderr. This process's end does not block. */
static int open_streams(stream_t *streams, int rank, int outputs[STREAMS_PER_RANK])
{
    for (int i = 0; i < STREAMS_PER_RANK; i++) {
        int ends[2];
        TW_FAIL_IF(pipe2(ends, O_CLOEXEC) != 0, -1, "rank %d: pipe: %s", rank, strerror(errno));
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        streams[i].from = ends[0];
        streams[i].to = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
        snprintf(streams[i].prefix, PREFIX_BYTES, "[rank %d] ", rank);
        outputs[i] = ends[1];
    }
    return 0;
}

/** Start a rank; rank 0 keeps the caller's terminal. */
static int start_rank(node_t *node, int local_rank)
{
    int rank = node->index * node->ranks_per_node + local_rank;
    int outputs[STREAMS_PER_RANK] = {-1, -1};
    if (rank > 0 && open_streams(rank_streams(node, local_rank), rank, outputs) != 0) {
        return -1;
    }
    pid_t self = getpid(), pid = tw_cluster_fork(0);
    if (pid == 0) {
        exec_rank(node, local_rank, self, rank > 0 ? outputs : NULL);
    }
    for (int i = 0; i < STREAMS_PER_RANK && rank > 0; i++) {
        close(outputs[i]);
    }
    TW_FAIL_IF(pid < 0, -1, "rank %d: fork: %s", rank, strerror(errno));
    node->pids[local_rank] = pid;
    return 0;
}

static int count_running(const node_t *node)
{
    int running = 0;
    for (int i = 0; i < node->ranks_per_node; i++) {
        running += node->pids[i] > 0;
    }
    return running;
}

/** Forward the rest of a rank's output, then report that the rank has ended. */
static void report_exit(node_t *node, int local_rank, int wait_status)
{
    for (int i = 0; i < STREAMS_PER_RANK; i++) {
        stream_t *stream = rank_streams(node, local_rank) + i;
        while (stream->from >= 0 && stream_pump(stream)) {
        }
    }
    node->pids[local_rank] = -1;
    tw_cluster_message_t message = {.event = TW_CLUSTER_EXITED,
                                    .rank = node->index * node->ranks_per_node + local_rank,
                                    .wait_status = wait_status};
    tw_cluster_send(node->fd, &message);
}

static void reap(node_t *node)
{
    int wait_status;
    pid_t pid;
    struct signalfd_siginfo info;
    while (read(node->children, &info, sizeof(info)) > 0) {
    }
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (int i = 0; i < node->ranks_per_node; i++) {
            if (node->pids[i] == pid) {
                report_exit(node, i, wait_status);
            }
        }
    }
}

/* ---- the node ------------------------------------------------------------------------------------------ */

static int node_init(node_t *node)
{
    size_t n = (size_t)node->ranks_per_node;
    node->pids = calloc(n, sizeof(*node->pids));
    node->streams = calloc(n * STREAMS_PER_RANK, sizeof(*node->streams));
    node->polls = calloc(n * STREAMS_PER_RANK + 2, sizeof(*node->polls));
    TW_FAIL_IF(!node->pids || !node->streams || !node->polls, -1, "node %d: out of memory", node->index);
    for (size_t i = 0; i < n * STREAMS_PER_RANK; i++) {
        node->streams[i].from = -1;
    }
    signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    node->children = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    TW_FAIL_IF(node->children < 0, -1, "node %d: signalfd: %s", node->index, strerror(errno));
    return 0;
}

static void signal_ranks(const node_t *node, int number)
{
    for (int i = 0; node->pids && i < node->ranks_per_node; i++) {
        if (node->pids[i] > 0) {
            kill(node->pids[i], number);
        }
    }
}

/** Kill the ranks. Their output and exits are still collected, but exits are no longer reported. */
static void node_stop(node_t *node)
{
    signal_ranks(node, SIGKILL);
    node->fd = -1;
}

/** Read the supervisor's message. Return 0 if this node must stop, or the supervisor has ended. */
static int hear_supervisor(const node_t *node)
{
    tw_cluster_message_t message;
    if (!tw_cluster_receive(node->fd, &message) || message.event != TW_CLUSTER_SIGNAL) {
        return 0;
    }
    signal_ranks(node, message.rank);
    return 1;
}

/** Sleep until a rank prints or ends, or the supervisor sends a message. Return 0 if the node must stop. */
static int node_turn(node_t *node)
{
    int n_streams = node->ranks_per_node * STREAMS_PER_RANK;
    for (int i = 0; i < n_streams; i++) {
        node->polls[i] = (struct pollfd){.fd = node->streams[i].from, .events = POLLIN};
    }
    node->polls[n_streams] = (struct pollfd){.fd = node->fd, .events = POLLIN};
    node->polls[n_streams + 1] = (struct pollfd){.fd = node->children, .events = POLLIN};
    if (poll(node->polls, (nfds_t)n_streams + 2, -1) < 0) {
        return errno == EINTR;
    }
    for (int i = 0; i < n_streams; i++) {
        if (node->polls[i].revents) {
            stream_pump(&node->streams[i]);
        }
    }
    if (node->polls[n_streams + 1].revents) {
        reap(node);
    }
    return node->polls[n_streams].revents == 0 || hear_supervisor(node);
}

static void node_cleanup(node_t *node)
{
    free(node->pids);
    free(node->streams);
    free(node->polls);
}

static int run_ranks(const tw_cluster_t *cluster, int index, int fd, const char *note)
{
    node_t node = {.cluster = cluster,
                   .index = index,
                   .ranks_per_node = cluster->params->ranks_per_node,
                   .fd = fd,
                   .note = note};
    int status = node_init(&node);
    for (int i = 0; i < node.ranks_per_node && status == 0; i++) {
        status = start_rank(&node, i);
    }
    if (status != 0) {
        node_stop(&node);
    }
    while (node.pids && count_running(&node) > 0) {
        if (!node_turn(&node)) {
            node_stop(&node);
        }
    }
    node_cleanup(&node);
    return status == 0 ? 0 : 1;
}

/** Wait for TW_CLUSTER_GO and copy its text; return 0 if any other message comes. */
static int await_go(int fd, char text[TW_CLUSTER_TEXT_BYTES])
{
    tw_cluster_message_t message;
    int goes = tw_cluster_receive(fd, &message) && message.event == TW_CLUSTER_GO;
    if (goes) {
        memcpy(text, message.text, TW_CLUSTER_TEXT_BYTES);
    }
    return goes;
}

static int make_devices(const tw_cluster_t *cluster, int node, char *reason, char *note)
{
    for (int nic = 0; nic < cluster->n_nics; nic++) {
        if (tw_cluster_make_device(cluster, node, nic, reason, note) != 0) {
            return -1;
        }
    }
    return 0;
}

int tw_cluster_node_main(const tw_cluster_t *cluster, int node, int fd)
{
    char reason[TW_CLUSTER_TEXT_BYTES], note[TW_CLUSTER_TEXT_BYTES];
    if (!await_go(fd, note)) {
        return 1;
    }
    if (cluster->isolated && tw_cluster_enter_node(cluster, node, reason) != 0) {
        tw_cluster_tell(fd, TW_CLUSTER_FAILED, reason);
        return 1;
    }
    tw_cluster_tell(fd, TW_CLUSTER_READY, NULL);
    if (!await_go(fd, note)) {
        return 1;
    }
    if (cluster->isolated && make_devices(cluster, node, reason, note) != 0) {
        tw_cluster_tell(fd, TW_CLUSTER_FAILED, reason);
        return 1;
    }
    tw_cluster_tell(fd, TW_CLUSTER_READY, note);
    return await_go(fd, note) ? run_ranks(cluster, node, fd, note) : 1;
}
