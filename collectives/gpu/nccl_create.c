/** Makes the communicator of NCCL that a communicator uses. It is split off an existing one, or the ranks
 *  make it after they have met over the transport. */
#include "collectives/gpu/gpu.h"

#if defined(TW_HAVE_CUDA) && defined(TW_HAVE_NCCL)

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "collectives/gpu/nccl_api.h"
#include "collectives/model/bootstrap.h"

#define POLL_NS 20000
#define SILENT_SEC 60.0 /**< after this time a rank that still waits logs a warning, once */

/* ---- nodes --------------------------------------------------------------------------------------------- */

/** Returns an id of the host. Without TW_NODE_ID it is made as in NCCL, so both see the same nodes. */
static uint64_t own_node_id(void)
{
    const char *names[] = {getenv("TW_NODE_ID"), getenv("NCCL_HOSTID")};
    char text[512] = "";
    size_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i] && names[i][0] != '\0') {
            return XXH3_64bits(names[i], strlen(names[i]));
        }
    }
    if (gethostname(text, sizeof(text) / 2) != 0) {
        tw_warn("gethostname failed: nodes are told apart by their boot alone");
    }
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    n = strlen(text);
    n += file ? fread(text + n, 1, sizeof(text) - n, file) : 0;
    if (file) {
        (void)fclose(file);
    }
    return XXH3_64bits(text, n);
}

/** What each rank tells all others when they meet. */
typedef struct introduction {
    uint64_t node, process;
    uint64_t terms; /**< see tw_coll_nccl_params_t */
} introduction_t;

/** Make a number that is different in every process of the job. */
static tw_status_t own_process_id(uint64_t *id)
{
    if (getrandom(id, sizeof(*id), 0) == (ssize_t)sizeof(*id)) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_IO, "getrandom: %s", strerror(errno));
}

static uint64_t process_id;
static tw_status_t process_status;

static void set_process_id(void)
{
    process_status = own_process_id(&process_id);
}

static tw_status_t introduce(uint64_t terms, introduction_t *own)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, set_process_id);
    *own = (introduction_t){own_node_id(), process_id, terms};
    return process_status;
}

/* ---- telling the others -------------------------------------------------------------------------------- */

/** Memory of an exchange that has ended, kept for a later one. Freeing it would wait for all work on the
 *  device, perhaps for an operation of another communicator, while the other ranks of that operation wait
 *  here for this rank. */
typedef struct spare {
    SLIST_ENTRY(spare) link;
    void *memory;
    size_t bytes;
    int index; /**< index of its device */
} spare_t;

static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;
static SLIST_HEAD(, spare) spares = SLIST_HEAD_INITIALIZER(spares);

static spare_t *take_spare(size_t bytes, int index)
{
    spare_t *spare;

    (void)pthread_mutex_lock(&spares_lock);
    SLIST_FOREACH(spare, &spares, link)
    {
        if (spare->bytes >= bytes && spare->index == index) {
            SLIST_REMOVE(&spares, spare, spare, link);
            break;
        }
    }
    (void)pthread_mutex_unlock(&spares_lock);
    return spare;
}

static void keep_spare(spare_t *spare)
{
    (void)pthread_mutex_lock(&spares_lock);
    SLIST_INSERT_HEAD(&spares, spare, link);
    (void)pthread_mutex_unlock(&spares_lock);
}

static tw_status_t find_memory(const tw_gpu_device_t *device, size_t bytes, spare_t **out)
{
    int index;
    TW_TRY(device->current(device, &index));
    spare_t *spare = take_spare(bytes, index);
    if (spare) {
        *out = spare;
        return TW_OK;
    }
    spare = malloc(sizeof(*spare));
    if (!spare) {
        return TW_ERR_NO_MEMORY;
    }
    *spare = (spare_t){.bytes = bytes, .index = index};
    tw_status_t status = device->alloc(device, bytes, 0, &spare->memory);
    if (status != TW_OK) {
        free(spare);
        return status;
    }
    *out = spare;
    return TW_OK;
}

/** Memory and stream of one exchange of introductions. */
typedef struct meeting {
    const tw_gpu_device_t *device;
    tw_gpu_wire_t *wire;
    int rank, world;
    introduction_t *memory; /**< [world], on the device */
    tw_stream_t stream;
    tw_gpu_event_t done;
    int is_stuck; /**< 1: some enqueued work has not ended, and may never end */
} meeting_t;

static tw_status_t enqueue_gather(const meeting_t *m)
{
    tw_gpu_native_t gather = {TW_COLL_ALLGATHER,   TW_TYPE_BYTE, TW_COLL_SUM,
                              m->memory + m->rank, m->memory,    sizeof(*m->memory)};
    tw_status_t status = m->wire->begin(m->wire);

    if (status == TW_OK) {
        status = m->wire->native(m->wire, &gather, m->stream);
    }
    tw_status_t end_status = m->wire->end(m->wire);
    return status == TW_OK ? end_status : status;
}

