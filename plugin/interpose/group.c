/** What a thread has open. NCCL is told of every start and end, so its own depth is ours. */
#include "plugin/interpose/group.h"

#include <stdlib.h>
#include <time.h>

#define POLL_NS 20000

typedef struct group {
    int depth;
    tw_ip_ready_t *calls;
    size_t n_calls, max_calls;
} group_t;

static _Thread_local group_t group;

int tw_ip_group_is_open(void)
{
    return group.depth > 0;
}

ncclResult_t tw_ip_group_add(const tw_ip_ready_t *ready)
{
    if (group.n_calls == group.max_calls) {
        size_t wanted = group.max_calls > 0 ? 2 * group.max_calls : 16;
        tw_ip_ready_t *larger = realloc(group.calls, wanted * sizeof(*larger));
        if (larger == NULL) {
            return ncclSystemError;
        }
        group.calls = larger;
        group.max_calls = wanted;
    }
    group.calls[group.n_calls++] = *ready;
    group.calls[group.n_calls - 1].call.has_config = 0;
    group.calls[group.n_calls - 1].call.config = NULL;
    return ncclSuccess;
}

ncclResult_t tw_ip_group_start(void)
{
    const tw_ip_functions_t *real = tw_ip_real();
    ncclResult_t result = real->ncclGroupStart != NULL ? real->ncclGroupStart() : ncclInternalError;

    group.depth += result == ncclSuccess;
    return result;
}

/** A communicator that does not block works on the group in the background; ours come after. */
static ncclResult_t settle(ncclComm_t comm)
{
    const tw_ip_functions_t *real = tw_ip_real();
    const struct timespec nap = {.tv_nsec = POLL_NS};
    ncclResult_t state = ncclInProgress;

    while (state == ncclInProgress) {
        ncclResult_t asked = real->ncclCommGetAsyncError(comm, &state);
        if (asked != ncclSuccess) {
            return asked;
        }
        if (state == ncclInProgress) {
            (void)nanosleep(&nap, NULL);
        }
    }
    return state;
}

static ncclResult_t run_calls(const group_t *ended, int is_busy)
{
    ncclResult_t result = ncclSuccess;

    for (size_t i = 0; i < ended->n_calls && result == ncclSuccess; i++) {
        if (is_busy) {
            result = settle(ended->calls[i].call.comm);
        }
        if (result == ncclSuccess) {
            result = tw_ip_replace_run(&ended->calls[i]);
        }
    }
    return result;
}

ncclResult_t tw_ip_group_end(void)
{
    const tw_ip_functions_t *real = tw_ip_real();
    ncclResult_t result = real->ncclGroupEnd != NULL ? real->ncclGroupEnd() : ncclInternalError;
    group_t ended = group;

    if (group.depth > 1) {
        group.depth--;
        return result;
    }
    group = (group_t){0}; /* a call that is left to NCCL after all may find its way back here */
    if (ended.n_calls > 0 && (result == ncclSuccess || result == ncclInProgress)) {
        ncclResult_t run_result = run_calls(&ended, result == ncclInProgress);
        result = run_result != ncclSuccess ? run_result : result;
    }
    free(ended.calls);
    return result;
}

void tw_ip_group_drop(void)
{
    if (group.depth > 1) {
        group.depth--;
        return;
    }
    free(group.calls);
    group = (group_t){0};
}
