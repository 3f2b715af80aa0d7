/* The program: it makes a cluster of two nodes, each an end of the link, and prints the table. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench/columns.h"
#include "bench/iperf.h"
#include "flags/flags.h"
#include "tests/plugin/nccl/bench/net.h"
#include "tests/plugin/nccl/bench/ratio.h"

#define ROUNDS_MAX 401
#define PEERS_MAX 4
#define SIZES_MAX 32
#define WHY_BYTES 256
#define NCCL_SOCKET "nccl-socket"
#define SEALED "sealed"
#define THINWIRE "thinwire"
#define AGAIN "again" /* ours once more, in rows */

extern const tw_nccl_net_v12_t ncclNetPlugin_v12;

typedef struct options {
    size_t sizes[SIZES_MAX];
    int connections[SIZES_MAX];
    size_t n_sizes, n_connections, n_peers;
    int n_nics;
    int32_t ipv6;
    double link_bps, seconds;
    int n_rounds;
    const char *peers[PEERS_MAX];
    const char *json, *nccl;
} options_t;

static const char doc[] = "Latency and bandwidth of the NCCL net plugin between two nodes of a cluster in a "
                          "box, called as NCCL calls it, beside "
                          "one TCP stream (iperf3) of the same link, and NCCL's own sockets.";

static void net_take_size(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    options_t *options = ctx;
    size_t *size = &options->sizes[options->n_sizes];
    if (tw_parse_bytes(item, size) != TW_OK || *size < 1 || *size > TW_NCCL_MESSAGE_BYTES) {
        argp_error(state, "--%s: '%s' is not a size from 1 to %zu", flag->field.name, item,
                   (size_t)TW_NCCL_MESSAGE_BYTES);
    }
}

static void take_connections(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    options_t *options = ctx;
    char *end;
    const long n = strtol(item, &end, 10);
    if (end == item || *end || n < 1 || n > NET_CONNECTIONS_MAX) {
        argp_error(state, "--%s: '%s' is not a number from 1 to %d", flag->field.name, item,
                   NET_CONNECTIONS_MAX);
    }
    options->connections[options->n_connections] = (int)n;
}

static void take_peer(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    static const char *const names[] = {NCCL_SOCKET, SEALED, THINWIRE};
    options_t *options = ctx;
    options->peers[options->n_peers] = names[tw_flag_choice(state, flag, item, names, 3)];
}

#define AT(member) offsetof(options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"sizes", "8,4K,64K,512K,4M,64M", "LIST", "Message sizes", TW_CONFIG_STRING, AT(n_sizes), 0, 0,
               NULL},
     .letter = 's',
     .take = net_take_size,
     .most_items = SIZES_MAX},
    {.field = {"connections", "1,4", "LIST", "Connections in use at a time", TW_CONFIG_STRING,
               AT(n_connections), 0, 0, NULL},
     .letter = 'c',
     .take = take_connections,
     .most_items = SIZES_MAX},
    {.field = {"nics", "1", "N", "Interfaces of each node", TW_CONFIG_INT32, AT(n_nics), 1,
               TW_CLUSTER_MAX_NICS, NULL}},
    {.field = {"ipv6", NULL, NULL, "Nodes have IPv6 addresses alone", TW_CONFIG_BOOL, AT(ipv6), 0, 0, NULL}},
    {.field = {"link", "1gbit", "RATE", "Rate of each interface's link: 1gbit, none", TW_CONFIG_RATE,
               AT(link_bps), 0, 0, NULL},
     .letter = 'l',
     .take = tw_flag_take_link},
    {.field = {"seconds", "0.5", "S", "For each line's bandwidth", TW_CONFIG_DOUBLE, AT(seconds), 0.01, 600,
               NULL}},
    {.field = {"iters", "3", "N",
               "Measurements of each line, of which the median counts; with peers, as many rounds, of which "
               "many short ones say more than a few long ones",
               TW_CONFIG_INT32, AT(n_rounds), 1, ROUNDS_MAX, NULL}},
    {.field = {"peer", NULL, "LIST",
               "In turn with ours, measure others: nccl-socket (NCCL's own sockets), sealed (ours with "
               "TW_NET_ENCRYPT=y), thinwire (ours once more: what differs then is noise)",
               TW_CONFIG_STRING, AT(n_peers), 0, 0, NULL},
     .take = take_peer,
     .most_items = PEERS_MAX},
    {.field = {"nccl", NULL, "FILE", "NCCL's library (default: libnccl.so.2, where the loader finds it)",
               TW_CONFIG_STRING, AT(nccl), 0, 0, NULL}},
    {.field = {"json", NULL, "FILE", "Append a line of JSON for each line", TW_CONFIG_STRING, AT(json), 0, 0,
               NULL}},
};

