/** Runs a command on every rank of a cluster in a box. */
#include <stddef.h>

#include "cluster/cluster.h"
#include "flags/flags.h"

static const char doc[] =
    "Runs COMMAND as every rank of a cluster in a box: nodes with a network of their own, joined by shaped "
    "links.\v"
    "Each rank sees torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
    "MASTER_PORT); node n is 10.77.0.<n+1>, host name node<n>; its interface eth<k> is 10.77.<k>.<n+1>. Rank "
    "0 keeps the terminal; the lines of the others are marked. The exit code is that of the first rank that "
    "failed.\n\n"
    "Example: the speed of one TCP stream\n"
    "  cluster --nodes 2 -- sh -c 'if [ $RANK = 0 ]; then sleep 1; iperf3 -c 10.77.0.2; else iperf3 -s -1; "
    "fi'";

static void take_grace(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    tw_cluster_params_t *params = ctx;
    if (tw_parse_time(text, &params->grace_sec) != TW_OK || params->grace_sec <= 0) {
        argp_error(state, "--%s: '%s' is not a time such as 15s or 500ms", flag->field.name, text);
    }
}

static void take_loopback(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    (void)state, (void)flag, (void)text;
    ((tw_cluster_params_t *)ctx)->no_loopback = 0;
}

#define AT(member) offsetof(tw_cluster_params_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"nodes", "2", "N", "Nodes", TW_CONFIG_INT32, AT(n_nodes), 1, TW_CLUSTER_MAX_NODES, NULL},
     .letter = 'n'},
    {.field = {"ranks-per-node", "1", "L", "Ranks on each node", TW_CONFIG_INT32, AT(ranks_per_node), 1,
               TW_CLUSTER_MAX_RANKS, NULL},
     .letter = 'r'},
    {.field = {"link", "1gbit", "RATE", "Rate of each node's link, each way: 1gbit, 100mbit, none",
               TW_CONFIG_RATE, AT(link_bps), 0, 0, NULL},
     .letter = 'l',
     .take = tw_flag_take_link},
    {.field = {"nics", "1", "N", "Interfaces of each node, eth0 and on, each with such a link",
               TW_CONFIG_INT32, AT(n_nics), 1, TW_CLUSTER_MAX_NICS, NULL}},
    {.field = {"ipv6", NULL, NULL, "Nodes have IPv6 addresses alone: fd77::<k>:<n+1>", TW_CONFIG_BOOL,
               AT(ipv6), 0, 0, NULL}},
    {.field = {"grace", NULL, "TIME",
               "How long the others may go on after the first rank has failed, before they are killed "
               "(default: 5s more than TW_PEER_TIMEOUT)",
               TW_CONFIG_TIME, AT(grace_sec), 0, 0, NULL},
     .letter = 'g',
     .take = take_grace},
    {.field = {"loopback", NULL, NULL, "Where no cluster can be made, run on loopback instead of failing",
               TW_CONFIG_BOOL, 0, 0, 0, NULL},
     .letter = 'b',
     .take = take_loopback},
};

static void take_command(void *ctx, char **args, int n)
{
    (void)n;
    ((tw_cluster_params_t *)ctx)->argv = (const char *const *)args;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {.flags = flag_list,
                                     .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
                                     .doc = doc,
                                     .args_doc = "-- COMMAND [ARG...]",
                                     .take_args = take_command};
    tw_cluster_params_t params = {.no_loopback = 1};
    tw_flags_read(&flags, argc, argv, &params);
    int exit_code = 1;
    return tw_cluster_run(&params, &exit_code) == TW_OK ? exit_code : 1;
}
