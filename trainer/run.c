/* A rank's whole run: what was asked for, the data, the model, the engine, step after step, and what it came
 * to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "hpz/hpz.h"
#include "trainer/agreement.h"
#include "trainer/config/config.h"
#include "trainer/cores.h"
#include "trainer/data/data.h"
#include "trainer/device/device.h"
#include "trainer/device/gpu.h"
#include "trainer/engine/engine.h"
#include "trainer/facts.h"
#include "trainer/fit.h"
#include "trainer/model/model.h"
#include "trainer/persist.h"
#include "trainer/plan/plan.h"
#include "trainer/sampling.h"
#include "trainer/shape.h"
#include "trainer/trainer.h"

typedef struct run {
    const tw_trainer_params_t *params;
    tw_train_config_t *config;
    const tw_train_options_t *options;
    tw_coll_t *coll, *own_coll;
    tw_data_t *data;
    tw_cores_t cores;
    tw_pool_t *pool;
    tw_device_t *device; /* NULL: the model computes on this processor */
    tw_model_t *model;
    tw_engine_t *engine;
    tw_persist_t persist;
    tw_sampling_t sampling;
    int is_started;    /* ranks may wait for each other */
    int is_agreed;     /* a failure is all ranks' */
    double *step_secs; /* [most_steps] */
    size_t most_steps; /* the run's; what a rollback does again may be more, and is not timed */
    tw_trainer_result_t *result;
} run_t;

/* ---- setting up ---------------------------------------------------------------------------------------- */

static tw_status_t join(run_t *run)
{
    tw_coll_params_t params = {.mem = TW_MEM_HOST, .deterministic = 1, .progress_thread = 1};
    run->coll = run->params->coll;
    if (run->coll) {
        return TW_OK;
    }
    tw_status_t status = tw_coll_world_create(&params, &run->own_coll);
    run->coll = run->own_coll;
    return status;
}

/* Variables that decide what ranks do together. */
static void add_variables(const tw_config_table_t *table, const char *const *names, tw_lines_t *lines)
{
    void *options = calloc(1, table->options_bytes);
    if (!options || tw_config_init(table, options) != TW_OK) {
        lines->failed = 1;
        free(options);
        return;
    }
    for (size_t i = 0; i < table->n_fields; i++) {
        for (const char *const *name = names; *name; name++) {
            char value[TW_LINES_VALUE_BYTES];
            if (strcmp(table->fields[i].name, *name) == 0) {
                tw_lines_add(lines, *name, "%s",
                             tw_config_format(&table->fields[i], options, value, sizeof(value)));
            }
        }
    }
    tw_config_cleanup(table, options);
    free(options);
}

/* Ranks that train differently would go on, to a loss that is nobody's, or wait for each other. */
static tw_status_t compare_ranks(const run_t *run)
{
    static const char *const of_coll[] = {"TW_COLL_CHUNK", NULL};
    static const char *const of_hpz[] = {"TW_HPZ_CHECK_STEPS", NULL};
    tw_lines_t lines = {0};
    tw_train_config_lines(run->config, &lines);
    add_variables(&tw_coll_config_table, of_coll, &lines);
    add_variables(&tw_hpz_config_table, of_hpz, &lines);
    tw_status_t own = tw_facts_of_data(run->data, &lines);
    tw_status_t status = tw_agree_on(run->coll, &lines);
    tw_lines_cleanup(&lines);
    return own != TW_OK ? own : status;
}

static const char *name_of_data(const tw_train_options_t *o)
{
    return *o->data ? o->data : "the King James text";
}

static tw_status_t open_data(run_t *run)
{
    const tw_train_options_t *o = run->options;
    const tw_data_config_t config = {.path = o->data,
                                     .val_path = o->val_data,
                                     .vocab = o->vocab,
                                     .merges = o->merges,
                                     .tokenizer = o->tokenizer,
                                     .token_bytes = (size_t)o->token_bytes,
                                     .cache_dir = o->cache,
                                     .keeps_vocabulary = o->sample_steps > 0,
                                     .val_share = o->val_share,
                                     .is_aligned = o->document_token >= 0,
                                     .document_token = o->document_token};
    TW_TRY(tw_data_open(&config, &run->data));
    if (tw_data_n_sequences(run->data, TW_DATA_TRAIN, (size_t)o->sequence) == 0) {
        tw_error("%s: %llu tokens for training are too few for a sequence of %lld (thinwire.sequence_length)",
                 name_of_data(o), (unsigned long long)tw_data_n_tokens(run->data, TW_DATA_TRAIN),
                 (long long)o->sequence);
        return TW_ERR_CONFIG;
    }
    return tw_train_config_epochs(run->config,
                                  tw_data_n_sequences(run->data, TW_DATA_TRAIN, (size_t)o->sequence));
}

