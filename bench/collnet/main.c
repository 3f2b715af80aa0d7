/* The program: its command line, and the ranks of a cluster in a box. */
#include <stddef.h>

#include "bench/collnet/collnet.h"
#include "bench/columns.h"
#include "cluster/cluster.h"
#include "flags/flags.h"
#include "transport/transport.h"

static const char doc[] =
    "All-reduces of bf16 between the nodes of a cluster in a box: through the NCCL collnet plugin, called as "
    "NCCL calls it, and by the library's own collective, plain and by every codec that sums.";

#define AT(member) offsetof(collnet_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"nodes", "4", "N", "Nodes of one rank", TW_CONFIG_INT32, AT(n_nodes), 2, COLLNET_RANKS_MAX,
               NULL}},
    {.field = {"link", "1gbit", "RATE", "Rate of each node's link", TW_CONFIG_RATE, AT(link_bps), 0, 0, NULL},
     .letter = 'l',
     .take = tw_flag_take_link},
    {.field = {"bytes", "16M", "SIZE", "Of the tensor", TW_CONFIG_BYTES, AT(bytes), 2, 1 << 30, NULL}},
    {.field = {"window", "512K", "SIZE", "Of one request to the collnet; NCCL's are 256K to 4M",
               TW_CONFIG_BYTES, AT(window_bytes), 2, 1 << 30, NULL}},
    {.field = {"in-flight", "8", "N", "Requests under way at a time, as NCCL's steps", TW_CONFIG_INT32,
               AT(in_flight), 1, COLLNET_IN_FLIGHT_MAX, NULL}},
    {.field = {"iters", "10", "N", "Of which the median counts", TW_CONFIG_INT32, AT(iters), 1,
               COLLNET_ITERS_MAX, NULL}},
    {.field = {"json", NULL, "FILE", "Append a line of JSON for each line", TW_CONFIG_STRING, AT(json), 0, 0,
               NULL}},
};

/** Whole elements of bf16. */
static void check_flags(struct argp_state *state, void *ctx)
{
    collnet_options_t *options = ctx;
    (void)state;
    options->bytes = options->bytes / 2 * 2;
    options->window_bytes = options->window_bytes / 2 * 2;
}

/* ---- the program --------------------------------------------------------------------------------------- */

/** All ways in turn, the first time to see that they are right. */
static tw_status_t measure_all(collnet_rank_t *rank)
{
    for (int iter = -1; iter < rank->options->iters; iter++) {
        for (size_t i = 0; i < rank->n_ways; i++) {
            TW_TRY(collnet_way_measure(rank, &rank->ways[i], iter));
        }
    }
    return TW_OK;
}

static int collnet_run_rank(const collnet_options_t *options)
{
    static collnet_rank_t rank;
    FILE *json = NULL;
    int n_bad = 0;
    tw_status_t status = collnet_rank_init(&rank, options);

    status = status == TW_OK ? collnet_ways_connect(&rank) : status;
    if (status == TW_OK && rank.rank == 0) {
        status = bench_json_open(options->json, BENCH_JSON_APPEND, &json);
    }
    status = status == TW_OK ? measure_all(&rank) : status;
    if (status == TW_OK && rank.rank == 0) {
        n_bad = collnet_print_lines(&rank, json);
    }
    status = bench_json_close(options->json, json, status);
    collnet_ways_disconnect(&rank);
    collnet_rank_cleanup(&rank);
    return status != TW_OK || n_bad > 0;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {.flags = flag_list,
                                     .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
                                     .doc = doc,
                                     .check = check_flags};
    collnet_options_t options = {0};
    int code = 1;

    tw_flags_read(&flags, argc, argv, &options);
    if (tw_job_launched()) {
        return collnet_run_rank(&options);
    }
    const tw_cluster_params_t params = {.n_nodes = options.n_nodes,
                                        .ranks_per_node = 1,
                                        .link_bps = options.link_bps,
                                        .argv = (const char *const *)argv};
    return tw_cluster_run_self(&params, &code) == TW_OK ? code : 1;
}
