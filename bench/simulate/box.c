/* Real ranks. */
#include "bench/simulate/box.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/** Before there is a communicator, so all tags are free. */
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
    TW_TRY(tw_transport_ucx_create(&job, &box->transport));
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

/** The slowest rank's, on all of them. */
static tw_status_t slowest(sim_box_t *box, double own, double *most)
{
    double *all = calloc((size_t)box->world, sizeof(*all));
    tw_coll_segment_t segment = {.src = &own, .dst = all, .n_elems = (size_t)box->world * sizeof(own)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1, .factor = 1};
    *most = 0.0;
    if (!all) {
        tw_error("simulate: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_coll_run(box->coll, &args);
    for (int r = 0; r < box->world && status == TW_OK; r++) {
        *most = all[r] > *most ? all[r] : *most;
    }
    free(all);
    return status;
}

static tw_status_t run_once(sim_box_t *box, const tw_coll_args_t *args, double *sec, double *chunk_bytes)
{
    const tw_coll_args_t barrier = {.op = TW_COLL_BARRIER, .factor = 1};
    tw_coll_request_t *request;
    tw_coll_plan_t plan;
    TW_TRY(tw_coll_run(box->coll, &barrier));
    double begin = tw_time_sec();
    TW_TRY(tw_coll_post(box->coll, args, &request));
    tw_coll_request_plan(request, &plan);
    TW_TRY(tw_coll_wait(request));
    *chunk_bytes = (double)plan.chunk_bytes;
    return slowest(box, tw_time_sec() - begin, sec);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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
    qsort(times, (size_t)n, sizeof(*times), compare);
    result->sec = times[n / 2];
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
    if (!memory) {
        tw_error("simulate: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = run_times(box, &args, n_times, result);
    free(memory);
    return status;
}
