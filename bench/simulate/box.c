/* Real ranks. */
#include "bench/simulate/box.h"

#include <math.h>
#include <stdlib.h>

#include "bench/exchange.h"
#include "cluster/cluster.h"
#include "collectives/model/measuring.h"

#define MOST_TIMES 100
#define MODEL_SEC 30.0

/* ---- a rank -------------------------------------------------------------------------------------------- */

int sim_box_run(const sim_cluster_t *cluster, char **argv)
{
    tw_cluster_params_t params = {.n_nodes = cluster->n_nodes,
                                  .ranks_per_node = cluster->ranks_per_node,
                                  .link_bps = isfinite(cluster->link_Bps) ? 8.0 * cluster->link_Bps : 0.0,
                                  .window_bytes = SIM_WINDOW_PACKETS * (size_t)cluster->packet_bytes,
                                  .argv = (const char *const *)argv,
                                  .no_loopback = 1};
    int exit_code = 1;
    return tw_cluster_run_self(&params, &exit_code) == TW_OK ? exit_code : 1;
}

/** Measure the cost model, before there is a communicator: all tags are free then. */
static tw_status_t measure_model(sim_box_t *box)
{
    tw_topo_t topo;
    TW_TRY(tw_topo_init(&topo, box->transport, NULL, box->world));
    tw_bootstrap_t boot = {.transport = box->transport, .topo = &topo, .timeout_sec = MODEL_SEC};
    tw_status_t status = tw_coll_model_measure(&boot, &box->model);
    tw_topo_cleanup(&topo);
    return status;
}

tw_status_t sim_box_init(sim_box_t *box)
{
    tw_job_t job;
    *box = (sim_box_t){0};
    TW_TRY(tw_job_from_env(&job));
    TW_TRY(tw_transport_create(&job, &box->transport));
    box->rank = job.rank;
    box->world = job.world;
    TW_TRY(measure_model(box));
    return tw_coll_create(&(tw_coll_params_t){.transport = box->transport}, &box->coll);
}

void sim_box_cleanup(sim_box_t *box)
{
    tw_coll_destroy(box->coll);
    tw_transport_destroy(box->transport);
}

/* ---- an operation -------------------------------------------------------------------------------------- */

static tw_status_t run_once(sim_box_t *box, const tw_coll_args_t *args, double *sec, double *chunk_bytes)
{
    tw_coll_request_t *request;
    tw_coll_plan_t plan;
    TW_TRY(bench_barrier(box->coll));
    double begin = tw_time_sec();
    TW_TRY(tw_coll_post(box->coll, args, &request));
    tw_coll_request_plan(request, &plan);
    TW_TRY(tw_coll_wait(request));
    *chunk_bytes = (double)plan.chunk_bytes;
    return bench_most(box->coll, tw_time_sec() - begin, sec);
}

static tw_status_t run_times(sim_box_t *box, const tw_coll_args_t *args, int n_times,
                             sim_box_result_t *result)
{
    double times[MOST_TIMES], first;
    int n = n_times < MOST_TIMES ? n_times : MOST_TIMES;
    TW_TRY(run_once(box, args, &first, &result->chunk_bytes)); /* plans */
    for (int i = 0; i < n; i++) {
        TW_TRY(run_once(box, args, &times[i], &result->chunk_bytes));
    }
    result->sec = tw_median(times, (size_t)n); /* sorts them */
    result->least_sec = times[0];
    result->most_sec = times[n - 1];
    return TW_OK;
}

tw_status_t sim_box_measure(sim_box_t *box, const tw_coll_algo_info_t *algo, size_t bytes, int n_times,
                            sim_box_result_t *result)
{
    size_t n_elems = bytes / tw_type_bytes(TW_TYPE_BF16), world = (size_t)box->world;
    char *memory = calloc(2, n_elems * tw_type_bytes(TW_TYPE_BF16) + world);
    tw_coll_segment_t segment = {.src = memory, .dst = memory ? memory + bytes : NULL, .n_elems = n_elems};
    tw_coll_args_t args = {.op = algo->op,
                           .type = TW_TYPE_BF16,
                           .algo = algo->name,
                           .segments = &segment,
                           .n_segments = 1,
                           .factor = 1};
    TW_FAIL_IF(!memory, TW_ERR_NO_MEMORY, "simulate: out of memory");
    tw_status_t status = run_times(box, &args, n_times, result);
    free(memory);
    return status;
}
