/* Measures one TCP stream from node 0 to node 1 with iperf3, and reads the congestion control in use. */
#include <stdlib.h>
#include <string.h>

#include "bench/collectives/bench.h"
#include "bench/congestion.h"
#include "bench/iperf.h"

static int first_rank_of(const tw_bench_rank_t *rank, int node)
{
    int r = 0;
    while (r < rank->world - 1 && rank->node_of[r] != node) {
        r++;
    }
    return r;
}

tw_status_t tw_bench_tcp_rate(tw_bench_rank_t *rank, double *bps)
{
    *bps = 0;
    if (rank->options->no_iperf || rank->kind != TW_CLUSTER_NODES || rank->n_nodes < 2) {
        return TW_OK;
    }
    FILE *server = rank->rank == first_rank_of(rank, 1) ? bench_iperf_serve() : NULL;
    double own = 0;
    tw_status_t status = bench_barrier(rank->coll);
    if (status == TW_OK && rank->rank == 0) {
        own = bench_iperf_run();
    }
    status = status == TW_OK ? bench_most(rank->coll, own, bps) : status;
    bench_iperf_end(server);
    return status;
}

tw_status_t tw_bench_congestion(tw_bench_rank_t *rank, char list[TW_BENCH_REASON_BYTES])
{
    char own[64] = "";
    char(*all)[sizeof(own)] = calloc((size_t)rank->world, sizeof(own));
    list[0] = '\0';
    if (!all) {
        return tw_bench_no_memory(rank, (size_t)rank->world * sizeof(own));
    }
    tw_congestion_in_use(own, sizeof(own));
    tw_status_t status = bench_gather(rank->coll, own, sizeof(own), all);
    for (int r = 0; r < rank->world && status == TW_OK; r++) {
        char *rest = all[r], *name;
        while ((name = strsep(&rest, ","))) {
            tw_congestion_add(name, list, TW_BENCH_REASON_BYTES);
        }
    }
    free(all);
    return status;
}
