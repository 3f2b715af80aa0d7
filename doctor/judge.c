/* Puts all findings together, the heaviest first. */
#include <stdlib.h>
#include <string.h>

#include "doctor/findings.h"

#define LAST_SAID 2 /* index of the last finding that the report's last lines contain */

static int by_weight(const void *a, const void *b)
{
    const double wa = ((const tw_doctor_finding_t *)a)->weight, wb = ((const tw_doctor_finding_t *)b)->weight;
    return (wa < wb) - (wa > wb);
}

static int count_pairs(const tw_doctor_result_t *result)
{
    int n = 0;
    for (int i = 0; i < result->n_flows; i++) {
        n += result->flows[i].kind == TW_DOCTOR_PAIR;
    }
    return n;
}

/** Add the finding that pairs were skipped, so far up that the report's last lines contain it. */
static void put_skipped(tw_doctor_judge_t *judge)
{
    const int n = judge->result->n_skipped;
    tw_doctor_findings_t *out = judge->out;
    if (n == 0) {
        return;
    }
    const int at = out->n < LAST_SAID ? out->n : LAST_SAID;
    out->n += out->n < TW_DOCTOR_FINDINGS_MAX;
    memmove(&out->list[at + 1], &out->list[at], (size_t)(out->n - at - 1) * sizeof(out->list[0]));
    tw_doctor_finding_t *finding = &out->list[at];
    *finding = (tw_doctor_finding_t){.weight = 1};
    tw_doctor_say(finding->what, "%d of %d ways from node to node are not measured", n,
                  n + count_pairs(judge->result));
    tw_doctor_say(finding->why, "it took too long: a way that is shut takes seconds");
    tw_doctor_say(finding->change, "first what stands here, then again; or more time (--seconds)");
}

void tw_doctor_judge(const tw_doctor_result_t *result, tw_doctor_findings_t *out)
{
    tw_doctor_judge_t judge = {result, out};
    out->n = 0;
    tw_doctor_judge_links(&judge);
    tw_doctor_judge_settings(&judge);
    qsort(out->list, (size_t)out->n, sizeof(out->list[0]), by_weight);
    put_skipped(&judge);
}