/** Wait for the gather to end. There is no time limit, as a rank may be late by hours. An error, or an abort
 *  of the communicator, ends the wait. */
static tw_status_t nccl_wait_for(const meeting_t *m)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};
    double silent_until_sec = tw_time_sec() + SILENT_SEC;
    tw_status_t status = m->device->event_query(m->device, m->done);

    while (status == TW_IN_PROGRESS) {
        (void)nanosleep(&nap, NULL);
        status = m->wire->error(m->wire);
        if (status == TW_OK) {
            status = m->device->event_query(m->device, m->done);
        }
        if (status == TW_IN_PROGRESS && tw_time_sec() >= silent_until_sec) {
            tw_warn("rank %d: not all ranks of the communicator have come to its first call yet; it waits",
                    m->rank);
            silent_until_sec = INFINITY;
        }
    }
    return status;
}

static tw_status_t nccl_gather(const meeting_t *m, const introduction_t *own, introduction_t *all)
{
    const tw_gpu_device_t *device = m->device;
    TW_TRY(device->copy(device, m->memory + m->rank, own, sizeof(*own), m->stream));
    TW_TRY(enqueue_gather(m));
    TW_TRY(device->copy(device, all, m->memory, (size_t)m->world * sizeof(*all), m->stream));
    TW_TRY(device->event_record(device, m->done, m->stream));
    return nccl_wait_for(m);
}

/** Exchange introductions. If the exchange does not end, its memory stays in use and is leaked. */
static tw_status_t meet(meeting_t *m, const introduction_t *own, introduction_t *all)
{
    const tw_gpu_device_t *device = m->device;
    spare_t *memory = NULL;
    tw_status_t status = find_memory(device, (size_t)m->world * sizeof(*all), &memory);

    if (status == TW_OK) {
        m->memory = memory->memory;
        status = device->event_create(device, &m->done);
    }
    if (status == TW_OK) {
        status = device->stream_create(device, &m->stream);
    }
    if (status == TW_OK) {
        status = nccl_gather(m, own, all);
    }
    m->is_stuck = m->stream && device->event_query(device, m->done) == TW_IN_PROGRESS;
    if (m->is_stuck) {
        return status;
    }
    if (m->stream) {
        device->stream_destroy(device, m->stream);
    }
    if (m->done) {
        device->event_destroy(device, m->done);
    }
    if (memory) {
        keep_spare(memory);
    }
    return status;
}

/** Check the introductions. All ranks have the same ones and reach the same verdict. */
static tw_status_t nccl_judge(const introduction_t *all, int rank, int world, int is_shared)
{
    for (int r = 0; r < world; r++) {
        TW_FAIL_IF(all[r].terms != all[0].terms, TW_ERR_MISMATCH,
                   "rank %d: ranks 0 and %d were told different things to do", rank, r);
        for (int other = 0; is_shared && other < r; other++) {
            if (all[r].process == all[other].process) {
                tw_warn("rank %d: ranks %d and %d are one process: each needs its own", rank, other, r);
                return TW_ERR_UNSUPPORTED;
            }
        }
    }
    return TW_OK;
}

static tw_status_t nccl_exchange(meeting_t *m, const tw_coll_nccl_params_t *params, uint64_t *node_ids)
{
    introduction_t *all = calloc((size_t)m->world, sizeof(*all));
    introduction_t own;
    tw_status_t status = all ? introduce(params->terms, &own) : TW_ERR_NO_MEMORY;

    if (status == TW_OK) {
        status = meet(m, &own, all);
    }
    if (status == TW_OK) {
        status = nccl_judge(all, m->rank, m->world, params->shared);
    }
    for (int r = 0; r < m->world && status == TW_OK; r++) {
        node_ids[r] = all[r].node;
    }
    if (!m->is_stuck) { /* otherwise a copy to `all` may still be under way */
        free(all);
    }
    return status;
}

/* ---- from a communicator ------------------------------------------------------------------------------- */

static tw_status_t split_off(const tw_nccl_api_t *api, ncclComm_t parent, int rank, ncclComm_t *own)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    tw_status_t status;

    *own = NULL;
    config.blocking = 1;
    status =
        tw_nccl_check(api, rank, parent, api->ncclCommSplit(parent, 0, rank, own, &config), "ncclCommSplit");
    return status == TW_OK ? tw_nccl_check(api, rank, *own, ncclInProgress, "ncclCommSplit") : status;
}

