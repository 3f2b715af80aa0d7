/** Private to trainer/plan: a rank's two threads, on its share of the cores, and its node's link, in
 *  simulated time.
 *
 *  The compute thread calls these functions; the progress thread does the work of operations, one after the
 *  other. If both have work they share the cores evenly. The link carries one operation after the other. All
 *  ranks do the same at the same time, so none can use a core that another one leaves idle. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** An operation: sending, carrying and receiving take seconds of the progress thread, the link, or
 *  neither. */
typedef struct tw_plan_op {
    double send_sec, link_sec, delay_sec, receive_sec;
    /* fields of the machine */
    enum { TW_PLAN_OP_IDLE, TW_PLAN_OP_SENDING, TW_PLAN_OP_RECEIVING } stage;
    double ready; /**< when the stage can begin */
    double left;  /**< seconds of a whole core that the stage still takes */
} tw_plan_op_t;

typedef struct tw_plan_machine {
    double cores;       /**< cores of this rank; with 2 its threads never share one */
    double now, waited; /**< the compute thread's clock, and how long it has waited for operations */
    double link_free;   /**< when the link, at its rate, has carried everything so far */
    double burst_sec;   /**< idle seconds that a shaped link makes up for by sending faster afterwards */
    tw_plan_op_t **under_way; /**< in the order of posting; room for all operations, the caller's */
    size_t n_under_way;
} tw_plan_machine_t;

/** Start an operation, which the caller owns; it must not be posted already. */
void tw_plan_machine_post(tw_plan_machine_t *machine, tw_plan_op_t *op);
int tw_plan_op_is_done(const tw_plan_op_t *op);
/** Compute for `sec` seconds of a whole core. */
void tw_plan_machine_compute(tw_plan_machine_t *machine, double sec);
/** Let the compute thread wait until an operation is done. */
void tw_plan_machine_wait(tw_plan_machine_t *machine, const tw_plan_op_t *op);

TW_C_END
