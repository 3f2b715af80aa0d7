/* The simulator's flags. */
#include "tests/bench/simulate/options.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "flags/flags.h"

#define MOST_RANKS 1024

const char *const sim_op_names[SIM_OPS] = {"allgather", "reduce_scatter", "allreduce"};
const tw_coll_op_t sim_ops[SIM_OPS] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};

static void take_op(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    if (strcmp(text, "step") == 0) {
        argp_error(state, "--op step: what a training step takes, trainer:plan says (--nodes, --params)");
    }
    ((sim_options_t *)ctx)->op = tw_flag_choice(state, flag, text, sim_op_names, SIM_OPS);
}

static void take_codec(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    sim_options_t *options = ctx;
    options->codec_text = text;
    if (tw_quant_codec_parse_any(text, &options->codec) != TW_OK ||
        tw_quant_form(&options->codec) == TW_QUANT_CHANGE) {
        argp_error(state, "--%s: '%s' is no codec", flag->field.name, text);
    }
}

/** Parse a rate into bytes a second; "none": no bottleneck. */
static void sim_take_rate(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    double *rate = (double *)((char *)ctx + flag->field.offset);
    tw_flag_take_link(state, flag, ctx, text);
    *rate = *rate > 0.0 ? *rate / 8.0 : INFINITY;
}

#define AT(member) offsetof(sim_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"op", "allgather", "OP", "allgather, reduce_scatter or allreduce", TW_CONFIG_STRING, 0, 0, 0,
               NULL},
     .letter = 'o',
     .take = take_op},
    {.field = {"algo", NULL, "NAME", "One algorithm (default: all of the operation's)", TW_CONFIG_STRING,
               AT(algo), 0, 0, NULL},
     .letter = 'a'},
    {.field = {"bytes", "64M", "SIZE", "Of the whole tensor, bf16", TW_CONFIG_BYTES, AT(bytes), 1, 1e15,
               NULL},
     .letter = 'b'},
    {.field = {"chunk", "512K", "SIZE", "A message carries at most so much", TW_CONFIG_BYTES, AT(chunk), 1,
               1e12, NULL}},
    {.field = {"codec", "plain", "CODEC", "plain, or a codec, such as lossless, int8, int4:block=64",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = take_codec},
    {.field = {"scale", NULL, NULL,
               "All sizes from 1 node up to --nodes, and where each algorithm stops scaling", TW_CONFIG_BOOL,
               AT(scale), 0, 0, NULL}},
    {.field = {"nodes", "8", "N", "Nodes", TW_CONFIG_INT32, AT(cluster.n_nodes), 1, MOST_RANKS, NULL},
     .letter = 'n',
     .group = 2},
    {.field = {"ranks-per-node", "8", "L", "Ranks on each", TW_CONFIG_INT32, AT(cluster.ranks_per_node), 1,
               MOST_RANKS, NULL},
     .letter = 'r'},
    {.field = {"link", "100gbit", "RATE", "Of each node, each way; none: no bottleneck", TW_CONFIG_RATE,
               AT(cluster.link_Bps), 0, 0, NULL},
     .letter = 'l',
     .take = sim_take_rate},
    {.field = {"in-node", "2400gbit", "RATE", "Of each rank inside its node, each way", TW_CONFIG_RATE,
               AT(cluster.in_node_Bps), 0, 0, NULL},
     .take = sim_take_rate},
    {.field = {"latency", "20us", "TIME", "Of a message between nodes", TW_CONFIG_TIME,
               AT(cluster.latency_sec), 0, 10, NULL}},
    {.field = {"nodes-per-switch", "0", "N", "Nodes that share a switch (0: all of them)", TW_CONFIG_INT32,
               AT(cluster.nodes_per_switch), 0, MOST_RANKS, NULL},
     .group = 3},
    {.field = {"oversubscription", "1", "N", "A switch's links over its uplink", TW_CONFIG_DOUBLE,
               AT(cluster.oversubscription), 1, 1000, NULL}},
    {.field = {"slow-node", "-1", "N", "Node whose link is slowed (-1: none)", TW_CONFIG_INT32,
               AT(cluster.slow_node), -1, MOST_RANKS, NULL}},
    {.field = {"slow-factor", "10", "N", "How many times", TW_CONFIG_DOUBLE, AT(cluster.slow_factor), 1, 1e6,
               NULL}},
    {.field = {"jitter", "0", "TIME", "Mean of what messages take longer, each at random", TW_CONFIG_TIME,
               AT(cluster.jitter_sec), 0, 10, NULL}},
    {.field = {"json", NULL, "FILE", "Append a JSON line for each row", TW_CONFIG_STRING, AT(json), 0, 0,
               NULL},
     .group = 4},
};

static void sim_check(struct argp_state *state, void *ctx)
{
    const sim_cluster_t *c = &((const sim_options_t *)ctx)->cluster;
    int world = c->n_nodes * c->ranks_per_node;
    if (world > MOST_RANKS) {
        argp_error(state, "--nodes x --ranks-per-node: %d ranks, but there can be %d at most", world,
                   MOST_RANKS);
    } else if (c->slow_node >= c->n_nodes) {
        argp_error(state, "--slow-node: there is none of that number");
    }
}

void sim_options_read(int argc, char **argv, sim_options_t *options)
{
    static const tw_flags_t flags = {
        .flags = flag_list,
        .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
        .doc = "Runs the library's algorithms on up to 1,024 ranks on a virtual clock, over links that may "
               "be oversubscribed, slow or unsteady.\v"
               "The same seed gives the same figures. \"of links\": of what the nodes' links allow.",
        .check = sim_check};
    *options = (sim_options_t){
        .cluster = {
            .in_node_latency_sec = 5e-6, .straggler = -1, .seed = 1, .packet_bytes = SIM_PACKET_BYTES}};
    tw_flags_read(&flags, argc, argv, options);
}
