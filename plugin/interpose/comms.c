/** The table of communicators, and how a rank learns whether a communicator spans nodes. */
#include "plugin/interpose/comms.h"

#include <stdlib.h>

#include "plugin/interpose/report.h"

/** A communicator that NCCL derives from `parent` in the background. NCCL will write its handle to *out. */
typedef struct expected {
    LIST_ENTRY(expected) link;
    ncclComm_t parent, *out;
    tw_ip_meeting_t *meeting;
} expected_t;

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, tw_ip_comm) table = LIST_HEAD_INITIALIZER(table);
static LIST_HEAD(, expected) expected = LIST_HEAD_INITIALIZER(expected);

/* ---- the table ----------------------------------------------------------------------------------------- */

static tw_ip_comm_t *comm_find(ncclComm_t nccl)
{
    tw_ip_comm_t *comm;
    LIST_FOREACH(comm, &table, link)
    {
        if (comm->nccl == nccl) {
            return comm;
        }
    }
    return NULL;
}

static tw_ip_comm_t *comms_create(ncclComm_t nccl)
{
    tw_ip_comm_t *comm = calloc(1, sizeof(*comm));
    if (!comm) {
        return NULL;
    }
    comm->nccl = nccl;
    comm->n_users = 1;
    (void)pthread_mutex_init(&comm->lock, NULL);
    LIST_INIT(&comm->scales);
    LIST_INSERT_HEAD(&table, comm, link);
    return comm;
}

tw_ip_comm_t *tw_ip_comm_get(ncclComm_t nccl)
{
    if (!nccl) {
        return NULL;
    }
    (void)pthread_mutex_lock(&table_lock);
    tw_ip_comm_t *comm = comm_find(nccl);
    if (!comm) {
        comm = comms_create(nccl);
    }
    if (comm) {
        comm->n_users++;
    }
    (void)pthread_mutex_unlock(&table_lock);
    return comm;
}

static void comm_free(tw_ip_comm_t *comm)
{
    while (!LIST_EMPTY(&comm->scales)) {
        tw_ip_scale_t *scale = LIST_FIRST(&comm->scales);
        LIST_REMOVE(scale, link);
        free(scale);
    }
    (void)pthread_mutex_destroy(&comm->lock);
    free(comm);
}

void tw_ip_comm_put(tw_ip_comm_t *comm)
{
    int n_users;
    (void)pthread_mutex_lock(&table_lock);
    n_users = --comm->n_users;
    (void)pthread_mutex_unlock(&table_lock);
    if (n_users == 0) {
        comm_free(comm);
    }
}

/** Take a communicator out of the table, because NCCL may reuse its handle. NULL: it is not in the table. */
static tw_ip_comm_t *comm_take(ncclComm_t nccl)
{
    (void)pthread_mutex_lock(&table_lock);
    tw_ip_comm_t *comm = comm_find(nccl);
    if (comm) {
        LIST_REMOVE(comm, link);
    }
    (void)pthread_mutex_unlock(&table_lock);
    return comm;
}

/* ---- learning ------------------------------------------------------------------------------------------ */

int tw_ip_comm_world(tw_ip_comm_t *comm)
{
    const tw_ip_functions_t *real = tw_ip_real();
    int rank = 0;
    if (comm->world > 0) {
        return comm->world;
    }
    if (!real->ncclCommCount || !real->ncclCommUserRank ||
        real->ncclCommCount(comm->nccl, &comm->world) != ncclSuccess ||
        real->ncclCommUserRank(comm->nccl, &rank) != ncclSuccess) {
        comm->world = 0;
    }
    if (comm->world > 1) {
        tw_ip_report_member(rank);
    }
    return comm->world;
}

void tw_ip_comm_rule_out(tw_ip_comm_t *comm, tw_ip_reason_t why)
{
    comm->is_known = 1;
    comm->why_not = why;
}

static int ranks_here(const tw_coll_t *coll)
{
    int n = 0;
    for (int r = 0; r < tw_coll_size(coll); r++) {
        n += tw_coll_node_of(coll, r) == tw_coll_node_of(coll, tw_coll_rank(coll));
    }
    return n;
}

static ncclResult_t settle_on(tw_ip_comm_t *comm, tw_coll_t *coll)
{
    if (tw_coll_n_nodes(coll) == 1) {
        tw_coll_destroy(coll);
        tw_ip_report_one_node();
        tw_ip_comm_rule_out(comm, TW_IP_ONE_NODE);
        return ncclSuccess;
    }
    comm->coll = coll;
    comm->ring_share = 1.0 / ranks_here(coll);
    comm->is_known = 1;
    tw_ip_report_begin(tw_coll_rank(coll), tw_coll_size(coll), tw_coll_n_nodes(coll));
    return ncclSuccess;
}

