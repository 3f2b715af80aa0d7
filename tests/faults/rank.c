/* A rank of the campaign's job: meets the others, makes communicators, runs operations, and leaves. */
#include "tests/faults/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/transport.h"

/* Time that ranks wait until rank 0 has left for sure. */
#define LEAVING_US 300000

typedef struct life {
    const tw_fault_plan_t *plan;
    tw_fault_injector_t *injector;
    tw_job_t job;
    tw_transport_t *transport;
    tw_coll_t *all, *rest; /* rest: without rank 0 */
    const char *where;
    uint64_t named, n_wrong;
} life_t;

static tw_status_t make_rest(life_t *life)
{
    int ranks[TW_FAULTS_MAX_RANKS];
    for (int r = 1; r < life->job.world; r++) {
        ranks[r - 1] = r;
    }
    tw_coll_params_t params = {.transport = life->transport, .ranks = ranks, .n_ranks = life->job.world - 1};
    return tw_coll_create(&params, &life->rest);
}

static tw_status_t faults_join(life_t *life)
{
    life->where = "rendezvous";
    tw_fault_injector_begin(life->injector, TW_FAULT_RENDEZVOUS, 0);
    TW_TRY(tw_transport_create(&life->job, &life->transport));
    life->where = "creation";
    tw_fault_injector_begin(life->injector, TW_FAULT_CREATION, 0);
    tw_coll_params_t params = {.transport = life->transport};
    tw_status_t status = tw_coll_create(&params, &life->all);
    if (status == TW_OK && life->plan->phase == TW_FAULT_AFTER_FIRST && life->job.rank > 0) {
        status = make_rest(life);
    }
    return status;
}

static tw_status_t operate(life_t *life)
{
    const tw_fault_plan_t *plan = life->plan;
    life->where = "operation";
    /* After rank 0 has left, the others run as many operations as a whole job. */
    int n_ops = TW_FAULTS_OPS + (plan->phase == TW_FAULT_AFTER_FIRST ? plan->at_op + 1 : 0);
    for (int i = 0; i < n_ops; i++) {
        int is_alone = plan->phase == TW_FAULT_AFTER_FIRST && i > plan->at_op;
        if (is_alone && life->job.rank == 0) {
            return TW_OK;
        }
        if (is_alone && i == plan->at_op + 1) {
            usleep(LEAVING_US);
            tw_fault_injector_begin(life->injector, TW_FAULT_AFTER_FIRST, 0);
        }
        if (i == plan->at_op) {
            tw_fault_injector_begin(life->injector, TW_FAULT_OPERATION, 0);
            tw_fault_injector_begin(life->injector, TW_FAULT_BETWEEN, 1);
        }
        TW_TRY(tw_fault_operate(is_alone ? life->rest : life->all, i, &life->n_wrong));
    }
    return TW_OK;
}

static void faults_leave(life_t *life, tw_status_t status)
{
    if (status != TW_OK && life->plan->exits_at_once) {
        return;
    }
    life->where = status == TW_OK ? "destroy" : life->where;
    tw_fault_injector_begin(life->injector, TW_FAULT_DESTROY, 0);
    tw_coll_destroy(life->rest);
    tw_coll_destroy(life->all);
    tw_transport_destroy(life->transport);
    tw_fault_injector_destroy(life->injector);
}

int tw_fault_rank_main(const tw_fault_plan_t *plan, int fd)
{
    life_t life = {.plan = plan};
    uint64_t heard = 0;
    tw_fault_names_listen(&heard);
    tw_status_t status = tw_job_from_env(&life.job);
    if (status == TW_OK) {
        life.injector = tw_fault_injector_create(plan, life.job.rank, fd);
        status = life.injector ? faults_join(&life) : TW_ERR_NO_MEMORY;
    }
    status = status == TW_OK ? operate(&life) : status;
    int failed = life.transport ? tw_transport_failed_rank(life.transport) : -1;
    life.named = life.transport ? (failed >= 0 ? (uint64_t)1 << failed : 0) : heard;
    faults_leave(&life, status);
    tw_fault_record_t record = {.rank = life.job.rank,
                                .fault = -1,
                                .at_sec = tw_time_sec(),
                                .status = status,
                                .named = life.named,
                                .n_wrong = life.n_wrong};
    snprintf(record.where, sizeof(record.where), "%s", life.where);
    if (write(fd, &record, sizeof(record)) != (ssize_t)sizeof(record)) {
        tw_error("rank %d: cannot reach the campaign: %s", life.job.rank, strerror(errno));
    }
    _exit(status == TW_OK ? 0 : 1);
}