static tw_status_t create_wire(const tw_nccl_api_t *api, tw_coll_setup_t *setup)
{
    const tw_coll_nccl_params_t *params = setup->comm;
    ncclComm_t comm = params->comm;
    TW_TRY(params->shared ? TW_OK : split_off(api, params->comm, setup->rank, &comm));
    setup->nccl = tw_nccl_wire_create(api, comm, setup->rank, params->shared, params->gate);
    return setup->nccl ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t ask_ranks(const tw_nccl_api_t *api, ncclComm_t comm, tw_coll_setup_t *setup)
{
    TW_TRY(tw_nccl_check(api, -1, comm, api->ncclCommUserRank(comm, &setup->rank), "ncclCommUserRank"));
    return tw_nccl_check(api, setup->rank, comm, api->ncclCommCount(comm, &setup->world), "ncclCommCount");
}

static tw_status_t join_comm(const tw_nccl_api_t *api, tw_coll_setup_t *setup)
{
    const tw_coll_nccl_params_t *params = setup->comm;
    TW_TRY(tw_coll_gate_enter(params->gate));
    tw_status_t status = ask_ranks(api, params->comm, setup);
    tw_coll_gate_leave(params->gate);
    TW_TRY(status);
    setup->node_ids = calloc((size_t)setup->world, sizeof(*setup->node_ids));
    TW_TRY(setup->node_ids ? create_wire(api, setup) : TW_ERR_NO_MEMORY);
    meeting_t meeting = {
        .device = setup->device, .wire = setup->nccl, .rank = setup->rank, .world = setup->world};
    status = nccl_exchange(&meeting, params, setup->node_ids);
    if (status != TW_OK) {
        setup->nccl->destroy(setup->nccl);
        setup->nccl = NULL;
    }
    return status;
}

/* ---- over a transport ---------------------------------------------------------------------------------- */

/** What the first rank sends to the others: NCCL's id of the new communicator, or an error. */
typedef struct invitation {
    tw_status_t status;
    ncclUniqueId id;
} invitation_t;

static tw_status_t share_id(const tw_nccl_api_t *api, const tw_coll_params_t *over, const tw_topo_t *topo,
                            ncclUniqueId *id)
{
    tw_bootstrap_t boot = {.transport = over->transport, .topo = topo, .tag = TW_COLL_MEETING_TAG};
    invitation_t invitation = {TW_OK, {{0}}};

    if (topo->rank == 0) {
        invitation.status =
            tw_nccl_check(api, 0, NULL, api->ncclGetUniqueId(&invitation.id), "ncclGetUniqueId");
    }
    TW_TRY(tw_bootstrap_broadcast(&boot, &invitation, sizeof(invitation)));
    if (invitation.status != TW_OK && topo->rank > 0) {
        tw_error("rank %d: rank 0 has no id for a communicator of NCCL (%s)", topo->rank,
                 tw_status_string(invitation.status));
    }
    *id = invitation.id;
    return invitation.status;
}

static tw_status_t nccl_join(const tw_nccl_api_t *api, const tw_coll_params_t *over, const tw_topo_t *topo,
                             ncclComm_t *comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    tw_status_t status = share_id(api, over, topo, &id);

    *comm = NULL;
    config.blocking = 1;
    if (status != TW_OK) {
        return status;
    }
    ncclResult_t result = api->ncclCommInitRankConfig(comm, topo->world, id, topo->rank, &config);
    return tw_nccl_check(api, topo->rank, *comm, result, "ncclCommInitRankConfig");
}

static tw_status_t join_over(const tw_nccl_api_t *api, tw_coll_setup_t *setup)
{
    const tw_coll_params_t *over = setup->params;
    tw_topo_t topo;
    ncclComm_t comm;
    TW_TRY(tw_topo_init(&topo, over->transport, over->ranks, over->n_ranks));
    tw_status_t status = nccl_join(api, over, &topo, &comm);
    if (status == TW_OK) {
        setup->nccl = tw_nccl_wire_create(api, comm, topo.rank, 0, NULL);
        status = setup->nccl ? TW_OK : TW_ERR_NO_MEMORY;
    }
    tw_topo_cleanup(&topo);
    return status;
}

tw_status_t tw_nccl_join(tw_coll_setup_t *setup)
{
    tw_nccl_api_t api;
    TW_TRY(tw_nccl_load(&api));
    return setup->comm ? join_comm(&api, setup) : join_over(&api, setup);
}

#else

tw_status_t tw_nccl_join(tw_coll_setup_t *setup)
{
    (void)setup;
    return tw_fail(TW_ERR_UNSUPPORTED,
                   "collectives over NCCL are not there: no CUDA and NCCL were found when this was built");
}

#endif
