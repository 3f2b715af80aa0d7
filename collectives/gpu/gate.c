/** The gate: counts the calls of NCCL that are under way, and says whether more may begin. Its state is one
 *  number: the lowest bit is 1 if the gate is closed, and each call adds ONE_CALL. */
#include <time.h>

#include "collectives/gpu/gpu.h"

#define CLOSED 1
#define ONE_CALL 2

#define WAIT_SEC 1.0
#define POLL_NS 50000

tw_status_t tw_coll_gate_enter(tw_coll_gate_t *gate)
{
    if (!gate) {
        return TW_OK;
    }
    int state = __atomic_fetch_add(&gate->state, ONE_CALL, __ATOMIC_ACQ_REL);
    if ((state & CLOSED) == 0) {
        return TW_OK;
    }
    tw_coll_gate_leave(gate);
    return TW_ERR_CANCELED;
}

void tw_coll_gate_leave(tw_coll_gate_t *gate)
{
    if (gate) {
        (void)__atomic_fetch_sub(&gate->state, ONE_CALL, __ATOMIC_ACQ_REL);
    }
}

void tw_coll_gate_close(tw_coll_gate_t *gate)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};
    double end_sec = tw_time_sec() + WAIT_SEC;
    int state = __atomic_or_fetch(&gate->state, CLOSED, __ATOMIC_ACQ_REL);

    while (state >= ONE_CALL && tw_time_sec() < end_sec) {
        (void)nanosleep(&nap, NULL);
        state = __atomic_load_n(&gate->state, __ATOMIC_ACQUIRE);
    }
}
