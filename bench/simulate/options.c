/* The simulator's flags. */
#include "bench/simulate/options.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "flags/flags.h"

#define MOST_RANKS 1024
/* In a box. A megabyte that two cores pass on takes them some milliseconds, a link of this rate 42; and a
 * rank's share is many windows of a connection, by which some are ahead of others at the end. */
#define BOX_BPS (200e6 / 8.0)
#define BOX_BYTES ((size_t)16 << 20) /* over the ranks of a node, which all send and get by one link */

const char *const sim_op_names[SIM_OP_NONE] = {"allgather", "reduce_scatter", "allreduce"};

static void take_op(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    if (strcmp(text, "step") == 0) {
        argp_error(state, "--op step: what a training step takes, trainer:plan says (--nodes, --params)");
    }
    ((sim_options_t *)ctx)->op = tw_flag_choice(state, flag, text, sim_op_names, SIM_OP_NONE);
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

/** In bytes a second; none: no bottleneck. */
static void sim_take_rate(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    double *rate = (double *)((char *)ctx + flag->field.offset);
    tw_flag_take_link(state, flag, ctx, text);
    *rate = *rate > 0.0 ? *rate / 8.0 : INFINITY;
}

#define AT(member) offsetof(sim_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"op", NULL, "OP",
               "allgather, reduce_scatter or allreduce (default: allgather; all three with --check-box)",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 'o',
     .take = take_op},
    {.field = {"algo", NULL, "NAME", "One algorithm (default: all of the operation's)", TW_CONFIG_STRING,
               AT(algo), 0, 0, NULL},
     .letter = 'a'},
    {.field = {"bytes", NULL, "SIZE", "Of the whole tensor, bf16 (default: 64M)", TW_CONFIG_BYTES, AT(bytes),
               1, 1e15, NULL},
     .letter = 'b'},
    {.field = {"chunk", NULL, "SIZE", "A message carries at most so much (default: 512K)", TW_CONFIG_BYTES,
               AT(chunk), 1, 1e12, NULL}},
    {.field = {"codec", "plain", "CODEC", "plain, or a codec, such as lossless, int8, int4:block=64",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = take_codec},
    {.field = {"scale", NULL, NULL,
               "All sizes from 1 node up to --nodes, and where each algorithm stops scaling", TW_CONFIG_BOOL,
               AT(scale), 0, 0, NULL}},
    {.field =
         {"check-box", NULL, NULL,
          "Run the operations in a cluster in a box, too, and show both times; plain ones alone. Not given: "
          "4 nodes of 1 rank, and --link 200mbit and --bytes 16M over the ranks of a node, with which two "
          "cores are enough for 16 ranks and the links take the time. There, too, a connection has 256 KB, "
          "over the ranks of a node, under way at most, connections take turns, and nothing is dropped",
          TW_CONFIG_BOOL, AT(check_box), 0, 0, NULL}},
    {.field = {"times", "5", "N", "How often each runs there", TW_CONFIG_INT32, AT(n_times), 1, 100, NULL}},
    {.field = {"nodes", NULL, "N", "Nodes (default: 8)", TW_CONFIG_INT32, AT(cluster.n_nodes), 1, MOST_RANKS,
               NULL},
     .letter = 'n',
     .group = 2},
    {.field = {"ranks-per-node", NULL, "L", "Ranks on each (default: 8)", TW_CONFIG_INT32,
               AT(cluster.ranks_per_node), 1, MOST_RANKS, NULL},
     .letter = 'r'},
    {.field = {"link", NULL, "RATE", "Of each node, each way; none: no bottleneck (default: 100gbit)",
               TW_CONFIG_RATE, AT(cluster.link_Bps), 0, 0, NULL},
     .letter = 'l',
     .take = sim_take_rate},
    {.field = {"in-node", NULL, "RATE", "Of each rank inside its node, each way (default: 2400gbit)",
               TW_CONFIG_RATE, AT(cluster.in_node_Bps), 0, 0, NULL},
     .take = sim_take_rate},
    {.field = {"latency", NULL, "TIME", "Of a message between nodes (default: 20us)", TW_CONFIG_TIME,
               AT(cluster.latency_sec), 0, 10, NULL}},
    {.field = {"in-node-latency", NULL, "TIME", "Of a message inside a node (default: 5us)", TW_CONFIG_TIME,
               AT(cluster.in_node_latency_sec), 0, 10, NULL}},
    {.field = {"model", NULL, "TEXT",
               "As TW_COLL_MODEL: latencies, rates, processors, in the place of the above", TW_CONFIG_STRING,
               AT(model), 0, 0, NULL}},
    {.field = {"nodes-per-switch", "0", "N", "Nodes that share a switch (0: all of them)", TW_CONFIG_INT32,
               AT(cluster.nodes_per_switch), 0, MOST_RANKS, NULL},
     .group = 3},
    {.field = {"oversubscription", "1", "N", "A switch's links over its uplink", TW_CONFIG_DOUBLE,
               AT(cluster.oversubscription), 1, 1000, NULL}},
    {.field = {"slow-node", "-1", "N", "Node whose link is slowed (-1: none)", TW_CONFIG_INT32,
               AT(cluster.slow_node), -1, MOST_RANKS, NULL}},
    {.field = {"slow-factor", "10", "N", "How many times", TW_CONFIG_DOUBLE, AT(cluster.slow_factor), 1, 1e6,
               NULL}},
    {.field = {"straggler", "-1", "RANK",
               "Rank whose processor is slowed (-1: none): it takes time with --model", TW_CONFIG_INT32,
               AT(cluster.straggler), -1, MOST_RANKS, NULL}},
    {.field = {"straggler-factor", "2", "N", "How many times", TW_CONFIG_DOUBLE, AT(cluster.straggler_factor),
               1, 1e6, NULL}},
    {.field = {"jitter", "0", "TIME", "Mean of what messages take longer, each at random", TW_CONFIG_TIME,
               AT(cluster.jitter_sec), 0, 10, NULL}},
    {.field = {"seed", "1", "N", "Of that", TW_CONFIG_COUNT, AT(seed), 0, 1e15, NULL}},
    {.field = {"json", NULL, "FILE", "Append a JSON line for each row", TW_CONFIG_STRING, AT(json), 0, 0,
               NULL},
     .group = 4},
};

