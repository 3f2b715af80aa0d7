/* The program: a cluster of two nodes, each an end; the table of figures. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/net/net.h"
#include "flags/flags.h"

#define PAIRS_MAX 101
#define SIZES_MAX 32
#define WHY_BYTES 256
#define NCCL_SOCKET "nccl-socket"
#define TCP "tcp"
#define SEALED "sealed"
#define THINWIRE "thinwire"

extern const tw_nccl_net_v12_t ncclNetPlugin_v12;

typedef struct options {
    size_t sizes[SIZES_MAX];
    int connections[SIZES_MAX];
    int n_sizes, n_connections, n_nics;
    int32_t ipv6, bare;
    double link_bps, seconds;
    int n_pairs;
    const char *peer; /**< NULL: none */
    const char *json, *nccl;
} options_t;

static const char doc[] = "Latency and bandwidth of the NCCL net plugin between two nodes of a cluster in a "
                          "box, called as NCCL calls it, beside "
                          "one TCP stream (iperf3) of the same link, and NCCL's own sockets.";

static void add_size(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    options_t *options = ctx;
    if (options->n_sizes == SIZES_MAX) {
        argp_error(state, "--%s: more than %d", flag->field.name, SIZES_MAX);
    }
    options->sizes[options->n_sizes++] = tw_flag_bytes(state, flag, item, 1, TW_NCCL_MESSAGE_BYTES);
}

static void take_sizes(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    ((options_t *)ctx)->n_sizes = 0;
    tw_flag_each(state, flag, ctx, list, add_size);
}

static void add_connections(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    options_t *options = ctx;
    if (options->n_connections == SIZES_MAX) {
        argp_error(state, "--%s: more than %d", flag->field.name, SIZES_MAX);
    }
    options->connections[options->n_connections++] =
        (int)tw_flag_int(state, flag, item, 1, NET_CONNECTIONS_MAX);
}

static void take_connections(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    ((options_t *)ctx)->n_connections = 0;
    tw_flag_each(state, flag, ctx, list, add_connections);
}

static void take_peer(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    static const char *const names[] = {TCP, NCCL_SOCKET, SEALED, THINWIRE};
    ((options_t *)ctx)->peer = names[tw_flag_choice(state, flag, text, names, 4)];
}

#define AT(member) offsetof(options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"sizes", "8,4K,64K,512K,4M,64M", "LIST", "Message sizes", TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 's',
     .group = 1,
     .take = take_sizes},
    {.field = {"connections", "1,4", "LIST", "Connections in use at a time", TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 'c',
     .group = 1,
     .take = take_connections},
    {.field = {"nics", "1", "N", "Interfaces of each node", TW_CONFIG_INT32, AT(n_nics), 1,
               TW_CLUSTER_MAX_NICS, NULL},
     .group = 1},
    {.field = {"ipv6", NULL, NULL, "Nodes have IPv6 addresses alone", TW_CONFIG_BOOL, AT(ipv6), 0, 0, NULL},
     .group = 1},
    {.field = {"link", "1gbit", "RATE", "Rate of each interface's link: 1gbit, none", TW_CONFIG_RATE,
               AT(link_bps), 0, 0, NULL},
     .letter = 'l',
     .group = 1,
     .take = tw_flag_take_link},
    {.field = {"seconds", "0.5", "S", "For each line's bandwidth", TW_CONFIG_DOUBLE, AT(seconds), 0.01, 600,
               NULL},
     .group = 1},
    {.field = {"iters", "3", "N",
               "Measurements of each line, of which the median counts; with a peer, as many pairs",
               TW_CONFIG_INT32, AT(n_pairs), 1, PAIRS_MAX, NULL},
     .group = 1},
    {.field =
         {"peer", NULL, "TRANSPORT",
          "In turn with ours, measure another: tcp (plain sockets), nccl-socket (NCCL's own), sealed (ours "
          "with TW_NET_ENCRYPT=y), thinwire (ours once more: what differs then is noise)",
          TW_CONFIG_STRING, 0, 0, 0, NULL},
     .group = 1,
     .take = take_peer},
    {.field =
         {"bare", NULL, NULL,
          "In turn with ours, one way over one connection, measure bare send and recv: what the kernel gives",
          TW_CONFIG_BOOL, AT(bare), 0, 0, NULL},
     .group = 1},
    {.field = {"nccl", NULL, "FILE", "NCCL's library (default: libnccl.so.2, where the loader finds it)",
               TW_CONFIG_STRING, AT(nccl), 0, 0, NULL},
     .group = 1},
    {.field = {"json", NULL, "FILE", "Append a line of JSON for each line", TW_CONFIG_STRING, AT(json), 0, 0,
               NULL},
     .group = 1},
};