/** Settle a communicator for which tw_coll_nccl_create failed. TW_ERR_UNSUPPORTED and
 *  TW_ERR_MISMATCH are no errors: all ranks get the same one of them, and leave the calls to NCCL. */
static ncclResult_t settle_without(tw_ip_comm_t *comm, tw_status_t status)
{
    if (status == TW_ERR_UNSUPPORTED || status == TW_ERR_MISMATCH) {
        tw_ip_comm_rule_out(comm, status == TW_ERR_MISMATCH ? TW_IP_DIFFERENT : TW_IP_ONE_PROCESS);
        return ncclSuccess;
    }
    comm->is_known = 1;
    comm->error = tw_ip_result(status);
    return comm->error;
}

/** Create our communicator over NCCL's. Called only if all ranks have the interposer. */
static ncclResult_t meet(tw_ip_comm_t *comm)
{
    const tw_coll_nccl_params_t params = {
        .comm = comm->nccl,
        .shared = 1,
        .gate = &comm->gate,
        .terms = tw_ip_policy_hash(),
    };
    tw_coll_t *coll = NULL;
    tw_status_t status = tw_coll_nccl_create(&params, &coll);
    return status == TW_OK ? settle_on(comm, coll) : settle_without(comm, status);
}

tw_ip_meeting_t *tw_ip_comm_meeting(ncclComm_t nccl)
{
    (void)pthread_mutex_lock(&table_lock);
    const tw_ip_comm_t *comm = comm_find(nccl);
    tw_ip_meeting_t *meeting = comm ? comm->meeting : NULL;
    (void)pthread_mutex_unlock(&table_lock);
    return meeting;
}

/* ---- those that NCCL makes in the background ----------------------------------------------------------- */

ncclResult_t tw_ip_comm_expect(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting)
{
    expected_t *one = malloc(sizeof(*one));
    TW_FAIL_IF(!one, ncclSystemError, "nccl: out of memory");
    *one = (expected_t){.parent = parent, .out = out, .meeting = meeting};
    (void)pthread_mutex_lock(&table_lock);
    LIST_INSERT_HEAD(&expected, one, link);
    (void)pthread_mutex_unlock(&table_lock);
    return ncclSuccess;
}

/** Take from the list a communicator derived from `parent`, or with the handle `nccl`. NULL: there is
 *  none. */
static expected_t *take_expected(ncclComm_t parent, ncclComm_t nccl)
{
    expected_t *one;
    (void)pthread_mutex_lock(&table_lock);
    LIST_FOREACH(one, &expected, link)
    {
        if ((parent && one->parent == parent) || __atomic_load_n(one->out, __ATOMIC_ACQUIRE) == nccl) {
            LIST_REMOVE(one, link);
            break;
        }
    }
    (void)pthread_mutex_unlock(&table_lock);
    return one;
}

void tw_ip_comm_arrived(ncclComm_t nccl)
{
    /* NULL would be the handle of all communicators that NCCL has not made yet. */
    expected_t *one = nccl ? take_expected(nccl, nccl) : NULL;
    while (one) {
        ncclComm_t made = __atomic_load_n(one->out, __ATOMIC_ACQUIRE);
        if (made) { /* NULL: NCCL did not make it, or this rank is not in it */
            tw_ip_comm_made(made, one->meeting);
        }
        free(one);
        one = take_expected(nccl, nccl);
    }
}

/** Find the meeting of a communicator. It may still be in the list of expected ones: the job can read its
 *  handle and use it before a call tells us that NCCL has made it. */
static tw_ip_meeting_t *find_meeting(ncclComm_t nccl)
{
    tw_ip_meeting_t *meeting = tw_ip_comm_meeting(nccl);
    expected_t *one = meeting ? NULL : take_expected(NULL, nccl);
    if (one) {
        meeting = one->meeting;
    }
    free(one);
    return meeting;
}

/** Ask whether all ranks have the interposer. If `comm` has no meeting, this rank did not register, and the
 *  registry tells the other ranks that not all ranks have. But while NCCL makes communicators in the
 *  background, `comm` may be one of them whose meeting is not known yet: that is an error. */
static ncclResult_t comm_ask(const tw_ip_comm_t *comm, tw_ip_reason_t *why)
{
    tw_ip_meeting_t *meeting = find_meeting(comm->nccl);
    (void)pthread_mutex_lock(&table_lock);
    int is_doubtful = !meeting && !LIST_EMPTY(&expected);
    (void)pthread_mutex_unlock(&table_lock);
    TW_FAIL_IF(is_doubtful, ncclInvalidUsage,
               "nccl: a communicator may be one that was split off, shrunk or grown without blocking, and "
               "the job has not asked ncclCommGetAsyncError whether that is done: which one it is of is "
               "not known");
    return tw_ip_meeting_ask(meeting, why);
}

