/** Runs a command on every rank of a cluster in a box. */
#include <errno.h>

#include "cluster/cluster.h"
#include "flags/flags.h"

static const char doc[] = "Runs COMMAND as every rank of a cluster in a box: nodes with a network of their "
                          "own, joined by shaped links.\v"
                          "Each rank sees torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, "
                          "LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT); "
                          "node n is 10.77.0.<n+1>, host name node<n>; its interface eth<k> is "
                          "10.77.<k>.<n+1>. Rank 0 keeps the terminal; the lines "
                          "of the others are marked. "
                          "The exit code is that of the first rank that failed.\n\n"
                          "Example: the speed of one TCP stream\n"
                          "  cluster --nodes 2 -- sh -c 'if [ $RANK = 0 ]; then sleep 1; iperf3 -c "
                          "10.77.0.2; else iperf3 -s -1; fi'";

enum { KEY_NICS = 256, KEY_IPV6 };

static const struct argp_option options[] = {
    {.name = "nodes", .key = 'n', .arg = "N", .doc = "Nodes (default: 2)"},
    {.name = "ranks-per-node", .key = 'r', .arg = "L", .doc = "Ranks on each node (default: 1)"},
    {.name = "link",
     .key = 'l',
     .arg = "RATE",
     .doc = "Rate of each node's link, each way: 1gbit, 100mbit, none (default: 1gbit)"},
    {.name = "nics",
     .key = KEY_NICS,
     .arg = "N",
     .doc = "Interfaces of each node, eth0 and on, each with such a link (default: 1)"},
    {.name = "ipv6", .key = KEY_IPV6, .doc = "Nodes have IPv6 addresses alone: fd77::<k>:<n+1>"},
    {.name = "grace",
     .key = 'g',
     .arg = "TIME",
     .doc = "How long the others may go on after the first rank has failed, before they are killed (default: "
            "5s more "
            "than TW_PEER_TIMEOUT)"},
    {.name = "loopback",
     .key = 'b',
     .doc = "Where no cluster can be made, run on loopback instead of failing"},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    tw_cluster_params_t *params = state->input;
    switch (key) {
    case 'n':
        params->n_nodes = (int)tw_flag_int(state, "nodes", arg, 1, TW_CLUSTER_MAX_NODES);
        return 0;
    case 'r':
        params->ranks_per_node = (int)tw_flag_int(state, "ranks-per-node", arg, 1, TW_CLUSTER_MAX_RANKS);
        return 0;
    case 'l':
        params->link_bps = tw_flag_link(state, "link", arg);
        return 0;
    case KEY_NICS:
        params->n_nics = (int)tw_flag_int(state, "nics", arg, 1, TW_CLUSTER_MAX_NICS);
        return 0;
    case KEY_IPV6:
        params->ipv6 = 1;
        return 0;
    case 'g':
        if (tw_parse_time(arg, &params->grace_sec) != TW_OK || params->grace_sec <= 0) {
            argp_error(state, "--grace: '%s' is not a time such as 15s or 500ms", arg);
        }
        return 0;
    case 'b':
        params->no_loopback = 0;
        return 0;
    case ARGP_KEY_ARGS:
        params->argv = (const char *const *)&state->argv[state->next];
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "no command");
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    tw_cluster_params_t params = {.n_nodes = 2, .ranks_per_node = 1, .link_bps = 1e9, .no_loopback = 1};
    const struct argp argp = {
        .options = options, .parser = parse_option, .args_doc = "-- COMMAND [ARG...]", .doc = doc};
    tw_flags_parse(&argp, argc, argv, ARGP_IN_ORDER, &params);
    int exit_code = 1;
    return tw_cluster_run(&params, &exit_code) == TW_OK ? exit_code : 1;
}