/* ---- lines --------------------------------------------------------------------------------------------- */

/** A run: both transports, and where their lines go. */
typedef struct run {
    const options_t *options;
    net_end_t ours, peer;
    int has_peer;
    int bare_fd; /**< -1: not measured */
    double tcp_bps;
    FILE *json;
    int n_bad;
} run_t;

/** A line, and how many times better ours is: the median of the pairs, 0 without any. */
typedef struct line {
    net_row_t row;
    double by_latency, by_bandwidth;
} line_t;

static double lower(double a, double b)
{
    return a < b ? a : b;
}

static void write_json(const run_t *run, const char *peer, const line_t *line)
{
    const net_row_t *row = &line->row;
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "peer", peer);
    tw_json_add_int(json, "bytes", (int64_t)row->bytes);
    tw_json_add_int(json, "connections", row->connections);
    tw_json_add_int(json, "nics", run->options->n_nics);
    tw_json_add_double(json, "link_bps", run->options->link_bps);
    tw_json_add_bool(json, "both_ways", row->both_ways);
    tw_json_add_double(json, "latency_us", row->latency_us);
    tw_json_add_double(json, "bandwidth_GBps", row->bandwidth_GBps);
    tw_json_add_double(json, "tcp_GBps", run->tcp_bps / 8e9);
    if (line->by_latency > 0) {
        tw_json_add_double(json, "ratio_to_peer", lower(line->by_latency, line->by_bandwidth));
        tw_json_add_double(json, "ratio_of_latency", line->by_latency);
        tw_json_add_double(json, "ratio_of_bandwidth", line->by_bandwidth);
    }
    tw_json_add_bool(json, "ok", row->ok);
    (void)tw_json_write_line(json, run->json);
    tw_json_destroy(json);
}

static void print_line(run_t *run, const char *peer, const line_t *line)
{
    const net_row_t *row = &line->row;
    run->n_bad += !row->ok;
    if (run->ours.rank) {
        return;
    }
    printf("%12s %12zu %11d %5s %12.1f %12.4f %10.2f", peer, row->bytes, row->connections,
           row->both_ways ? "both" : "one", row->latency_us, row->bandwidth_GBps,
           run->tcp_bps > 0 ? row->bandwidth_GBps * 8e9 / run->tcp_bps : 0);
    if (line->by_latency > 0) {
        printf(" %10.2f %10.2f", line->by_latency, line->by_bandwidth);
    } else {
        printf(" %10s %10s", "-", "-");
    }
    printf(" %3s\n", row->ok ? "yes" : "NO");
    (void)fflush(stdout);
    if (run->json) {
        write_json(run, peer, line);
    }
}