/* ---- what was not given -------------------------------------------------------------------------------- */

/** A flag that means nothing beside a box; NULL: there is none. */
static const char *unfit_for_box(const sim_options_t *o)
{
    const sim_cluster_t *c = &o->cluster;
    const struct {
        int is_given;
        const char *name;
    } flags[] = {
        {tw_quant_form(&o->codec) != TW_QUANT_AS_IS, "codec"},
        {o->scale, "scale"},
        {o->chunk > 0, "chunk"},
        {o->model != NULL, "model"},
        {c->in_node_Bps > 0.0, "in-node"},
        {c->latency_sec >= 0.0, "latency"},
        {c->in_node_latency_sec >= 0.0, "in-node-latency"},
        {c->nodes_per_switch > 0, "nodes-per-switch"},
        {c->oversubscription > 1.0, "oversubscription"},
        {c->slow_node >= 0, "slow-node"},
        {c->straggler >= 0, "straggler"},
        {c->jitter_sec > 0.0, "jitter"},
    };
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (flags[i].is_given) {
            return flags[i].name;
        }
    }
    return NULL;
}

static void fill_in(sim_options_t *o)
{
    sim_cluster_t *c = &o->cluster;
    c->n_nodes = c->n_nodes > 0 ? c->n_nodes : o->check_box ? 4 : 8;
    c->ranks_per_node = c->ranks_per_node > 0 ? c->ranks_per_node : o->check_box ? 1 : 8;
    c->link_Bps = c->link_Bps > 0.0 ? c->link_Bps : o->check_box ? BOX_BPS : 100e9 / 8.0;
    c->in_node_Bps = c->in_node_Bps > 0.0 ? c->in_node_Bps : 2400e9 / 8.0;
    c->latency_sec = c->latency_sec >= 0.0 ? c->latency_sec : 20e-6;
    c->in_node_latency_sec = c->in_node_latency_sec >= 0.0 ? c->in_node_latency_sec : 5e-6;
    o->bytes = o->bytes > 0   ? o->bytes
               : o->check_box ? BOX_BYTES / (size_t)c->ranks_per_node
                              : (size_t)64 << 20;
    o->chunk = o->chunk > 0 ? o->chunk : (size_t)512 << 10;
    o->op = o->op == SIM_OP_NONE && !o->check_box ? 0 : o->op;
}

static void sim_check(struct argp_state *state, void *ctx)
{
    sim_options_t *o = ctx;
    const char *unfit = o->check_box ? unfit_for_box(o) : NULL;
    if (unfit) {
        argp_error(state,
                   "--%s: not with --check-box, which runs plain operations on links that are all alike",
                   unfit);
    }
    fill_in(o);
    const sim_cluster_t *c = &o->cluster;
    int world = c->n_nodes * c->ranks_per_node;
    if (world > MOST_RANKS) {
        argp_error(state, "--nodes x --ranks-per-node: %d ranks, but there can be %d at most", world,
                   MOST_RANKS);
    } else if (c->slow_node >= c->n_nodes || c->straggler >= world) {
        argp_error(state, "--%s: there is none of that number",
                   c->straggler >= world ? "straggler" : "slow-node");
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
    *options =
        (sim_options_t){.op = SIM_OP_NONE, .cluster.latency_sec = -1.0, .cluster.in_node_latency_sec = -1.0};
    tw_flags_read(&flags, argc, argv, options);
}
