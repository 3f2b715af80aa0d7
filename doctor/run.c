/* Runs the doctor on a rank, from its own facts to the report. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "doctor/state.h"

#define SECONDS 60.0
#define STREAMS 4

static tw_status_t init_result(const tw_doctor_rank_t *rank, tw_doctor_result_t *result)
{
    result->world = rank->world;
    result->n_nodes = tw_transport_n_nodes(rank->transport);
    result->facts = calloc((size_t)rank->world, sizeof(*result->facts));
    result->leader = calloc((size_t)result->n_nodes, sizeof(*result->leader));
    TW_FAIL_IF(!result->facts || !result->leader, TW_ERR_NO_MEMORY, "rank %d: no memory for %d ranks",
               rank->rank, rank->world);
    for (int r = rank->world - 1; r >= 0; r--) {
        result->leader[tw_transport_node_of(rank->transport, r)] = r;
    }
    return TW_OK;
}

static tw_status_t choose_nonce(tw_doctor_rank_t *rank)
{
    const ssize_t bytes = sizeof(rank->nonce);
    TW_FAIL_IF(rank->rank == 0 && getrandom(rank->nonce, sizeof(rank->nonce), 0) != bytes, TW_ERR_IO,
               "rank 0: no random bytes: %s", strerror(errno));
    return tw_doctor_share(rank, rank->nonce, sizeof(rank->nonce));
}

/** Exchange facts: rank 0 gets those of all ranks, other ranks get those of each node's first rank. */
static tw_status_t exchange_facts(tw_doctor_rank_t *rank, tw_doctor_facts_t *facts,
                                  tw_doctor_result_t *result)
{
    const size_t n_nodes = (size_t)result->n_nodes;
    facts->node = tw_transport_node_of(rank->transport, rank->rank);
    TW_TRY(tw_doctor_compare_clocks(rank, result, facts));
    TW_TRY(tw_doctor_collect(rank, facts, sizeof(*facts), result->facts));
    TW_TRY(rank->rank == 0 ? tw_doctor_check_facts(result) : TW_OK);
    tw_doctor_facts_t *first = calloc(n_nodes, sizeof(*first));
    TW_FAIL_IF(!first, TW_ERR_NO_MEMORY, "rank %d: no memory for %zu nodes", rank->rank, n_nodes);
    for (size_t node = 0; node < n_nodes; node++) {
        first[node] = result->facts[result->leader[node]];
    }
    const tw_status_t status = tw_doctor_share(rank, first, n_nodes * sizeof(*first));
    for (size_t node = 0; node < n_nodes; node++) {
        result->facts[result->leader[node]] = first[node];
    }
    free(first);
    for (int r = 0; r < result->world; r++) { /* the ranks of a node share one clock */
        const tw_doctor_facts_t *leader = tw_doctor_node(result, tw_transport_node_of(rank->transport, r));
        result->facts[r].clock_sec = leader->clock_sec;
        result->facts[r].clock_uncertain_sec = leader->clock_uncertain_sec;
    }
    return status;
}

static tw_status_t doctor_fail(const char *path)
{
    return tw_fail(TW_ERR_IO, "doctor: %s: cannot write: %s", path, strerror(errno));
}

static tw_status_t report(tw_doctor_result_t *result, const tw_doctor_params_t *params, FILE *json)
{
    tw_doctor_findings_t findings;
    tw_doctor_result_sort(result);
    tw_doctor_judge(result, &findings);
    const tw_status_t status = json ? tw_doctor_write_json(result, &findings, json, params->json) : TW_OK;
    tw_doctor_print(result, &findings);
    return fflush(stdout) == 0 ? status : doctor_fail("stdout");
}

/** Do this rank's part, after it has joined the job. */
static tw_status_t examine(tw_doctor_rank_t *rank, tw_doctor_facts_t *facts, const tw_doctor_params_t *params,
                           FILE *json)
{
    const tw_doctor_plan_t plan = {.seconds = params->seconds > 0 ? params->seconds : SECONDS,
                                   .n_streams = params->n_streams > 0 ? params->n_streams : STREAMS};
    tw_doctor_result_t result = {.n_params = params->n_params};
    tw_status_t status = init_result(rank, &result);
    status = status == TW_OK ? tw_doctor_listen(rank, facts) : status;
    status = status == TW_OK ? choose_nonce(rank) : status;
    status = status == TW_OK ? exchange_facts(rank, facts, &result) : status;
    status = status == TW_OK ? tw_doctor_measure(rank, &plan, &result) : status;
    if (status == TW_OK && rank->rank == 0) {
        status = report(&result, params, json);
    }
    tw_doctor_close(rank);
    tw_doctor_result_cleanup(&result);
    return status;
}

/** Read this rank's facts before it joins the job, so that it reports its errors even if joining fails. */
static tw_status_t doctor_run(const tw_job_t *job, const tw_doctor_params_t *params, FILE *json)
{
    tw_doctor_rank_t rank = {.rank = job->rank, .world = job->world};
    tw_doctor_facts_t facts;
    TW_TRY(tw_doctor_facts_read(job, getenv("TW_NET_DEVICES"), &facts));
    TW_TRY(tw_doctor_codecs_measure(&facts));
    memset(rank.listeners, -1, sizeof(rank.listeners));
    memset(rank.probes, -1, sizeof(rank.probes));
    TW_TRY(tw_transport_create(job, &rank.transport));
    const tw_status_t status = examine(&rank, &facts, params, json);
    if (status != TW_OK && status != TW_ERR_PEER) {
        tw_transport_abort(rank.transport, tw_status_string(status));
    }
    tw_transport_destroy(rank.transport);
    return status;
}

static tw_status_t doctor_check(const tw_doctor_params_t *params)
{
    TW_FAIL_IF(!(params->seconds >= 0 && params->seconds <= TW_DOCTOR_SECONDS_MAX), TW_ERR_INVALID,
               "doctor: seconds %g: 0 to %d", params->seconds, TW_DOCTOR_SECONDS_MAX);
    TW_FAIL_IF(params->n_streams != 0 && (params->n_streams < 2 || params->n_streams > TW_DOCTOR_STREAMS_MAX),
               TW_ERR_INVALID, "doctor: n_streams %d: 0, or 2 to %d", params->n_streams,
               TW_DOCTOR_STREAMS_MAX);
    TW_FAIL_IF(
        !(params->n_params == 0 || (params->n_params >= 1 && params->n_params <= TW_DOCTOR_PARAMS_MAX)),
        TW_ERR_INVALID, "doctor: n_params %g: 0, or 1 to %g", params->n_params, TW_DOCTOR_PARAMS_MAX);
    return TW_OK;
}

tw_status_t tw_doctor_run(const tw_doctor_params_t *params)
{
    tw_job_t job;
    FILE *json = NULL;
    TW_TRY(doctor_check(params));
    TW_TRY(tw_job_from_env(&job));
    if (params->json && job.rank == 0 && !(json = fopen(params->json, "we"))) {
        return doctor_fail(params->json);
    }
    tw_status_t status = doctor_run(&job, params, json);
    if (json && fclose(json) != 0 && status == TW_OK) {
        status = doctor_fail(params->json);
    }
    return status;
}
