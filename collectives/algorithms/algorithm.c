/** What several algorithms do alike. */
#include "collectives/algorithms/algorithm.h"

tw_task_t tw_build_copy(const tw_build_t *build, size_t in_first, size_t out_first, size_t n)
{
    tw_task_t last = TW_TASK_NONE;
    size_t n_chunks = tw_chunk_count(build, n);

    if (build->in_place || n == 0) {
        return TW_TASK_NONE;
    }
    tw_task_t *copies = tw_sched_alloc(build->sched, n_chunks * sizeof(*copies));
    if (!copies) {
        return TW_TASK_NONE;
    }
    for (size_t c = 0; c < n_chunks; c++) {
        size_t at = c * build->chunk_elems, run = tw_chunk_elems(build, n, c);
        copies[c] = tw_work_copy(build->sched, tw_span_view(build->in, in_first + at, run),
                                 tw_span_view(build->out, out_first + at, run));
        last = copies[c];
    }
    if (n_chunks == 1) {
        return last;
    }
    last = tw_sched_join(build->sched);
    for (size_t c = 0; c < n_chunks; c++) {
        tw_sched_after(build->sched, last, copies[c]);
    }
    return last;
}
