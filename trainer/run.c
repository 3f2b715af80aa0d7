/* Does a rank's whole run, step after step. */
#include <math.h>

#include "trainer/fit.h"
#include "trainer/run_state.h"

/* ---- steps --------------------------------------------------------------------------------------------- */

static int is_due(int64_t every, uint64_t step)
{
    return every > 0 && step % (uint64_t)every == 0;
}

static void note_step(tw_run_t *run, const tw_trainer_step_t *step)
{
    tw_trainer_result_t *result = run->result;
    if (result->steps == 0) {
        result->first_loss = step->loss;
        result->losses_finite = 1;
    }
    if (result->steps < run->most_steps) {
        run->step_secs[result->steps] = step->step_sec;
    }
    result->steps++;
    result->last_loss = step->loss;
    result->losses_finite &= isfinite(step->loss) != 0;
    result->tokens += step->tokens;
    result->total_sec += step->step_sec;
}

static tw_status_t run_check(tw_run_t *run)
{
    int equal;
    tw_status_t status = tw_engine_check(run->engine, &equal);
    if (status == TW_OK && !equal) {
        status = tw_fail(TW_ERR_MISMATCH, "the nodes hold different weights after step %llu",
                         (unsigned long long)tw_engine_steps_done(run->engine));
    }
    run->result->replicas_equal = status == TW_OK;
    return status;
}

/** Wait for operations that a step has left. This counts as training: the next step would wait for them. */
static tw_status_t drain(tw_run_t *run)
{
    double begin = tw_time_sec();
    tw_status_t status = tw_engine_drain(run->engine);
    run->result->total_sec += tw_time_sec() - begin;
    return status;
}

static tw_status_t run_sample(tw_run_t *run)
{
    run->is_agreed = 0;
    TW_TRY(drain(run));
    return tw_sampling_run(&run->sampling, run->engine);
}

static tw_status_t one_step(tw_run_t *run)
{
    const tw_train_options_t *o = run->options;
    tw_trainer_step_t step;
    run->is_agreed = 0;
    TW_TRY(tw_engine_step(run->engine, &step));
    int is_last = step.step == (uint64_t)o->steps;
    int is_stopped = !is_last && tw_persist_is_stopped(&run->persist);
    int is_checked =
        is_last || is_stopped || is_due(o->check_every, step.step) || tw_engine_check_due(run->engine);
    int is_validated = is_last || is_due(o->val_every, step.step);
    tw_status_t status = TW_OK;
    if (is_validated || is_checked || tw_persist_is_due(&run->persist)) {
        status = drain(run);
    }
    if (status == TW_OK && is_validated) {
        status = tw_engine_validate(run->engine, &step.val_loss);
        run->result->val_loss = step.val_loss;
        tw_persist_validated(&run->persist, step.val_loss);
        step.memory_bytes = tw_engine_resident_most(run->engine);
    }
    if (status == TW_OK && is_checked) {
        status = run_check(run);
    }
    if (status == TW_OK) {
        int goes_back = step.is_bad && o->bad_step == TW_TRAIN_BAD_ROLLBACK;
        status = goes_back ? tw_persist_rollback(&run->persist) : tw_persist_step_done(&run->persist);
        run->is_agreed = status != TW_ERR_PEER && !run->persist.is_alone;
    }
    note_step(run, &step);
    run->result->is_stopped = is_stopped;
    if (status == TW_OK && run->params->on_step) {
        run->params->on_step(run->params->ctx, &step);
    }
    if (status == TW_OK && is_due(o->sample_steps, step.step) && !step.is_bad && !is_stopped) {
        status = run_sample(run);
    }
    return status;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

tw_status_t tw_trainer_run(const tw_trainer_params_t *params, tw_trainer_result_t *result)
{
    tw_run_t run = {.params = params, .result = result};
    *result = (tw_trainer_result_t){.val_loss = NAN};
    tw_status_t status = tw_run_set_up(&run);
    if (status == TW_OK && run.options->steps == 0) {
        run.is_agreed = 0;
        status = tw_engine_validate(run.engine, &result->val_loss);
        status = status == TW_OK && run.options->sample_steps > 0 ? run_sample(&run) : status;
    }
    if (status == TW_OK && tw_engine_steps_done(run.engine) >= (uint64_t)run.options->steps) {
        status = tw_persist_nothing_done(&run.persist);
        run.is_agreed = status != TW_ERR_PEER;
    }
    while (status == TW_OK && !result->is_stopped &&
           tw_engine_steps_done(run.engine) < (uint64_t)run.options->steps) {
        status = one_step(&run);
    }
    if (status == TW_ERR_MISMATCH) { /* an alarm, on all ranks: complete the checkpoint begun before it */
        (void)tw_persist_finish(&run.persist);
    }
    if (status == TW_OK) {
        run.is_agreed = 0;
        status = tw_run_settle(&run);
    }
    tw_run_tear_down(&run, status);
    return status;
}

tw_status_t tw_trainer_check(const tw_trainer_params_t *params, int world, int n_nodes)
{
    tw_run_t run = {.params = params};
    tw_need_t need;
    tw_status_t status = tw_run_prepare(&run, world, n_nodes, 0);
    if (status == TW_OK && run.options->check_memory) {
        status = tw_need_of(run.options, run.model, world, n_nodes, &need);
        status = status == TW_OK ? tw_fit_check_here(&need, world) : status;
    }
    tw_run_tear_down(&run, TW_OK);
    return status;
}

tw_status_t tw_trainer_print_config(const tw_trainer_params_t *params, int world, int n_nodes, FILE *out)
{
    tw_train_config_t *config;
    TW_TRY(tw_train_config_create(params->config, params->sets, params->n_sets, &config));
    tw_status_t status = tw_train_config_resolve(config, world, n_nodes);
    if (status == TW_OK) {
        tw_train_config_say(config);
        tw_train_config_print(config, out);
    }
    tw_train_config_destroy(config);
    return status;
}
