#include "bench/iperf.h"

#include <string.h>

#include <jansson.h>

#include "cluster/cluster.h"

#define LINE_BYTES 256

/** `timeout` ends the server if no client reaches it. */
FILE *bench_iperf_serve(void)
{
    FILE *server = popen("exec timeout 20 iperf3 -s -1 --forceflush 2>/dev/null", "re");
    char line[LINE_BYTES];
    while (server && fgets(line, sizeof(line), server) && !strstr(line, "listening")) {
    }
    return server;
}

void bench_iperf_end(FILE *server)
{
    if (server) {
        (void)pclose(server);
    }
}

double bench_iperf_run(void)
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