ncclResult_t tw_ip_comm_learn(tw_ip_comm_t *comm)
{
    tw_ip_reason_t why = TW_IP_ONE_NODE;
    if (comm->is_known) {
        return comm->error;
    }
    if (tw_ip_comm_world(comm) != 1) {
        comm->error = comm_ask(comm, &why);
    }
    if (comm->error == ncclSuccess && why == TW_IP_REPLACED) {
        return meet(comm);
    }
    tw_ip_comm_rule_out(comm, why);
    return comm->error;
}

void tw_ip_comm_made(ncclComm_t nccl, tw_ip_meeting_t *meeting)
{
    tw_ip_comm_forget(nccl, 1);
    tw_ip_comm_t *comm = tw_ip_comm_get(nccl);

    if (comm) {
        (void)pthread_mutex_lock(&table_lock);
        comm->meeting = meeting;
        (void)pthread_mutex_unlock(&table_lock);
        tw_ip_comm_put(comm);
    }
}

void tw_ip_comm_close(ncclComm_t nccl)
{
    tw_ip_comm_t *comm = tw_ip_comm_get(nccl);
    if (comm) {
        tw_coll_gate_close(&comm->gate);
        tw_ip_comm_put(comm);
    }
}

static void comm_end(tw_ip_comm_t *comm, int is_aborted, int has_gone)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (comm->coll && is_aborted) {
        tw_coll_abort(comm->coll);
    }
    tw_coll_destroy(comm->coll);
    comm->coll = NULL;
    tw_ip_clock_collect(&comm->clock);
    tw_ip_clock_cleanup(&comm->clock);
    tw_ip_comm_rule_out(comm, TW_IP_ENDED);
    comm->has_gone = has_gone;
    (void)pthread_mutex_unlock(&comm->lock);
}

void tw_ip_comm_revoke(ncclComm_t nccl)
{
    tw_ip_comm_t *comm = tw_ip_comm_get(nccl);
    if (comm) {
        comm_end(comm, 1, 0);
        tw_ip_comm_put(comm);
    }
}

void tw_ip_comm_forget(ncclComm_t nccl, int is_aborted)
{
    tw_ip_comm_t *comm = nccl ? comm_take(nccl) : NULL;
    if (comm) {
        comm_end(comm, is_aborted, 1);
        tw_ip_comm_put(comm);
    }
}

/* ---- sums with a factor -------------------------------------------------------------------------------- */

static tw_ip_scale_t *find_scale(const tw_ip_comm_t *comm, ncclRedOp_t op)
{
    tw_ip_scale_t *scale;
    LIST_FOREACH(scale, &comm->scales, link)
    {
        if (scale->op == op) {
            return scale;
        }
    }
    return NULL;
}

void tw_ip_comm_scale_add(ncclComm_t nccl, ncclRedOp_t op, ncclDataType_t type, float factor)
{
    tw_ip_comm_t *comm = tw_ip_comm_get(nccl);
    tw_ip_scale_t *scale = comm ? calloc(1, sizeof(*scale)) : NULL;
    if (scale) {
        scale->op = op;
        scale->type = type;
        scale->factor = factor;
        (void)pthread_mutex_lock(&comm->lock);
        LIST_INSERT_HEAD(&comm->scales, scale, link);
        (void)pthread_mutex_unlock(&comm->lock);
    }
    if (comm) {
        tw_ip_comm_put(comm);
    }
}

int tw_ip_comm_scale_find(const tw_ip_comm_t *comm, ncclRedOp_t op, ncclDataType_t type, float *factor)
{
    const tw_ip_scale_t *scale = find_scale(comm, op);
    int is_known = scale && scale->type == type;
    if (is_known) {
        *factor = scale->factor;
    }
    return is_known;
}

void tw_ip_comm_scale_drop(ncclComm_t nccl, ncclRedOp_t op)
{
    tw_ip_comm_t *comm = tw_ip_comm_get(nccl);
    if (!comm) {
        return;
    }
    (void)pthread_mutex_lock(&comm->lock);
    tw_ip_scale_t *scale = find_scale(comm, op);
    if (scale) {
        LIST_REMOVE(scale, link);
        free(scale);
    }
    (void)pthread_mutex_unlock(&comm->lock);
    tw_ip_comm_put(comm);
}
