/* What is wrong, worst first. */
#include <stdlib.h>

#include "doctor/findings.h"

static int by_weight(const void *a, const void *b)
{
    const double wa = ((const tw_doctor_finding_t *)a)->weight, wb = ((const tw_doctor_finding_t *)b)->weight;
    return (wa < wb) - (wa > wb);
}

void tw_doctor_judge(const tw_doctor_result_t *result, tw_doctor_findings_t *out)
{
    tw_doctor_judge_t judge = {result, out};
    out->n = 0;
    tw_doctor_judge_links(&judge);
    tw_doctor_judge_settings(&judge);
    qsort(out->list, (size_t)out->n, sizeof(out->list[0]), by_weight);
}
