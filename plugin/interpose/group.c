/** A thread's open group. All ncclGroupStart and ncclGroupEnd also go to NCCL: both count the same depth. */
#include "plugin/interpose/group.h"

#include <stdlib.h>
#include <time.h>

#include "plugin/interpose/comms.h"

#define POLL_NS 20000

typedef struct expected {
    ncclComm_t parent, *out;
    tw_ip_meeting_t *meeting;
} expected_t;

typedef struct group {
    int depth;
    tw_ip_ready_t *calls;
    size_t n_calls, max_calls;
    expected_t *expected;
    size_t n_expected, max_expected;
} group_t;

static _Thread_local group_t group;

int tw_ip_group_is_open(void)
{
    return group.depth > 0;
}

ncclResult_t tw_ip_group_add(const tw_ip_ready_t *ready)
{
    if (!tw_grow(&group.calls, &group.max_calls, group.n_calls + 1, sizeof(*group.calls))) {
        tw_ip_replace_drop(ready);
        return ncclSystemError;
    }
    group.calls[group.n_calls++] = *ready;
    group.calls[group.n_calls - 1].call.has_config = 0;
    group.calls[group.n_calls - 1].call.config = NULL;
    return ncclSuccess;
}

ncclResult_t tw_ip_group_expect(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting)
{
    if (!tw_grow(&group.expected, &group.max_expected, group.n_expected + 1, sizeof(*group.expected))) {
        return ncclSystemError;
    }
    group.expected[group.n_expected++] = (expected_t){parent, out, meeting};
    return ncclSuccess;
}

/** Note the group's new communicators. If `result` is ncclInProgress, NCCL will set their handles later. */
static ncclResult_t welcome(const group_t *ended, ncclResult_t result)
{
    for (size_t i = 0; i < ended->n_expected; i++) {
        const expected_t *one = &ended->expected[i];
        if (result == ncclSuccess && *one->out) {
            tw_ip_comm_made(*one->out, one->meeting);
        }
        if (result == ncclInProgress &&
            tw_ip_comm_expect(one->parent, one->out, one->meeting) != ncclSuccess) {
            result = ncclSystemError;
        }
    }
    free(ended->expected);
    return result;
}

ncclResult_t tw_ip_group_start(void)
{
    const tw_ip_functions_t *real = tw_ip_real();
    ncclResult_t result = real->ncclGroupStart ? real->ncclGroupStart() : ncclInternalError;
    group.depth += result == ncclSuccess;
    return result;
}

static ncclResult_t group_ask(tw_ip_comm_t *comm)
{
    ncclResult_t state = ncclInternalError;
    if (tw_coll_gate_enter(&comm->gate) != TW_OK) {
        return state;
    }
    ncclResult_t asked = tw_ip_real()->ncclCommGetAsyncError(comm->nccl, &state);
    tw_coll_gate_leave(&comm->gate);
    return asked == ncclSuccess ? state : asked;
}

/** Wait until a non-blocking communicator has finished the group: calls that were kept run after NCCL's. */
static ncclResult_t group_settle(tw_ip_comm_t *comm)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};
    ncclResult_t state = group_ask(comm);
    while (state == ncclInProgress) {
        (void)nanosleep(&nap, NULL);
        state = group_ask(comm);
    }
    return state;
}

/** Run the calls that were kept, in order. Drops the rest after one has failed. */
static ncclResult_t run_calls(const group_t *ended, ncclResult_t result)
{
    int is_busy = result == ncclInProgress;
    result = is_busy ? ncclSuccess : result;
    for (size_t i = 0; i < ended->n_calls; i++) {
        const tw_ip_ready_t *ready = &ended->calls[i];
        if (is_busy && result == ncclSuccess) {
            result = group_settle(ready->comm);
        }
        if (result == ncclSuccess) {
            result = tw_ip_replace_run(ready);
        } else {
            tw_ip_replace_drop(ready);
        }
    }
    return result == ncclSuccess && is_busy ? ncclInProgress : result;
}

ncclResult_t tw_ip_group_end(void)
{
    const tw_ip_functions_t *real = tw_ip_real();
    ncclResult_t result = real->ncclGroupEnd ? real->ncclGroupEnd() : ncclInternalError;
    group_t ended = group;
    if (group.depth > 1) {
        group.depth--;
        return result;
    }
    group = (group_t){0}; /* before run_calls: a call passed to NCCL there may get here again */
    result = run_calls(&ended, welcome(&ended, result));
    free(ended.calls);
    return result;
}

void tw_ip_group_drop(void)
{
    if (group.depth > 1) {
        group.depth--;
        return;
    }
    for (size_t i = 0; i < group.n_calls; i++) {
        tw_ip_replace_drop(&group.calls[i]);
    }
    free(group.calls);
    free(group.expected);
    group = (group_t){0};
}
