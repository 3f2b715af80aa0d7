/** Private to the planner's program: what else there is than what we have. */
#ifndef TW_TRAINER_PLAN_ADVICE_H
#define TW_TRAINER_PLAN_ADVICE_H

#include "trainer/plan/program.h"

TW_C_BEGIN

/** Of a case whose rows are planned: what a step costs beside its computing, above which link plain is as
 *  fast, below which nothing of ours is enough, and what is then. TW_ERR_NO_MEMORY, and errors of the
 *  configuration. */
tw_status_t plan_print_advice(const plan_t *plan, const tw_plan_case_t *given, const tw_plan_point_t *point,
                              const tw_plan_case_time_t *today);

TW_C_END

#endif
