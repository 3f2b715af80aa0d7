/** Private to trainer/plan: simulates a rank's two threads on its share of the cores, and its node's link.
 *
 *  The compute thread calls these functions. The progress thread does the work of operations, one after the
 *  other. If both have work, they share the cores evenly. The link carries one operation after the other. All
 *  ranks do the same at the same time, so no rank can use a core that another rank leaves idle. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** An operation. Sending and receiving take seconds of the progress thread, carrying takes seconds of the
 *  link, and a delay takes neither. */
typedef struct tw_plan_op {
    double send_sec, link_sec, delay_sec, receive_sec;
    /* set by the machine */
    enum { TW_PLAN_OP_IDLE, TW_PLAN_OP_SENDING, TW_PLAN_OP_RECEIVING } stage;
    double ready; /**< time when the stage can begin */
    double left;  /**< seconds of a whole core that the stage still needs */
} tw_plan_op_t;

typedef struct tw_plan_machine {
    double cores;       /**< cores of this rank; with 2, its threads never share one */
    double now, waited; /**< the compute thread's clock, and its waiting time so far, in seconds */
    double link_free;   /**< time when the link has carried everything so far */
    double burst_sec;   /**< a shaped link makes up for at most this many idle seconds by sending faster */
    /** in the order of posting; the caller's array, with a place for each operation */
    tw_plan_op_t **under_way;
    size_t n_under_way;
} tw_plan_machine_t;

/** Start an operation. The caller owns it, and must not post it again before it is done. */
void tw_plan_machine_post(tw_plan_machine_t *machine, tw_plan_op_t *op);
int tw_plan_op_is_done(const tw_plan_op_t *op);
/** Compute for `sec` seconds of a whole core. */
void tw_plan_machine_compute(tw_plan_machine_t *machine, double sec);
/** Let the compute thread wait until an operation is done. */
void tw_plan_machine_wait(tw_plan_machine_t *machine, const tw_plan_op_t *op);

TW_C_END
