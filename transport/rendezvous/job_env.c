/** The job, as the launcher's variables describe it.
 *
 *  Host of rank 0: the first known of MASTER_ADDR; 127.0.0.1, if the launcher says that all ranks are on one
 *  host; the first host of Slurm's node list (task 0 runs there), or SLURM_LAUNCH_NODE_IPADDR; the host of
 *  Open MPI's mpirun (right unless that host runs no rank). Port: TW_RENDEZVOUS_PORT; or MASTER_PORT + 1,
 *  because the store of torchrun and PyTorch uses MASTER_PORT; or a port computed from the job id, below the
 *  ephemeral range. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/options.h"
#include "transport/rendezvous/job.h"

#define PORT_FIRST 20000
#define PORT_COUNT 12000

/** A launcher: the variables that reveal it, and how to read the others. */
typedef struct launcher {
    const char *name;
    const char *rank, *world, *local_rank, *local_world;
    /** if not NULL: without this variable, the process is a batch script, which starts the job itself */
    const char *step;
    /** finds master_addr if MASTER_ADDR is not set */
    tw_status_t (*locate)(const struct launcher *launcher, tw_job_t *job);
    void (*job_id)(char *id, size_t id_bytes);
} launcher_t;

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

/** Read an integer in [min, max]. TW_ERR_NOT_FOUND (silent) if the variable is not set. */
static tw_status_t env_int(const char *name, int min, int max, int *out)
{
    const char *text = env(name);
    char *end;
    if (!*text) {
        return TW_ERR_NOT_FOUND;
    }
    errno = 0;
    const long value = strtol(text, &end, 10);
    TW_FAIL_IF(errno || *end || end == text || value < min || value > max, TW_ERR_CONFIG,
               "%s=%s: a whole number from %d to %d is expected", name, text, min, max);
    *out = (int)value;
    return TW_OK;
}

static tw_status_t env_int_needed(const char *name, const char *launcher, int min, int max, int *out)
{
    tw_status_t status = env_int(name, min, max, out);
    if (status != TW_ERR_NOT_FOUND) {
        return status;
    }
    return tw_fail(TW_ERR_CONFIG, "%s is not set, although other variables of %s are", name, launcher);
}

static tw_status_t env_int_optional(const char *name, int min, int max, int *out)
{
    tw_status_t status = name ? env_int(name, min, max, out) : TW_OK;
    return status == TW_ERR_NOT_FOUND ? TW_OK : status;
}

/* ---- where rank 0 is ----------------------------------------------------------------------------------- */

static int all_on_one_host(const tw_job_t *job)
{
    return job->world == 1 || job->local_world == job->world;
}

/** Set the address of rank 0. An IPv6 address may be in brackets. */
static tw_status_t set_master(tw_job_t *job, const char *host)
{
    const size_t length = strlen(host);
    const int brackets = length > 2 && host[0] == '[' && host[length - 1] == ']';
    TW_FAIL_IF(length >= sizeof(job->master_addr), TW_ERR_CONFIG,
               "the name of rank 0's host is too long: %.80s...", host);
    snprintf(job->master_addr, sizeof(job->master_addr), "%.*s", (int)length - 2 * brackets, host + brackets);
    return TW_OK;
}

static tw_status_t locate_nowhere(const launcher_t *launcher, tw_job_t *job)
{
    if (all_on_one_host(job)) {
        return set_master(job, "127.0.0.1");
    }
    return tw_fail(TW_ERR_CONFIG, "%s does not say where rank 0 is: set MASTER_ADDR to its host",
                   launcher->name);
}

static tw_status_t locate_torchrun(const launcher_t *launcher, tw_job_t *job)
{
    if (job->world == 1) {
        return set_master(job, "127.0.0.1");
    }
    return tw_fail(TW_ERR_CONFIG, "MASTER_ADDR is not set, although other variables of %s are",
                   launcher->name);
}

static tw_status_t locate_openmpi(const launcher_t *launcher, tw_job_t *job)
{
    if (all_on_one_host(job) ||
        tw_contact_host(env("OMPI_MCA_orte_hnp_uri"), job->master_addr, sizeof(job->master_addr))) {
        return locate_nowhere(launcher, job);
    }
    tw_info("rank %d: MASTER_ADDR is not set; expecting rank 0 on mpirun's host, %s", job->rank,
            job->master_addr);
    return TW_OK;
}

static tw_status_t locate_slurm(const launcher_t *launcher, tw_job_t *job)
{
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"};
    if (all_on_one_host(job)) {
        return set_master(job, "127.0.0.1");
    }
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (!tw_hostlist_first(env(lists[i]), job->master_addr, sizeof(job->master_addr))) {
            return TW_OK;
        }
    }
    if (*env("SLURM_LAUNCH_NODE_IPADDR")) {
        return set_master(job, env("SLURM_LAUNCH_NODE_IPADDR"));
    }
    return locate_nowhere(launcher, job);
}

/* ---- job ids: what a token and a port are made of when nobody gives them ------------------------------- */

static void id_torchrun(char *id, size_t id_bytes)
{
    snprintf(id, id_bytes, "%s:%s:%s", env("TORCHELASTIC_RUN_ID"), env("TORCHELASTIC_RESTART_COUNT"),
             env("MASTER_PORT"));
}

/** Write the job's id. Open MPI 4 gives every job 128 random bits as the key of its network layers. */
static void id_openmpi(char *id, size_t id_bytes)
{
    const char *job = env("OMPI_MCA_ess_base_jobid");
    snprintf(id, id_bytes, "%s:%s", *job ? job : env("PMIX_NAMESPACE"),
             env("OMPI_MCA_orte_precondition_transports"));
}

