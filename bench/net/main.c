/* The program: a cluster of two nodes, each an end; the table of figures. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/net/net.h"
#include "flags/flags.h"

#define SECONDS 1.0
#define SIZES_MAX 32

typedef struct options {
    size_t sizes[SIZES_MAX];
    int connections[SIZES_MAX];
    int n_sizes, n_connections, n_nics;
    double link_bps, seconds;
    const char *json;
} options_t;

enum { KEY_NICS = 256, KEY_SECONDS, KEY_JSON };

static const char doc[] = "Latency and bandwidth of the NCCL net plugin between two nodes of a cluster in a "
                          "box, called as NCCL calls it, beside "
                          "one TCP stream (iperf3) of the same link.";

static const struct argp_option flags[] = {
    {.name = "sizes", .key = 's', .arg = "LIST", .doc = "Message sizes (default: 8,4K,64K,512K,4M,64M)"},
    {.name = "connections", .key = 'c', .arg = "LIST", .doc = "Connections in use at a time (default: 1,4)"},
    {.name = "nics", .key = KEY_NICS, .arg = "N", .doc = "Interfaces of each node (default: 1)"},
    {.name = "link",
     .key = 'l',
     .arg = "RATE",
     .doc = "Rate of each interface's link: 1gbit, none (default: 1gbit)"},
    {.name = "seconds", .key = KEY_SECONDS, .arg = "S", .doc = "For each line's bandwidth (default: 1)"},
    {.name = "json", .key = KEY_JSON, .arg = "FILE", .doc = "Append a line of JSON for each line"},
    {0},
};

static void add_size(struct argp_state *state, void *input, const char *item)
{
    options_t *options = input;
    if (options->n_sizes == SIZES_MAX) {
        argp_error(state, "--sizes: more than %d", SIZES_MAX);
    }
    options->sizes[options->n_sizes++] = tw_flag_bytes(state, "sizes", item, 1, TW_NCCL_MESSAGE_BYTES);
}

static void add_connections(struct argp_state *state, void *input, const char *item)
{
    options_t *options = input;
    if (options->n_connections == SIZES_MAX) {
        argp_error(state, "--connections: more than %d", SIZES_MAX);
    }
    options->connections[options->n_connections++] =
        (int)tw_flag_int(state, "connections", item, 1, NET_CONNECTIONS_MAX);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    options_t *options = state->input;
    switch (key) {
    case 's':
        options->n_sizes = 0;
        tw_flag_list(state, arg, add_size);
        return 0;
    case 'c':
        options->n_connections = 0;
        tw_flag_list(state, arg, add_connections);
        return 0;
    case KEY_NICS:
        options->n_nics = (int)tw_flag_int(state, "nics", arg, 1, TW_CLUSTER_MAX_NICS);
        return 0;
    case 'l':
        options->link_bps = tw_flag_link(state, "link", arg);
        return 0;
    case KEY_SECONDS:
        options->seconds = tw_flag_number(state, "seconds", arg, 0.01, 600);
        return 0;
    case KEY_JSON:
        options->json = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- an end ------------------------------------------------------------------------------------------------- */

static void write_json(FILE *out, const options_t *options, const net_row_t *row, double tcp_bps)
{
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "peer", "thinwire");
    tw_json_add_int(json, "bytes", (int64_t)row->bytes);
    tw_json_add_int(json, "connections", row->connections);
    tw_json_add_int(json, "nics", options->n_nics);
    tw_json_add_double(json, "link_bps", options->link_bps);
    tw_json_add_bool(json, "both_ways", row->both_ways);
    tw_json_add_double(json, "latency_us", row->latency_us);
    tw_json_add_double(json, "bandwidth_GBps", row->bandwidth_GBps);
    tw_json_add_double(json, "tcp_GBps", tcp_bps / 8e9);
    tw_json_add_bool(json, "ok", row->ok);
    (void)tw_json_write_line(json, out);
    tw_json_destroy(json);
}

static void print_row(const options_t *options, const net_row_t *row, double tcp_bps, FILE *json)
{
    printf("%12zu %11d %5s %12.1f %12.4f %10.2f %3s\n", row->bytes, row->connections,
           row->both_ways ? "both" : "one", row->latency_us, row->bandwidth_GBps,
           tcp_bps > 0 ? row->bandwidth_GBps * 8e9 / tcp_bps : 0, row->ok ? "yes" : "NO");
    (void)fflush(stdout);
    if (json) {
        write_json(json, options, row, tcp_bps);
    }
}

static void print_head(const options_t *options, double tcp_bps)
{
    char note[TW_CLUSTER_TEXT_BYTES];
    printf("# thinwire net: 2 nodes, %d interface(s) of %.0f Mb/s (0: not shaped)%s%s\n", options->n_nics,
           options->link_bps / 1e6, *tw_cluster_note(note) ? "; " : "", note);
    printf("# one TCP stream through one link (iperf3): %.0f Mb/s\n", tcp_bps / 1e6);
    printf("#\n#      bytes connections  ways latency (us)       (GB/s)     of TCP  ok\n");
}

static tw_status_t measure_all(net_end_t *end, const options_t *options, double tcp_bps, FILE *json,
                               int *n_bad)
{
    tw_status_t status = TW_OK;
    for (int c = 0; c < options->n_connections && !status; c++) {
        status = net_end_connect(end, options->connections[c]);
        for (int s = 0; s < 2 * options->n_sizes && !status; s++) {
            net_row_t row = {
                .bytes = options->sizes[s / 2], .connections = options->connections[c], .both_ways = s % 2};
            status = net_measure(end, &row, options->seconds, options->link_bps * options->n_nics);
            *n_bad += !status && !row.ok;
            if (!status && !end->rank) {
                print_row(options, &row, tcp_bps, json);
            }
        }
        net_end_disconnect(end);
    }
    return status;
}

static int run_end(const options_t *options)
{
    net_end_t end;
    double tcp_bps = 0;
    int n_bad = 0;
    tw_status_t status = net_end_init(&end);
    FILE *json = options->json && !end.rank ? fopen(options->json, "ae") : NULL;
    if (options->json && !end.rank && !json) {
        tw_error("bench: %s: %s", options->json, strerror(errno));
        status = TW_ERR_IO;
    }
    if (!status) {
        status = net_iperf(&end, &tcp_bps);
    }
    if (!status) {
        if (!end.rank) {
            print_head(options, tcp_bps);
        }
        status = measure_all(&end, options, tcp_bps, json, &n_bad);
    }
    net_end_cleanup(&end);
    if (json) {
        (void)fclose(json);
    }
    return status || n_bad;
}

int main(int argc, char **argv)
{
    const struct argp argp = {.options = flags, .parser = parse_option, .doc = doc};
    options_t options = {.sizes = {8, 4 << 10, 64 << 10, 512 << 10, 4 << 20, 64 << 20},
                         .n_sizes = 6,
                         .connections = {1, 4},
                         .n_connections = 2,
                         .n_nics = 1,
                         .link_bps = 1e9,
                         .seconds = SECONDS};
    int code = 1;
    tw_flags_parse(&argp, argc, argv, 0, &options);
    if (getenv("RANK")) {
        return run_end(&options);
    }
    const tw_cluster_params_t params = {.n_nodes = 2,
                                        .ranks_per_node = 1,
                                        .n_nics = options.n_nics,
                                        .link_bps = options.link_bps,
                                        .path = "/proc/self/exe",
                                        .argv = (const char *const *)argv,
                                        .no_loopback = 1};
    return tw_cluster_run(&params, &code) == TW_OK ? code : 1;
}