/* ---- rows ---------------------------------------------------------------------------------------------- */

/** One of the transports that are measured in turn. */
typedef struct transport {
    const char *name;
    net_end_t end;
    net_row_t row; /**< line that is being measured; at the end it has the medians */
    double latency_us[ROUNDS_MAX], bandwidth_GBps[ROUNDS_MAX];
    net_ratio_t by_latency, by_bandwidth; /**< how many times ours is better than this one; 0 for ours */
} transport_t;

/** A run: what is measured, and where the rows go. */
typedef struct run {
    const options_t *options;
    transport_t transports[1 + PEERS_MAX]; /**< ours, the peers */
    int n_transports;
    double tcp_bps;
    FILE *json;
    int n_bad;
} run_t;

static const net_end_t *our_end(const run_t *run)
{
    return &run->transports[0].end;
}

/* ---- columns ------------------------------------------------------------------------------------------- */

typedef struct {
    const char *peer, *ways; /* ways: "one" or "both" */
    size_t bytes;
    int connections, n_nics, both_ways, n_rounds, ok;
    double link_bps, latency_us, bandwidth_GBps, tcp_GBps, of_tcp;
    double of_ours; /* the worse one of the two ratios */
    net_ratio_t latency, bandwidth;
} row_t;

static const bench_column_t columns[] = {
    {"peer", "peer", "%12s", BENCH_STRING, BENCH_AT(peer), 0},
    {"bytes", "bytes", "%12lld", BENCH_INT64, BENCH_AT(bytes), 0},
    {"connections", "connections", "%11lld", BENCH_INT, BENCH_AT(connections), 0},
    {"nics", NULL, NULL, BENCH_INT, BENCH_AT(n_nics), 0},
    {"link_bps", NULL, NULL, BENCH_DOUBLE, BENCH_AT(link_bps), 0},
    {NULL, "ways", "%5s", BENCH_STRING, BENCH_AT(ways), 0},
    {"both_ways", NULL, NULL, BENCH_BOOL, BENCH_AT(both_ways), 0},
    {"latency_us", "latency (us)", "%12.1f", BENCH_DOUBLE, BENCH_AT(latency_us), 0},
    {"bandwidth_GBps", "(GB/s)", "%12.4f", BENCH_DOUBLE, BENCH_AT(bandwidth_GBps), 0},
    {"tcp_GBps", NULL, NULL, BENCH_DOUBLE, BENCH_AT(tcp_GBps), 0},
    {NULL, "of TCP", "%10.2f", BENCH_DOUBLE, BENCH_AT(of_tcp), 0},
    {"ok", NULL, NULL, BENCH_BOOL, BENCH_AT(ok), 0},
    /* Rows of other transports alone: how many times ours is better, and bounds of the true ratio. */
    {"rounds", NULL, NULL, BENCH_INT, BENCH_AT(n_rounds), 0},
    {"ratio_of_ours", NULL, NULL, BENCH_DOUBLE, BENCH_AT(of_ours), 0},
    {"ratio_of_latency", "ours: latency", "%14.2f", BENCH_DOUBLE, BENCH_AT(latency.median), 0},
    {"ratio_of_latency_low", "from", "%5.2f", BENCH_DOUBLE, BENCH_AT(latency.low), 0},
    {"ratio_of_latency_high", "to", "%5.2f", BENCH_DOUBLE, BENCH_AT(latency.high), 0},
    {"ratio_of_bandwidth", "bandwidth", "%11.2f", BENCH_DOUBLE, BENCH_AT(bandwidth.median), 0},
    {"ratio_of_bandwidth_low", "from", "%5.2f", BENCH_DOUBLE, BENCH_AT(bandwidth.low), 0},
    {"ratio_of_bandwidth_high", "to", "%5.2f", BENCH_DOUBLE, BENCH_AT(bandwidth.high), 0},
    {NULL, "ok", "%3s", BENCH_BOOL, BENCH_AT(ok), 0},
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))
#define N_RATIOS 9 /* the last columns, which rows of ours do not have in JSON */

static const bench_table_t table = {columns, N_COLUMNS, 1};
static const bench_table_t figures = {columns, N_COLUMNS - N_RATIOS, 1};