/* Text is kept for a validation that it is too short for. */
static void say_validation(const run_t *run)
{
    const tw_train_options_t *o = run->options;
    uint64_t n = tw_data_n_tokens(run->data, TW_DATA_VAL);
    int is_wanted = o->val_sequences > 0 && (o->val_share > 0 || *o->val_data);
    if (is_wanted && tw_data_n_sequences(run->data, TW_DATA_VAL, (size_t)o->sequence) == 0) {
        tw_warn("%s: %llu tokens for validation are too few for a sequence of %lld: there is none",
                *o->val_data ? o->val_data : name_of_data(o), (unsigned long long)n, (long long)o->sequence);
    }
}

static tw_status_t check_groups(const run_t *run)
{
    size_t n;
    const tw_model_tensor_t *tensors = tw_model_tensors(run->model, &n);
    const char **names = calloc(n, sizeof(*names));
    if (!names) {
        tw_error("out of memory for the names of tensors");
        return TW_ERR_NO_MEMORY;
    }
    for (size_t t = 0; t < n; t++) {
        names[t] = tensors[t].name;
    }
    tw_status_t status = tw_train_groups_check(run->options->groups, names, n);
    free(names);
    return status;
}

/* On a rank's GPU; before there are ranks it is only looked whether there is one, and what it would take. */
static tw_status_t create_model_there(run_t *run, const tw_model_config_t *config)
{
    int n_devices;
    if (run->options->device == TW_TRAIN_DEVICE_CPU) {
        return tw_model_create(config, &run->model);
    }
    if (!run->coll) {
        TW_TRY(tw_device_gpu_count(0, &n_devices));
        return tw_device_model_create_planned(config, &run->model);
    }
    int rank = tw_coll_rank(run->coll);
    TW_TRY(tw_device_gpu_open(rank, tw_coll_local_of(run->coll, rank), &run->device));
    return tw_device_model_create(config, run->device, &run->model);
}

static tw_status_t create_model(run_t *run)
{
    const tw_train_options_t *o = run->options;
    tw_model_config_t config;
    TW_TRY(tw_trainer_shape(o, tw_data_vocab_size(run->data), &config));
    if (config.vocab_size < tw_data_vocab_size(run->data)) {
        tw_error(
            "%s has tokens up to %zu, but the model knows %zu tokens: see model.vocab_size, thinwire.vocab",
            name_of_data(o), tw_data_vocab_size(run->data) - 1, config.vocab_size);
        return TW_ERR_CONFIG;
    }
    if ((size_t)o->sequence > config.n_positions) {
        tw_error("thinwire.sequence_length is %lld, but the model has %zu positions: see model.n_positions",
                 (long long)o->sequence, config.n_positions);
        return TW_ERR_CONFIG;
    }
    TW_TRY(create_model_there(run, &config));
    TW_TRY(check_groups(run));
    return tw_trainer_check_sizes(o, run->model);
}

static tw_status_t create_engine(run_t *run)
{
    run->persist = (tw_persist_t){.config = run->config,
                                  .options = run->options,
                                  .model = run->model,
                                  .data = run->data,
                                  .stop = run->params->stop,
                                  .id = run->persist.id,
                                  .is_new = 1};
    const tw_engine_params_t params = {.options = run->options,
                                       .model = run->model,
                                       .data = run->data,
                                       .coll = run->coll,
                                       .hooks = tw_persist_hooks(&run->persist)};
    run->is_started = 1;
    tw_status_t status = tw_engine_create(&params, &run->engine);
    run->most_steps = (size_t)run->options->steps + 1;
    run->step_secs = calloc(run->most_steps, sizeof(*run->step_secs));
    if (status == TW_OK && !run->step_secs) {
        tw_error("out of memory for the times of thinwire.steps %lld", (long long)run->options->steps);
        status = TW_ERR_NO_MEMORY;
    }
    return status;
}

/* A multiplication and an addition of each product, forward, and twice as many backward. */
static double flops_per_token(const run_t *run)
{
    double products = 0;
    for (size_t unit = 0; unit < tw_model_n_units(run->model); unit++) {
        products += tw_model_unit_products(run->model, unit, (size_t)run->options->sequence);
    }
    return 3 * 2 * products;
}

