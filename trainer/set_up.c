/* Sets a run up and tears it down: configuration, data, model, engine. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "hpz/hpz.h"
#include "trainer/agreement.h"
#include "trainer/device/gpu.h"
#include "trainer/facts.h"
#include "trainer/fit.h"
#include "trainer/run_state.h"
#include "trainer/shape.h"

static tw_status_t run_join(tw_run_t *run)
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

/** Add lines for environment variables that must be equal on all ranks. */
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

/** Check that all ranks have the same settings. Otherwise they would compute a meaningless loss, or wait for
 *  each other for ever. */
static tw_status_t compare_ranks(const tw_run_t *run)
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

static tw_status_t open_data(tw_run_t *run)
{
    const tw_train_options_t *o = run->options;
    const tw_data_config_t config = {.path = o->data,
                                     .val_path = o->val_data,
                                     .vocab = o->vocab,
                                     .merges = o->merges,
                                     .tokenizer = o->tokenizer,
                                     .token_bytes = (size_t)o->token_bytes,
                                     .has_masks = o->loss_mask,
                                     .chat_style = (tw_data_style_t)o->chat_style,
                                     .chat_end = o->chat_end,
                                     .cache_dir = o->cache,
                                     .keeps_vocabulary = o->sample_steps > 0,
                                     .val_share = o->val_share,
                                     .is_aligned = o->document_token >= 0,
                                     .document_token = o->document_token};
    TW_TRY(tw_data_open(&config, &run->data));
    TW_FAIL_IF(tw_data_n_sequences(run->data, TW_DATA_TRAIN, (size_t)o->sequence) == 0, TW_ERR_CONFIG,
               "%s: %llu tokens for training are too few for a sequence of %lld (thinwire.sequence_length)",
               name_of_data(o), (unsigned long long)tw_data_n_tokens(run->data, TW_DATA_TRAIN),
               (long long)o->sequence);
    return tw_train_config_epochs(run->config,
                                  tw_data_n_sequences(run->data, TW_DATA_TRAIN, (size_t)o->sequence));
}

/** Warn if validation is wanted, but the text for it is too short. */
static void say_validation(const tw_run_t *run)
{
    const tw_train_options_t *o = run->options;
    uint64_t n = tw_data_n_tokens(run->data, TW_DATA_VAL);
    int is_wanted = o->val_sequences > 0 && (o->val_share > 0 || *o->val_data);
    if (is_wanted && tw_data_n_sequences(run->data, TW_DATA_VAL, (size_t)o->sequence) == 0) {
        tw_warn("%s: %llu tokens for validation are too few for a sequence of %lld: there is none",
                *o->val_data ? o->val_data : name_of_data(o), (unsigned long long)n, (long long)o->sequence);
    }
}

static tw_status_t check_groups(const tw_run_t *run)
{
    size_t n;
    const tw_model_tensor_t *tensors = tw_model_tensors(run->model, &n);
    const char **names = calloc(n, sizeof(*names));
    TW_FAIL_IF(!names, TW_ERR_NO_MEMORY, "out of memory for the names of tensors");
    for (size_t t = 0; t < n; t++) {
        names[t] = tensors[t].name;
    }
    tw_status_t status = tw_train_groups_check(run->options->groups, names, n);
    free(names);
    return status;
}

/** Make the model, on the rank's GPU if the configuration says so. Before the job runs (tw_trainer_check),
 *  only check that there is a GPU, and compute the model's sizes. */
static tw_status_t create_model_there(tw_run_t *run, const tw_model_config_t *config)
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

static tw_status_t run_create_model(tw_run_t *run)
{
    const tw_train_options_t *o = run->options;
    tw_model_config_t config;
    TW_TRY(tw_trainer_shape(o, tw_data_vocab_size(run->data), &config));
    TW_FAIL_IF(
        config.vocab_size < tw_data_vocab_size(run->data), TW_ERR_CONFIG,
        "%s has tokens up to %zu, but the model knows %zu tokens: see model.vocab_size, thinwire.vocab",
        name_of_data(o), tw_data_vocab_size(run->data) - 1, config.vocab_size);
    TW_FAIL_IF((size_t)o->sequence > config.n_positions, TW_ERR_CONFIG,
               "thinwire.sequence_length is %lld, but the model has %zu positions: see model.n_positions",
               (long long)o->sequence, config.n_positions);
    TW_TRY(create_model_there(run, &config));
    TW_TRY(check_groups(run));
    return tw_trainer_check_sizes(o, run->model);
}

static tw_status_t create_engine(tw_run_t *run)
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

/** Count the operations for a token. The forward pass has a multiplication and an addition for each product,
 *  the backward pass twice as many. */
static double flops_per_token(const tw_run_t *run)
{
    double products = 0;
    for (size_t unit = 0; unit < tw_model_n_units(run->model); unit++) {
        products += tw_model_unit_products(run->model, unit, (size_t)run->options->sequence);
    }
    return 3 * 2 * products;
}

static void ask_output(const tw_run_t *run)
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

/** Draw the run's id on rank 0, and give it to all ranks. */
static tw_status_t draw_id(tw_run_t *run)
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

static tw_status_t restore(tw_run_t *run)
{
    run->persist.engine = run->engine;
    tw_status_t status = tw_persist_init(&run->persist, run->coll);
    status = status == TW_OK ? tw_persist_restore(&run->persist) : status;
    run->is_agreed = status != TW_ERR_PEER && !run->persist.is_alone;
    ask_output(run);
    return status;
}

tw_status_t tw_run_prepare(tw_run_t *run, int world, int n_nodes, int is_first)
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
    TW_TRY(run_create_model(run));
    run->sampling = (tw_sampling_t){
        .options = run->options, .data = run->data, .params = run->params, .is_first = is_first};
    return tw_sampling_init(&run->sampling, tw_model_config_get(run->model)->vocab_size);
}

static tw_status_t prepare_all(tw_run_t *run)
{
    tw_attempt_t attempt;
    int rank = tw_coll_rank(run->coll);
    tw_attempt_begin(&attempt, run->coll, "begin");
    tw_status_t status = tw_run_prepare(run, tw_coll_size(run->coll), tw_coll_n_nodes(run->coll), rank == 0);
    return tw_attempt_end(&attempt, status);
}

/** Choose how many threads compute, before memory is reserved: its size depends on their number. */
static tw_status_t choose_threads(tw_run_t *run)
{
    TW_TRY(tw_cores_of_job(run->coll, run->options->threads, &run->cores));
    tw_status_t status = tw_pool_create(run->cores.own, &run->pool);
    status = status == TW_OK ? tw_model_set_pool(run->model, run->pool) : status;
    return tw_agree_status(run->coll, status);
}

static tw_status_t check_memory(const tw_run_t *run)
{
    tw_need_t need;
    if (!run->options->check_memory) {
        return TW_OK;
    }
    TW_TRY(tw_need_of(run->options, run->model, tw_coll_size(run->coll), tw_coll_n_nodes(run->coll), &need));
    return tw_fit_check_job(run->coll, &need);
}

tw_status_t tw_run_set_up(tw_run_t *run)
{
    TW_TRY(run_join(run));
    TW_TRY(prepare_all(run));
    TW_TRY(compare_ranks(run));
    TW_TRY(choose_threads(run));
    TW_TRY(check_memory(run));
    TW_TRY(draw_id(run));
    TW_TRY(create_engine(run));
    return restore(run);
}

void tw_run_tear_down(tw_run_t *run, tw_status_t status)
{
    /* an alarm comes on all ranks at once; after another failure no rank may wait for this one */
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