static row_t line_of(const run_t *run, const transport_t *transport)
{
    const net_row_t *row = &transport->row;
    row_t line = {.peer = transport->name,
                  .ways = row->both_ways ? "both" : "one",
                  .bytes = row->bytes,
                  .connections = row->connections,
                  .n_nics = run->options->n_nics,
                  .both_ways = row->both_ways,
                  .n_rounds = run->options->n_rounds,
                  .ok = row->ok,
                  .link_bps = run->options->link_bps,
                  .latency_us = row->latency_us,
                  .bandwidth_GBps = row->bandwidth_GBps,
                  .tcp_GBps = run->tcp_bps / 8e9,
                  .of_tcp = run->tcp_bps > 0 ? row->bandwidth_GBps * 8e9 / run->tcp_bps : NAN,
                  .of_ours = fmin(transport->by_latency.median, transport->by_bandwidth.median),
                  .latency = transport->by_latency,
                  .bandwidth = transport->by_bandwidth};
    return line;
}

static void net_report(run_t *run, const transport_t *transport)
{
    static const net_ratio_t none = {NAN, NAN, NAN};
    const int is_beside = transport->by_latency.median > 0;
    run->n_bad += !transport->row.ok;
    if (our_end(run)->rank) {
        return;
    }
    row_t line = line_of(run, transport);
    if (!is_beside) {
        line.latency = line.bandwidth = none;
    }
    bench_table_row(&table, &line, NULL);
    /* an error is reported when the file is closed */
    (void)bench_table_write(is_beside ? &table : &figures, &line, run->json);
}

