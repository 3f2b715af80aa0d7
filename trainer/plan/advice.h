/** Prints on which links a plain run is as fast as Thinwire, on which links Thinwire is too slow, and what
 *  other methods there are for those. Private to the planner's program. */
#pragma once

#include "trainer/plan/program.h"

TW_C_BEGIN

/** Print the advice for a case whose rows are planned, and how long a step takes beyond its computing. `time`
 *  is the time of a step of the user's run. TW_ERR_NO_MEMORY, and errors of the configuration. */
tw_status_t plan_print_advice(const plan_t *plan, const tw_plan_case_t *given, const tw_plan_point_t *point,
                              const tw_plan_case_time_t *time);

TW_C_END
