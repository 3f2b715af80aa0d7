/* Computes the results of a run, over all ranks. */
#include <math.h>
#include <stdlib.h>

#include "trainer/agreement.h"
#include "trainer/plan/plan.h"
#include "trainer/run_state.h"

/* The figures that each rank sends to the others at the end. */
typedef struct account {
    tw_engine_totals_t training, aside[TW_ENGINE_ASIDE_COUNT];
    /* bytes held before the engine was made; most bytes held beyond these; planned bytes */
    uint64_t before_bytes, resident_bytes, planned_bytes;
    uint64_t file_bytes, device_bytes, lag_blocks;
    double total_sec, step_sec, lag_max;
} account_t;

/** Return the memory that the planner computes for this run, with the measured bits of the lossless delta. */
static uint64_t settle_planned_bytes(const tw_run_t *run, const tw_engine_totals_t *training)
{
    tw_plan_memory_t memory;
    tw_plan_cluster_t cluster = tw_plan_cluster_of(tw_coll_size(run->coll), tw_coll_n_nodes(run->coll));
    cluster.delta_bits =
        training->delta_elems > 0 ? 8.0 * (double)training->delta_bytes / (double)training->delta_elems : 0.0;
    tw_status_t status = tw_plan_memory_of(run->options, run->model, &cluster, &memory);
    return status == TW_OK ? (uint64_t)tw_plan_memory_sum(&memory) : 0;
}

static account_t own_account(tw_run_t *run)
{
    size_t n_timed = run->result->steps < run->most_steps ? run->result->steps : run->most_steps;
    account_t account = {.training = tw_engine_training_totals(run->engine),
                         .resident_bytes = tw_engine_resident_bytes(run->engine),
                         .before_bytes = tw_engine_resident_before(run->engine),
                         .file_bytes = tw_engine_file_bytes(run->engine),
                         .device_bytes = tw_engine_device_bytes(run->engine),
                         .total_sec = run->result->total_sec,
                         .step_sec = tw_median(run->step_secs, n_timed)};
    for (int what = 0; what < TW_ENGINE_ASIDE_COUNT; what++) {
        account.aside[what] = tw_engine_aside_totals(run->engine, (tw_engine_aside_t)what);
    }
    account.planned_bytes = settle_planned_bytes(run, &account.training);
    account.lag_max = tw_engine_lag(run->engine, &account.lag_blocks);
    return account;
}

static int is_as_planned(const tw_engine_totals_t *totals)
{
    return totals->inter_node_bytes + totals->spared_inter_node_bytes == totals->planned_inter_node_bytes;
}

static void add_account(tw_trainer_result_t *result, const account_t *account)
{
    const tw_engine_totals_t *training = &account->training;
    int as_planned = is_as_planned(training);
    for (int what = 0; what < TW_ENGINE_ASIDE_COUNT; what++) {
        as_planned &= is_as_planned(&account->aside[what]);
    }
    result->bytes_as_planned &= as_planned;
    result->inter_node_bytes += training->inter_node_bytes;
    result->planned_inter_node_bytes += training->planned_inter_node_bytes;
    result->in_node_bytes += training->in_node_bytes;
    result->load_inter_node_bytes += account->aside[TW_ENGINE_LOAD].inter_node_bytes;
    result->val_inter_node_bytes += account->aside[TW_ENGINE_VALIDATION].inter_node_bytes;
    result->upkeep_inter_node_bytes += account->aside[TW_ENGINE_UPKEEP].inter_node_bytes;
    result->sample_inter_node_bytes += account->aside[TW_ENGINE_SAMPLING].inter_node_bytes;
    if (account->resident_bytes > result->peak_rss_bytes - result->before_rss_bytes) {
        result->before_rss_bytes = account->before_bytes;
        result->peak_rss_bytes = account->before_bytes + account->resident_bytes;
        result->planned_rss_bytes = account->before_bytes + account->planned_bytes;
    }
    result->file_bytes += account->file_bytes;
    result->device_bytes = TW_LARGER(result->device_bytes, account->device_bytes);
    result->lag_blocks += account->lag_blocks;
    result->lag_max = fmax(result->lag_max, account->lag_max);
}

static void add_accounts(tw_trainer_result_t *result, const account_t *all, int world)
{
    uint64_t delta_bytes = 0, delta_elems = 0;
    double wait_sec = 0;
    result->bytes_as_planned = 1;
    for (int r = 0; r < world; r++) {
        add_account(result, &all[r]);
        delta_bytes += all[r].training.delta_bytes;
        delta_elems += all[r].training.delta_elems;
        wait_sec += all[r].training.wait_sec / world;
    }
    result->total_sec = all[0].total_sec;
    result->step_sec = all[0].step_sec;
    result->wait_share = result->total_sec > 0 ? wait_sec / result->total_sec : 0;
    result->delta_bits = delta_elems > 0 ? 8.0 * (double)delta_bytes / (double)delta_elems : 0;
}

tw_status_t tw_run_settle(tw_run_t *run)
{
    tw_trainer_result_t *result = run->result;
    int world = tw_coll_size(run->coll);
    account_t *all = tw_agree_alloc(run->coll, sizeof(*all));
    tw_status_t status = all ? tw_engine_drain(run->engine) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        account_t own = own_account(run);
        tw_coll_segment_t segment = {.src = &own, .dst = all, .n_elems = (size_t)world * sizeof(*all)};
        tw_coll_args_t args = {
            .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
        status = tw_coll_run(run->coll, &args);
    }
    if (status == TW_OK) {
        result->world = world;
        result->n_nodes = tw_coll_n_nodes(run->coll);
        result->stage = (int)run->options->stage;
        result->n_params = tw_model_n_params(run->model);
        add_accounts(result, all, world);
    }
    free(all);
    return status;
}