static void ask_output(const run_t *run)
{
    const tw_train_options_t *o = run->options;
    if (run->params->output) {
        *run->params->output = (tw_trainer_output_t){.n_steps = (uint64_t)o->steps,
                                                     .steps_per_print = (uint64_t)o->steps_per_print,
                                                     .breakdown = o->wall_clock_breakdown,
                                                     .run_id = run->persist.id,
                                                     .resumed_step = run->persist.resumed_step,
                                                     .world = tw_coll_size(run->coll),
                                                     .n_nodes = tw_coll_n_nodes(run->coll),
                                                     .n_threads = run->cores.own,
                                                     .least_threads = run->cores.least,
                                                     .most_threads = run->cores.most,
                                                     .flops_per_token = flops_per_token(run),
                                                     .peak_flops = o->peak_flops,
                                                     .link_bps = o->link_bps};
    }
}

/* Rank 0's, and so the same on all. */
static tw_status_t draw_id(run_t *run)
{
    uint64_t own = 0, *all = tw_agree_alloc(run->coll, sizeof(*all));
    while (own == 0) {
        if (getrandom(&own, sizeof(own), 0) != (ssize_t)sizeof(own)) {
            own = tw_time_ns();
        }
    }
    tw_status_t status = all ? tw_agree_gather(run->coll, &own, sizeof(own), all) : TW_ERR_NO_MEMORY;
    run->persist.id = status == TW_OK ? all[0] : 0;
    free(all);
    return status;
}

static tw_status_t restore(run_t *run)
{
    run->persist.engine = run->engine;
    tw_status_t status = tw_persist_init(&run->persist, run->coll);
    status = status == TW_OK ? tw_persist_restore(&run->persist) : status;
    run->is_agreed = status != TW_ERR_PEER && !run->persist.is_alone;
    ask_output(run);
    return status;
}

/* What a rank does for itself, before it needs the others. */
static tw_status_t prepare(run_t *run, int world, int n_nodes, int is_first)
{
    TW_TRY(tw_train_config_create(run->params->config, run->params->sets, run->params->n_sets, &run->config));
    run->options = tw_train_config_options(run->config);
    TW_TRY(tw_train_config_resolve(run->config, world, n_nodes));
    if (is_first) {
        tw_train_config_say(run->config);
        TW_TRY(run->params->prepare ? run->params->prepare(run->params->ctx) : TW_OK);
    }
    TW_TRY(open_data(run));
    if (is_first) {
        say_validation(run);
    }
    TW_TRY(create_model(run));
    run->sampling = (tw_sampling_t){
        .options = run->options, .data = run->data, .params = run->params, .is_first = is_first};
    return tw_sampling_init(&run->sampling, tw_model_config_get(run->model)->vocab_size);
}

static tw_status_t prepare_all(run_t *run)
{
    tw_attempt_t attempt;
    int rank = tw_coll_rank(run->coll);
    tw_attempt_begin(&attempt, run->coll, "begin");
    tw_status_t status = prepare(run, tw_coll_size(run->coll), tw_coll_n_nodes(run->coll), rank == 0);
    return tw_attempt_end(&attempt, status);
}

/* Sizes of the model's memory depend on its threads. */
static tw_status_t choose_threads(run_t *run)
{
    TW_TRY(tw_cores_of_job(run->coll, run->options->threads, &run->cores));
    tw_status_t status = tw_pool_create(run->cores.own, &run->pool);
    status = status == TW_OK ? tw_model_set_pool(run->model, run->pool) : status;
    return tw_agree_status(run->coll, status);
}

static tw_status_t check_memory(const run_t *run)
{
    tw_need_t need;
    if (!run->options->check_memory) {
        return TW_OK;
    }
    TW_TRY(tw_need_of(run->options, run->model, tw_coll_size(run->coll), tw_coll_n_nodes(run->coll), &need));
    return tw_fit_check_job(run->coll, &need);
}

static tw_status_t set_up(run_t *run)
{
    tw_status_t status = join(run);
    if (status == TW_OK) {
        status = prepare_all(run);
    }
    if (status == TW_OK) {
        status = compare_ranks(run);
    }
    if (status == TW_OK) {
        status = choose_threads(run);
    }
    if (status == TW_OK) {
        status = check_memory(run);
    }
    if (status == TW_OK) {
        status = draw_id(run);
    }
    if (status == TW_OK) {
        status = create_engine(run);
    }
    return status == TW_OK ? restore(run) : status;
}