static void print_head(const run_t *run, const char *why_no_peer)
{
    const options_t *options = run->options;
    char note[TW_CLUSTER_TEXT_BYTES];
    if (run->ours.rank) {
        return;
    }
    printf("# thinwire net: 2 nodes, %d interface(s) of %.0f Mb/s (0: not shaped)%s%s\n", options->n_nics,
           options->link_bps / 1e6, *tw_cluster_note(note) ? "; " : "", note);
    printf("# one TCP stream through one link (iperf3): %.0f Mb/s\n", run->tcp_bps / 1e6);
    if (*why_no_peer) {
        printf("# no figures of %s: %s\n", options->peer, why_no_peer);
    }
    printf("# better: how many times ours is better than the peer, median of %d pairs\n", options->n_pairs);
    printf(
        "#\n#       peer        bytes connections  ways latency (us)       (GB/s)     of TCP    better:     "
        "better:  ok\n#%96s\n",
        "latency  bandwidth");
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

/** Figures of the pairs, apart. */
typedef struct figures {
    double latency_us[PAIRS_MAX], bandwidth_GBps[PAIRS_MAX];
} figures_t;

static tw_status_t measure_once(run_t *run, net_end_t *end, line_t *line, figures_t *figures, int i)
{
    const options_t *options = run->options;
    net_row_t row = line->row;
    tw_status_t status = net_measure(end, &row, options->seconds, options->link_bps * options->n_nics);
    figures->latency_us[i] = row.latency_us;
    figures->bandwidth_GBps[i] = row.bandwidth_GBps;
    line->row.ok = line->row.ok && row.ok;
    return status;
}

static tw_status_t measure_bare_once(run_t *run, const line_t *line, figures_t *figures, int i)
{
    const options_t *options = run->options;
    net_row_t row = line->row;
    tw_status_t status =
        net_bare_measure(&run->ours, run->bare_fd, &row, options->seconds, options->link_bps);
    figures->latency_us[i] = row.latency_us;
    figures->bandwidth_GBps[i] = row.bandwidth_GBps;
    return status;
}

/** A line without ratios. */
static void print_figures(run_t *run, const char *name, line_t *line, figures_t *figures)
{
    const size_t n = (size_t)run->options->n_pairs;
    line->row.latency_us = tw_median(figures->latency_us, n);
    line->row.bandwidth_GBps = tw_median(figures->bandwidth_GBps, n);
    print_line(run, name, line);
}

static double median_ratio(const double *over, const double *under, int n)
{
    double ratios[PAIRS_MAX];
    for (int i = 0; i < n; i++) {
        ratios[i] = over[i] / under[i];
    }
    return tw_median(ratios, (size_t)n);
}

/** In turn, so that what comes and goes on the machine meets both. */
static tw_status_t measure_line(run_t *run, size_t bytes, int connections, int both_ways)
{
    static figures_t ours, peer, bare;
    const int n = run->options->n_pairs, has_bare = run->bare_fd >= 0 && connections == 1 && !both_ways;
    line_t line = {.row = {.bytes = bytes, .connections = connections, .both_ways = both_ways, .ok = 1}};
    line_t peer_line = line, bare_line = line;
    tw_status_t status = TW_OK;
    for (int i = 0; i < n && !status; i++) {
        status = measure_once(run, &run->ours, &line, &ours, i);
        if (!status && run->has_peer) {
            status = measure_once(run, &run->peer, &peer_line, &peer, i);
        }
        if (!status && has_bare) {
            status = measure_bare_once(run, &bare_line, &bare, i);
        }
    }
    if (status) {
        return status;
    }
    if (run->has_peer) {
        line.by_latency = median_ratio(peer.latency_us, ours.latency_us, n);
        line.by_bandwidth = median_ratio(ours.bandwidth_GBps, peer.bandwidth_GBps, n);
    }
    print_figures(run, "thinwire", &line, &ours);
    if (run->has_peer) {
        print_figures(run, run->options->peer, &peer_line, &peer);
    }
    if (has_bare) {
        print_figures(run, "bare", &bare_line, &bare);
    }
    return TW_OK;
}

static tw_status_t measure_all(run_t *run)
{
    const options_t *options = run->options;
    tw_status_t status = TW_OK;
    for (int c = 0; c < options->n_connections && !status; c++) {
        status = net_end_connect(&run->ours, options->connections[c]);
        if (!status && run->has_peer) {
            status = net_end_connect(&run->peer, options->connections[c]);
        }
        for (int s = 0; s < 2 * options->n_sizes && !status; s++) {
            status = measure_line(run, options->sizes[s / 2], options->connections[c], s % 2);
        }
        net_end_disconnect(&run->ours);
        if (run->has_peer) {
            net_end_disconnect(&run->peer);
        }
    }
    return status;
}

/* ---- an end -------------------------------------------------------------------------------------------- */

static const tw_nccl_net_v12_t *find_peer(const options_t *options, char *why)
{
    if (!options->peer) {
        return NULL;
    }
    if (strcmp(options->peer, SEALED) == 0 || strcmp(options->peer, THINWIRE) == 0) {
        return &ncclNetPlugin_v12;
    }
    return strcmp(options->peer, TCP) == 0 ? &net_tcp : net_peer_open(options->nccl, why, WHY_BYTES);
}

/** Ours reads its variables when it begins. */
static tw_status_t begin_peer(run_t *run, const tw_nccl_net_v12_t *net)
{
    const int is_sealed = strcmp(run->options->peer, SEALED) == 0;
    if (is_sealed && (setenv("TW_NET_ENCRYPT", "y", 1) || setenv("TW_JOB_TOKEN", "of this bench", 0))) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = net_end_init(&run->peer, net, &run->ours);
    if (is_sealed) {
        (void)unsetenv("TW_NET_ENCRYPT");
    }
    return status;
}

/** NCCL's sockets may not work here: at neither end then. */
static int can_connect(run_t *run, char *why)
{
    const tw_status_t status = net_end_connect(&run->peer, 1);
    net_end_disconnect(&run->peer);
    if (status) {
        (void)snprintf(why, WHY_BYTES, "it is there, but cannot connect");
    }
    return !status;
}

/** Both ends have a peer, or neither. */
static tw_status_t open_peer(run_t *run, char *why)
{
    const tw_nccl_net_v12_t *net = find_peer(run->options, why);
    double other;
    tw_status_t status = net_end_swap(&run->ours, net != NULL, &other);
    if (status || !net || other == 0) {
        return status;
    }
    status = begin_peer(run, net);
    run->has_peer = !status && can_connect(run, why);
    return status;
}

static tw_status_t open_json(run_t *run)
{
    const char *path = run->options->json;
    if (!path || run->ours.rank) {
        return TW_OK;
    }
    run->json = fopen(path, "ae");
    if (!run->json) {
        tw_error("bench: %s: %s", path, strerror(errno));
        return TW_ERR_IO;
    }
    return TW_OK;
}

static int run_end(const options_t *options)
{
    char why[WHY_BYTES] = "";
    run_t run = {.options = options, .bare_fd = -1};
    tw_status_t status = net_end_init(&run.ours, &ncclNetPlugin_v12, NULL);
    if (!status) {
        status = open_json(&run);
    }
    if (!status) {
        status = open_peer(&run, why);
    }
    if (!status) {
        status = net_iperf(&run.ours, &run.tcp_bps);
    }
    if (!status && options->bare) {
        status = net_bare_open(&run.ours, &run.bare_fd);
    }
    if (!status) {
        print_head(&run, why);
        status = measure_all(&run);
    }
    if (run.has_peer) {
        net_end_cleanup(&run.peer);
    }
    if (run.bare_fd >= 0) {
        close(run.bare_fd);
    }
    net_end_cleanup(&run.ours);
    if (run.json) {
        (void)fclose(run.json);
    }
    return status || run.n_bad;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc};
    options_t options = {.nccl = "libnccl.so.2"};
    int code = 1;
    tw_flags_read(&flags, argc, argv, &options);
    if (getenv("RANK")) {
        return run_end(&options);
    }
    const tw_cluster_params_t params = {.n_nodes = 2,
                                        .ranks_per_node = 1,
                                        .n_nics = options.n_nics,
                                        .ipv6 = options.ipv6,
                                        .link_bps = options.link_bps,
                                        .argv = (const char *const *)argv,
                                        .no_loopback = 1};
    return tw_cluster_run_self(&params, &code) == TW_OK ? code : 1;
}