static void id_pmi(char *id, size_t id_bytes)
{
    const char *job = env("PMI_JOBID");
    snprintf(id, id_bytes, "%s:%s", *job ? job : env("PMI_ID"), env("MASTER_PORT"));
}

static void id_slurm(char *id, size_t id_bytes)
{
    snprintf(id, id_bytes, "%s.%s", env("SLURM_JOB_ID"), env("SLURM_STEP_ID"));
}

/* ---- launchers ----------------------------------------------------------------------------------------- */

/** The launchers, in the order of trying: one that starts jobs inside another's allocation comes first. */
static const launcher_t launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, locate_torchrun, id_torchrun},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, locate_openmpi, id_openmpi},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, locate_nowhere, id_pmi},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_ID", locate_slurm,
     id_slurm},
};

static const launcher_t *find_launcher(void)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const launcher_t *launcher = &launchers[i];
        if (*env(launcher->rank) && (!launcher->step || *env(launcher->step))) {
            return launcher;
        }
    }
    return *env("WORLD_SIZE") ? &launchers[0] : NULL; /* a part of torchrun's set */
}

static tw_status_t read_ranks(const launcher_t *launcher, tw_job_t *job)
{
    TW_TRY(env_int_needed(launcher->world, launcher->name, 1, TW_JOB_WORLD_MAX, &job->world));
    TW_TRY(env_int_needed(launcher->rank, launcher->name, 0, job->world - 1, &job->rank));
    TW_TRY(env_int_optional(launcher->local_rank, 0, job->world - 1, &job->local_rank));
    TW_TRY(env_int_optional(launcher->local_world, 1, job->world, &job->local_world));
    if (job->local_world < 0 && *env("SLURM_NODEID")) {
        job->local_world = tw_tasks_per_node(env("SLURM_STEP_TASKS_PER_NODE"), atoi(env("SLURM_NODEID")));
    }
    TW_FAIL_IF(job->local_world > 0 && job->local_rank >= job->local_world, TW_ERR_CONFIG,
               "%s=%d, but there are %d ranks on this node", launcher->local_rank, job->local_rank,
               job->local_world);
    return TW_OK;
}

/** Return the FNV-1a hash. Any evenly distributed hash is good enough. */
static uint32_t text_hash(const char *text)
{
    uint32_t hash = 2166136261u;
    for (; *text; text++) {
        hash = (hash ^ (uint8_t)*text) * 16777619u;
    }
    return hash;
}

static tw_status_t read_port(const tw_transport_options_t *options, const char *job_id, tw_job_t *job)
{
    int master_port = -1;
    tw_status_t status = env_int_optional("MASTER_PORT", 1, 65534, &master_port);
    if (options->rendezvous_port) {
        job->master_port = (int)options->rendezvous_port;
    } else if (master_port > 0) {
        job->master_port = master_port + 1;
    } else {
        job->master_port = PORT_FIRST + (int)(text_hash(job_id) % PORT_COUNT);
    }
    return status;
}

static tw_status_t read_token(const tw_transport_options_t *options, const char *job_id, tw_job_t *job)
{
    const int given = options->job_token[0] != '\0';
    const int length = given ? snprintf(job->token, sizeof(job->token), "%s", options->job_token)
                             : snprintf(job->token, sizeof(job->token), "%s %s", job->launcher, job_id);
    TW_FAIL_IF(length >= (int)sizeof(job->token), TW_ERR_CONFIG, "TW_JOB_TOKEN: at most %zu characters",
               sizeof(job->token) - 1);
    if (!given && job->rank == 0 && job->world > 1) {
        TW_LOG_AT(all_on_one_host(job) ? TW_LOG_DEBUG : TW_LOG_WARN,
                  "TW_JOB_TOKEN is not set: the one made of %s's job id guards the rendezvous against "
                  "accidents, not against attackers",
                  job->launcher);
    }
    return TW_OK;
}

static tw_status_t job_read(const launcher_t *launcher, const tw_transport_options_t *options, tw_job_t *job)
{
    char job_id[160];
    job->launcher = launcher->name;
    launcher->job_id(job_id, sizeof(job_id));
    TW_TRY(read_ranks(launcher, job));
    TW_TRY(*env("MASTER_ADDR") ? set_master(job, env("MASTER_ADDR")) : launcher->locate(launcher, job));
    TW_TRY(read_port(options, job_id, job));
    return read_token(options, job_id, job);
}

int tw_job_launched(void)
{
    return find_launcher() != NULL;
}

tw_status_t tw_job_ranks_from_env(tw_job_t *job)
{
    const launcher_t *launcher = find_launcher();
    *job = (tw_job_t){.local_rank = -1, .local_world = -1};
    return launcher ? read_ranks(launcher, job) : TW_ERR_NOT_FOUND;
}

tw_status_t tw_job_from_env(tw_job_t *job)
{
    const launcher_t *launcher = find_launcher();
    tw_transport_options_t options;
    *job = (tw_job_t){.rank = 0, .world = 1, .local_rank = -1, .local_world = -1, .launcher = "single"};
    if (!launcher) {
        job->local_rank = 0;
        job->local_world = 1;
        return set_master(job, "127.0.0.1");
    }
    TW_TRY(tw_config_init(&tw_transport_config_table, &options));
    tw_status_t status = job_read(launcher, &options, job);
    tw_config_cleanup(&tw_transport_config_table, &options);
    return status;
}