static void print_head(const run_t *run)
{
    const options_t *options = run->options;
    char note[TW_CLUSTER_TEXT_BYTES];
    if (our_end(run)->rank) {
        return;
    }
    printf("# thinwire net: 2 nodes, %d interface(s) of %.0f Mb/s (0: not shaped)%s%s\n", options->n_nics,
           options->link_bps / 1e6, *tw_cluster_note(note) ? "; " : "", note);
    printf("# one TCP stream through one link (iperf3): %.0f Mb/s\n", run->tcp_bps / 1e6);
    printf("# ours: how many times ours is better than this one: the median of %d rounds' ratios; from, to: "
           "where the true\n# one lies with 95 %% (fewer than 6 rounds: the lowest and the highest)\n#\n",
           options->n_rounds);
    bench_table_head(&table);
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

static tw_status_t measure_once(run_t *run, transport_t *transport, int round)
{
    const options_t *options = run->options;
    net_row_t row = transport->row;
    tw_status_t status =
        net_measure(&transport->end, &row, options->seconds, options->link_bps * options->n_nics);
    transport->latency_us[round] = row.latency_us;
    transport->bandwidth_GBps[round] = row.bandwidth_GBps;
    transport->row.ok = transport->row.ok && row.ok;
    return status;
}

static net_ratio_t ratio_of(const double *over, const double *under, int n)
{
    double ratios[ROUNDS_MAX];
    for (int i = 0; i < n; i++) {
        ratios[i] = over[i] / under[i];
    }
    return net_ratio_of(ratios, n);
}

/** Return who is the k-th of n in a round. Each one comes first, and last, equally often. */
static int whose_turn(int round, int k, int n)
{
    return (round + (round / n % 2 ? n - k : k)) % n;
}

static void take_medians(run_t *run)
{
    const int n = run->options->n_rounds, n_transports = run->n_transports;
    const transport_t *ours = &run->transports[0];
    for (int i = 1; i < n_transports; i++) {
        transport_t *peer = &run->transports[i];
        peer->by_latency = ratio_of(peer->latency_us, ours->latency_us, n);
        peer->by_bandwidth = ratio_of(ours->bandwidth_GBps, peer->bandwidth_GBps, n);
    }
    for (int i = 0; i < n_transports; i++) {
        transport_t *transport = &run->transports[i];
        transport->row.latency_us = tw_median(transport->latency_us, (size_t)n);
        transport->row.bandwidth_GBps = tw_median(transport->bandwidth_GBps, (size_t)n);
    }
}

/** Measure all transports in turn, so that whatever else runs on the machine slows all of them. */
static tw_status_t measure_line(run_t *run, size_t bytes, int connections, int both_ways)
{
    const int n = run->n_transports;
    tw_status_t status = TW_OK;
    for (int i = 0; i < n; i++) {
        run->transports[i].row =
            (net_row_t){.bytes = bytes, .connections = connections, .both_ways = both_ways, .ok = 1};
    }
    for (int round = 0; round < run->options->n_rounds; round++) {
        for (int k = 0; k < n && !status; k++) {
            status = measure_once(run, &run->transports[whose_turn(round, k, n)], round);
        }
    }
    TW_TRY(status);
    take_medians(run);
    for (int i = 0; i < n; i++) {
        net_report(run, &run->transports[i]);
    }
    return TW_OK;
}

static tw_status_t measure_all(run_t *run)
{
    const options_t *options = run->options;
    tw_status_t status = TW_OK;
    for (size_t c = 0; c < options->n_connections && !status; c++) {
        for (int i = 0; i < run->n_transports && !status; i++) {
            status = net_end_connect(&run->transports[i].end, options->connections[c]);
        }
        for (size_t s = 0; s < 2 * options->n_sizes && !status; s++) {
            status = measure_line(run, options->sizes[s / 2], options->connections[c], s % 2);
        }
        for (int i = 0; i < run->n_transports; i++) {
            net_end_disconnect(&run->transports[i].end);
        }
    }
    return status;
}

/* ---- an end -------------------------------------------------------------------------------------------- */

static const tw_nccl_net_v12_t *find_peer(const options_t *options, const char *name, char *why)
{
    if (strcmp(name, SEALED) == 0 || strcmp(name, THINWIRE) == 0) {
        return &ncclNetPlugin_v12;
    }
    return net_peer_open(options->nccl, why, WHY_BYTES);
}

/** Begin a peer. Our plugin reads its variables when it begins, so they are set meanwhile. */
static tw_status_t begin_peer(const run_t *run, transport_t *peer, const tw_nccl_net_v12_t *net)
{
    const int is_sealed = strcmp(peer->name, SEALED) == 0;
    if (is_sealed && (setenv("TW_NET_ENCRYPT", "y", 1) || setenv("TW_JOB_TOKEN", "of this bench", 0))) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = net_end_init(&peer->end, net, our_end(run));
    if (is_sealed) {
        (void)unsetenv("TW_NET_ENCRYPT");
    }
    return status;
}

/** Try to connect. NCCL's sockets may not work here; then they work at neither end. */
static int can_connect(net_end_t *end, char *why)
{
    const tw_status_t status = net_end_connect(end, 1);
    net_end_disconnect(end);
    if (status) {
        (void)snprintf(why, WHY_BYTES, "it is there, but cannot connect");
    }
    return !status;
}

/** Open a peer at both ends, or at neither: then node 0 prints why. */
static tw_status_t open_peer(run_t *run, const char *name)
{
    char why[WHY_BYTES] = "the other end has none";
    const tw_nccl_net_v12_t *net = find_peer(run->options, name, why);
    transport_t *peer = &run->transports[run->n_transports];
    double other;
    peer->name = strcmp(name, THINWIRE) == 0 ? AGAIN : name;
    tw_status_t status = net_end_swap(our_end(run), net != NULL, &other);
    if (!status && net && other > 0) {
        TW_TRY(begin_peer(run, peer, net));
        if (can_connect(&peer->end, why)) {
            run->n_transports++;
            return TW_OK;
        }
        net_end_cleanup(&peer->end);
    }
    if (!our_end(run)->rank) {
        printf("# no figures of %s: %s\n", name, why);
    }
    return status;
}

static tw_status_t open_transports(run_t *run)
{
    const options_t *options = run->options;
    run->transports[0].name = THINWIRE;
    TW_TRY(net_end_init(&run->transports[0].end, &ncclNetPlugin_v12, NULL));
    run->n_transports = 1;
    for (size_t i = 0; i < options->n_peers; i++) {
        TW_TRY(open_peer(run, options->peers[i]));
    }
    return TW_OK;
}

static void close_transports(run_t *run)
{
    while (run->n_transports > 0) {
        net_end_cleanup(&run->transports[--run->n_transports].end);
    }
}

/** Measure the bits per second of one TCP stream from node 0 to node 1; both ends get it. 0: not measured. */
static tw_status_t measure_tcp(const net_end_t *end, double *bps)
{
    double own = 0, other = 0;
    *bps = 0;
    if (tw_cluster_kind() != TW_CLUSTER_NODES) {
        return TW_OK;
    }
    FILE *server = end->rank ? bench_iperf_serve() : NULL;
    tw_status_t status = net_end_meet(end);
    if (!status && !end->rank) {
        own = bench_iperf_run();
    }
    status = status ? status : net_end_swap(end, own, &other);
    bench_iperf_end(server);
    *bps = end->rank ? other : own;
    return status;
}

static int run_end(const options_t *options)
{
    static run_t run;
    run = (run_t){.options = options};
    tw_status_t status = open_transports(&run);
    if (!status) {
        status = bench_json_open(our_end(&run)->rank ? NULL : options->json, BENCH_JSON_APPEND, &run.json);
    }
    status = status ? status : measure_tcp(our_end(&run), &run.tcp_bps);
    if (!status) {
        print_head(&run);
        status = measure_all(&run);
    }
    close_transports(&run);
    status = bench_json_close(options->json, run.json, status);
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