static void tear_down(run_t *run, tw_status_t status)
{
    /* an alarm is raised on all ranks at once; else nobody is to wait for this rank */
    if (status != TW_OK && status != TW_ERR_MISMATCH && run->is_started && !run->is_agreed) {
        tw_coll_abort(run->coll);
    }
    tw_persist_cleanup(&run->persist);
    tw_sampling_cleanup(&run->sampling);
    tw_engine_destroy(run->engine);
    tw_model_destroy(run->model);
    tw_pool_destroy(run->pool);
    if (run->device) {
        run->device->destroy(run->device);
    }
    tw_data_close(run->data);
    tw_coll_destroy(run->own_coll);
    tw_train_config_destroy(run->config);
    free(run->step_secs);
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static int is_due(int64_t every, uint64_t step)
{
    return every > 0 && step % (uint64_t)every == 0;
}

static void note_step(run_t *run, const tw_trainer_step_t *step)
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

static tw_status_t check(run_t *run)
{
    int equal;
    tw_status_t status = tw_engine_check(run->engine, &equal);
    if (status == TW_OK && !equal) {
        tw_error("the nodes hold different weights after step %llu",
                 (unsigned long long)tw_engine_steps_done(run->engine));
        status = TW_ERR_MISMATCH;
    }
    run->result->replicas_equal = status == TW_OK;
    return status;
}

/* What a step leaves in flight, the next one waits for. Where none follows at once, the wait is still
 * training's. */
static tw_status_t drain(run_t *run)
{
    double begin = tw_time_sec();
    tw_status_t status = tw_engine_drain(run->engine);
    run->result->total_sec += tw_time_sec() - begin;
    return status;
}

static tw_status_t sample(run_t *run)
{
    run->is_agreed = 0;
    TW_TRY(drain(run));
    return tw_sampling_run(&run->sampling, run->engine);
}

static tw_status_t one_step(run_t *run)
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
        status = check(run);
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
        status = sample(run);
    }
    return status;
}

/* ---- what it came to ----------------------------------------------------------------------------------- */

/* What each rank tells the others at the end. */
typedef struct account {
    tw_engine_totals_t training, aside[TW_ENGINE_ASIDE_COUNT];
    uint64_t before_bytes, resident_bytes, planned_bytes; /* held before the engine; beyond that; planned */
    uint64_t file_bytes, device_bytes, lag_blocks;
    double total_sec, step_sec, lag_max;
} account_t;

/* What the planner says of this run, at the bits that the lossless delta took. */
static uint64_t planned_bytes(const run_t *run, const tw_engine_totals_t *training)
{
    tw_plan_memory_t memory;
    tw_plan_cluster_t cluster = tw_plan_cluster_of(tw_coll_size(run->coll), tw_coll_n_nodes(run->coll));
    cluster.delta_bits =
        training->delta_elems > 0 ? 8.0 * (double)training->delta_bytes / (double)training->delta_elems : 0.0;
    tw_status_t status = tw_plan_memory_of(run->options, run->model, &cluster, &memory);
    return status == TW_OK ? (uint64_t)tw_plan_memory_sum(&memory) : 0;
}

static account_t own_account(run_t *run)
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
    account.planned_bytes = planned_bytes(run, &account.training);
    account.lag_max = tw_engine_lag(run->engine, &account.lag_blocks);
    return account;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
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
    result->device_bytes = larger(result->device_bytes, account->device_bytes);
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

static tw_status_t settle(run_t *run)
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

/* ---- the run ------------------------------------------------------------------------------------------- */

tw_status_t tw_trainer_run(const tw_trainer_params_t *params, tw_trainer_result_t *result)
{
    run_t run = {.params = params, .result = result};
    *result = (tw_trainer_result_t){.val_loss = NAN};
    tw_status_t status = set_up(&run);
    if (status == TW_OK && run.options->steps == 0) {
        run.is_agreed = 0;
        status = tw_engine_validate(run.engine, &result->val_loss);
        status = status == TW_OK && run.options->sample_steps > 0 ? sample(&run) : status;
    }
    if (status == TW_OK && tw_engine_steps_done(run.engine) >= (uint64_t)run.options->steps) {
        status = tw_persist_nothing_done(&run.persist);
        run.is_agreed = status != TW_ERR_PEER;
    }
    while (status == TW_OK && !result->is_stopped &&
           tw_engine_steps_done(run.engine) < (uint64_t)run.options->steps) {
        status = one_step(&run);
    }
    if (status == TW_ERR_MISMATCH) { /* an alarm, of all ranks: what was whole before it stays */
        (void)tw_persist_finish(&run.persist);
    }
    if (status == TW_OK) {
        run.is_agreed = 0;
        status = settle(&run);
    }
    tear_down(&run, status);
    return status;
}

tw_status_t tw_trainer_check(const tw_trainer_params_t *params, int world, int n_nodes)
{
    run_t run = {.params = params};
    tw_need_t need;
    tw_status_t status = prepare(&run, world, n_nodes, 0);
    if (status == TW_OK && run.options->check_memory) {
        status = tw_need_of(run.options, run.model, world, n_nodes, &need);
        status = status == TW_OK ? tw_fit_check_here(&need, world) : status;
    }
    tear_down(&run, TW_OK);
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
