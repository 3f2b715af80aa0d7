/* One stream of iperf3 from node 0 to node 1, between measurements of ours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "bench/net/net.h"

#define LINE_BYTES 256

/** On node 1: it listens when this returns, if there is one at all. */
static FILE *start_server(void)
{
    FILE *server = popen("exec iperf3 -s -1 --forceflush 2>/dev/null", "re");
    char line[LINE_BYTES];

    while (server && fgets(line, sizeof(line), server) && !strstr(line, "listening")) {
    }
    return server;
}

static double run_client(void)
{
    char address[TW_CLUSTER_ADDRESS_BYTES], command[LINE_BYTES];

    (void)snprintf(command, sizeof(command), "exec iperf3 -c %s -t 2 -J 2>/dev/null",
                   tw_cluster_node_address(1, address));
    FILE *client = popen(command, "re");
    if (!client) {
        return 0;
    }
    json_t *reply = json_loadf(client, 0, NULL);
    const json_t *received = json_object_get(json_object_get(reply, "end"), "sum_received");
    const double bps = json_number_value(json_object_get(received, "bits_per_second"));
    json_decref(reply);
    (void)pclose(client);
    return bps;
}

tw_status_t net_iperf(const net_end_t *end, double *bps)
{
    double own = 0, other = 0;
    FILE *server = NULL;

    *bps = 0;
    if (tw_cluster_kind() != TW_CLUSTER_NODES) {
        return TW_OK;
    }
    if (end->rank) {
        server = start_server();
    }
    tw_status_t status = net_end_meet(end);
    if (!status && !end->rank) {
        own = run_client();
    }
    if (!status) {
        status = net_end_swap(end, own, &other);
    }
    if (server) {
        (void)pclose(server);
    }
    *bps = end->rank ? other : own;
    return status;
}
