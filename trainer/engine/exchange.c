/* Exchanges the ranks' figures of a step: their parts of the norm, losses, bytes sent, and memory. */
#include "trainer/engine/calls.h"

#include <stdlib.h>
#include <string.h>

static void add_notices(tw_engine_notices_t *sum, const tw_engine_notices_t *of, size_t rank)
{
    sum->any |= of->any;
    sum->all = rank > 0 ? sum->all & of->any : of->any;
    sum->first = rank > 0 ? sum->first : of->any;
}

tw_status_t tw_engine_exchange(tw_engine_t *engine, tw_engine_report_t *report)
{
    size_t world = (size_t)engine->world;
    tw_engine_report_t *all = calloc(world, sizeof(*all));
    TW_FAIL_IF(!all, TW_ERR_NO_MEMORY, "rank %d: out of memory for the reports of %zu ranks", engine->rank,
               world);
    report->resident_bytes = tw_engine_resident_bytes(engine);
    tw_coll_segment_t segment = {.src = report, .dst = all, .n_elems = world * sizeof(*all)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_engine_processor_t begin = tw_engine_processor_get(tw_model_pool(engine->model));
    tw_status_t status = tw_engine_run(engine, &args);
    engine->exchange_progress_sec =
        tw_engine_processor_since(tw_model_pool(engine->model), &begin).progress_sec;
    if (status == TW_OK) {
        double loss = 0;
        memset(report, 0, sizeof(*report));
        for (size_t r = 0; r < world; r++) {
            tw_norm_merge(&report->norm, &all[r].norm);
            loss += all[r].loss;
            tw_engine_totals_add(&report->totals, &all[r].totals);
            tw_loss_merge(&report->losses, &all[r].losses);
            add_notices(&report->notices, &all[r].notices, r);
            report->resident_bytes = all[r].resident_bytes > report->resident_bytes ? all[r].resident_bytes
                                                                                    : report->resident_bytes;
        }
        report->loss = loss / (double)world;
        report->totals.wait_sec /= (double)world;
        engine->resident_most = report->resident_bytes;
    }
    free(all);
    return status;
}

size_t tw_engine_report_bytes(void)
{
    return sizeof(tw_engine_report_t);
}
