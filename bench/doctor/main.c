/* The doctor's command line, and what a rank does. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "bench/doctor/doctor.h"
#include "flags/flags.h"

static const char doc[] = "Examines a cluster: started on every node by the launcher of the jobs (torchrun, "
                          "mpirun, srun), it measures "
                          "what TCP makes of every link, reads the settings that matter, and ends in three "
                          "lines: what is slow, why it "
                          "might be, and what to change.\v"
                          "Measured, from node to node, with plain sockets on the devices that jobs use "
                          "(TW_NET_DEVICES, or the one on "
                          "the way to rank 0): every pair alone, several streams beside one, all nodes at "
                          "once, packets sent again, "
                          "congestion control in effect, the largest packet that passes. Of each rank: "
                          "device, NUMA node, clock, codecs' "
                          "speed; of each node: open files, memory for replicas, /dev/shm, sockets' buffers. "
                          "With more nodes than there "
                          "is time for pairs, pairs are measured side by side.\n\n"
                          "Rank 0 prints. The exit code is 0 whatever is found, 1 when a rank has failed or "
                          "a file cannot be written.\n\n"
                          "Example: srun -N 8 --ntasks-per-node 1 doctor --json doctor.json";

typedef struct options {
    doctor_plan_t plan;
    const char *json;
} options_t;

#define AT(member) offsetof(options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"seconds", "60s", "TIME", "For all links together, about; not less than 0.3 s for each step",
               TW_CONFIG_TIME, AT(plan.seconds), 0.1, 100, NULL},
     .letter = 's',
     .group = 1},
    {.field = {"streams", "4", "N", "Where several streams are measured, so many", TW_CONFIG_INT32,
               AT(plan.n_streams), 2, DOCTOR_STREAMS_MAX, NULL},
     .group = 1},
    {.field = {"json", NULL, "FILE", "Write everything as a JSON object, on rank 0 (default: do not)",
               TW_CONFIG_STRING, AT(json), 0, 0, NULL},
     .group = 1},
};

void doctor_result_cleanup(doctor_result_t *result)
{
    free(result->facts);
    free(result->leader);
    free(result->flows);
    free(result->paths);
    *result = (doctor_result_t){0};
}

static tw_status_t init_result(const doctor_rank_t *rank, doctor_result_t *result)
{
    result->n_ranks = rank->world;
    result->n_nodes = tw_transport_n_nodes(rank->transport);
    result->facts = calloc((size_t)rank->world, sizeof(*result->facts));
    result->leader = calloc((size_t)result->n_nodes, sizeof(*result->leader));
    if (!result->facts || !result->leader) {
        tw_error("rank %d: no memory for %d ranks", rank->rank, rank->world);
        return TW_ERR_NO_MEMORY;
    }
    for (int r = rank->world - 1; r >= 0; r--) {
        result->leader[tw_transport_node_of(rank->transport, r)] = r;
    }
    return TW_OK;
}

/* Everybody knows everybody's facts then. */
static tw_status_t exchange_facts(doctor_rank_t *rank, doctor_facts_t *facts, doctor_result_t *result)
{
    const size_t bytes = sizeof(*facts);
    if (getrandom(rank->nonce, sizeof(rank->nonce), 0) !=
        (ssize_t)sizeof(rank->nonce)) { /* rank 0's counts */
        tw_error("rank %d: no random bytes: %s", rank->rank, strerror(errno));
        return TW_ERR_IO;
    }
    TW_TRY(doctor_share(rank, rank->nonce, sizeof(rank->nonce)));
    facts->node = tw_transport_node_of(rank->transport, rank->rank);
    TW_TRY(doctor_compare_clocks(rank, facts));
    TW_TRY(doctor_collect(rank, facts, bytes, result->facts));
    return doctor_share(rank, result->facts, bytes * (size_t)rank->world);
}

static tw_status_t report(const doctor_result_t *result, const options_t *options, FILE *json)
{
    doctor_findings_t findings;
    doctor_judge(result, &findings);
    const tw_status_t status = json ? doctor_write_json(result, &findings, json, options->json) : TW_OK;
    doctor_print(result, &findings);
    return fflush(stdout) == 0 ? status : TW_ERR_IO;
}

/* In the job: what this rank does. */
static tw_status_t examine(doctor_rank_t *rank, doctor_facts_t *facts, const options_t *options, FILE *json)
{
    doctor_result_t result = {0};
    tw_status_t status = init_result(rank, &result);
    if (status == TW_OK) {
        status = doctor_listen(rank, facts);
    }
    if (status == TW_OK) {
        status = exchange_facts(rank, facts, &result);
    }
    if (status == TW_OK) {
        status = doctor_measure(rank, &options->plan, &result);
    }
    if (status == TW_OK && rank->rank == 0) {
        status = report(&result, options, json);
    }
    doctor_close(rank);
    doctor_result_cleanup(&result);
    return status;
}

/* This rank knows itself before it meets others: what is wrong with it is its own error. */
static tw_status_t run(const tw_job_t *job, const options_t *options, FILE *json)
{
    doctor_rank_t rank = {.rank = job->rank, .world = job->world};
    doctor_facts_t facts;
    TW_TRY(doctor_facts_read(job, getenv("TW_NET_DEVICES"), &facts));
    TW_TRY(doctor_codecs_measure(&facts));
    memset(rank.listeners, -1, sizeof(rank.listeners));
    memset(rank.probes, -1, sizeof(rank.probes));
    TW_TRY(tw_transport_ucx_create(job, &rank.transport));
    const tw_status_t status = examine(&rank, &facts, options, json);
    if (status != TW_OK && status != TW_ERR_PEER) {
        tw_transport_abort(rank.transport, tw_status_string(status));
    }
    tw_transport_destroy(rank.transport);
    return status;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc};
    options_t options = {0};
    tw_job_t job;
    FILE *json = NULL;
    tw_flags_read(&flags, argc, argv, &options);
    if (tw_job_from_env(&job) != TW_OK) {
        return 1;
    }
    if (options.json && job.rank == 0 && !(json = fopen(options.json, "we"))) {
        tw_error("doctor: %s: cannot write: %s", options.json, strerror(errno));
        return 1;
    }
    tw_status_t status = run(&job, &options, json);
    if (json && fclose(json) != 0 && status == TW_OK) {
        tw_error("doctor: %s: cannot write: %s", options.json, strerror(errno));
        status = TW_ERR_IO;
    }
    return status != TW_OK;
}
