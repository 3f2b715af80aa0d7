/** Computations that plain algorithms emit. Spans may be of views or of buffers, in any mixture; those of
 *  views count elements, those of buffers bytes. */
#ifndef TW_COLLECTIVES_SCHEDULE_SUMS_H
#define TW_COLLECTIVES_SCHEDULE_SUMS_H

#include "collectives/schedule/schedule.h"

TW_C_BEGIN

/** to = from. Same memory: nothing to do; a partial overlap is not allowed. TW_TASK_NONE for nothing. */
tw_task_t tw_work_copy(tw_sched_t *sched, tw_span_t from, tw_span_t to);

/** One reduction of n elements. */
typedef struct tw_work_sum {
    tw_type_t type;
    const tw_span_t *inputs; /**< [n_inputs] copied */
    size_t n_inputs;
    size_t n_partial; /**< the first so many inputs are sums that travel, and have been scaled */
    float scale;      /**< of the other inputs */
    float factor;     /**< of the result */
    float limit;      /**< of finite results; INFINITY: none */
    tw_span_t to;     /**< may be one of the inputs, element for element */
} tw_work_sum_t;

/** to = round(factor * (partial inputs + scale * other inputs)), not beyond the limit: summed in fp32 in the
 *  order of inputs (with a scale, the others first), rounded once; without partial inputs, multiplied once
 *  with scale * factor. TW_TASK_NONE for nothing. */
tw_task_t tw_work_reduce(tw_sched_t *sched, const tw_work_sum_t *sum);

TW_C_END

#endif
