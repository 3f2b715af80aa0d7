/* A rank of a set's run. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/zero/zero.h"

#define MAX_KEYS 24
#define SEQUENCE 128

typedef struct keys {
    char text[MAX_KEYS][256];
    const char *list[MAX_KEYS];
    size_t n;
} keys_t;

typedef struct run {
    const zero_options_t *options;
    FILE *metrics;       /* or NULL */
    XXH64_state_t *hash; /* hash of all losses */
    tw_status_t status;
} run_t;

/* ---- the configuration --------------------------------------------------------------------------------- */

static void __attribute__((format(printf, 2, 3))) add_key(keys_t *keys, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(keys->text[keys->n], sizeof(keys->text[0]), format, args);
    va_end(args);
    keys->list[keys->n] = keys->text[keys->n];
    keys->n++;
}

/** Add the batch's keys: whole sequences of 128 tokens, or of what a rank gets if that is less. */
static void add_batch(keys_t *keys, const zero_options_t *options)
{
    int64_t ranks = (int64_t)options->n_nodes * options->ranks_per_node;
    int64_t own = options->tokens / ranks > 0 ? options->tokens / ranks : 1;
    int64_t sequence = own < SEQUENCE ? own : SEQUENCE;

    add_key(keys, "thinwire.sequence_length=%" PRId64, sequence);
    add_key(keys, "train_micro_batch_size_per_gpu=%" PRId64, own / sequence);
    add_key(keys, "gradient_accumulation_steps=1");
}

static void make_keys(keys_t *keys, const zero_options_t *options)
{
    keys->n = 0;
    add_batch(keys, options);
    add_key(keys, "thinwire.steps=%" PRId64, options->steps);
    add_key(keys, "thinwire.seed=%" PRId64, options->child_seed);
    add_key(keys, "model.n_params=%.0f", options->params);
    add_key(keys, "optimizer.params.lr=%.9g", options->lr);
    add_key(keys, "scheduler.params.warmup_num_steps=%" PRId64, options->warmup);
    if (options->data) {
        add_key(keys, "thinwire.data=%s", options->data);
    }
    for (const char *const *key = options->child->keys; *key; key++) {
        add_key(keys, "%s", *key);
    }
}

/* ---- a step -------------------------------------------------------------------------------------------- */

static tw_status_t write_step(const run_t *run, const tw_trainer_step_t *step)
{
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "set", run->options->child->name);
    tw_json_add_int(json, "seed", run->options->child_seed);
    tw_json_add_int(json, "round", run->options->child_round);
    tw_json_add_int(json, "step", (int64_t)step->step);
    tw_json_add_double(json, "loss", step->loss);
    tw_json_add_double(json, "lr", step->lr);
    tw_json_add_double(json, "delta_bits", step->delta_bits);
    tw_json_add_double(json, "step_sec", step->step_sec);
    tw_json_add_double(json, "wait_sec", step->wait_sec);
    tw_json_add_double(json, "compute_processor_sec", step->compute_processor_sec);
    tw_json_add_double(json, "progress_processor_sec", step->progress_processor_sec);
    tw_json_add_double(json, "update_processor_sec", step->update_processor_sec);
    tw_json_add_double(json, "exchange_processor_sec", step->exchange_processor_sec);
    tw_json_add_int(json, "inter_node_bytes", (int64_t)step->inter_node_bytes);
    tw_json_add_int(json, "memory_bytes", (int64_t)step->memory_bytes);
    tw_status_t status = tw_json_write_line(json, run->metrics);
    tw_json_destroy(json);
    return status;
}

static void zero_on_step(void *ctx, const tw_trainer_step_t *step)
{
    run_t *run = ctx;
    XXH64_update(run->hash, &step->loss, sizeof(step->loss));
    if (run->metrics && run->status == TW_OK) {
        run->status = write_step(run, step);
    }
}

/* ---- what it came to ----------------------------------------------------------------------------------- */

static zero_row_t row_of(const run_t *run, const tw_trainer_result_t *result)
{
    const zero_options_t *options = run->options;
    double steps = (double)result->steps;
    zero_row_t row = {.seed = options->child_seed,
                      .stage = result->stage,
                      .nodes = result->n_nodes,
                      .ranks_per_node = result->world / result->n_nodes,
                      .params = (int64_t)result->n_params,
                      .steps = (int64_t)result->steps,
                      .tokens = (int64_t)(result->tokens / result->steps),
                      .link_bps = options->link_bps,
                      .lr = options->lr,
                      .warmup = options->warmup,
                      .step_sec_median = result->step_sec,
                      .wait_share = result->wait_share,
                      .inter_node_bytes_per_step = (double)result->inter_node_bytes / steps,
                      .in_node_bytes_per_step = (double)result->in_node_bytes / steps,
                      .first_loss = result->first_loss,
                      .last_loss = result->last_loss,
                      .val_loss = result->val_loss,
                      .delta_bits = result->delta_bits,
                      .load_inter_node_bytes = (double)result->load_inter_node_bytes,
                      .val_inter_node_bytes = (double)result->val_inter_node_bytes,
                      .upkeep_inter_node_bytes = (double)result->upkeep_inter_node_bytes,
                      .peak_rss_bytes = (double)result->peak_rss_bytes,
                      .planned_rss_bytes = (double)result->planned_rss_bytes,
                      .before_rss_bytes = (double)result->before_rss_bytes,
                      .bytes_ratio = NAN,
                      .speedup = NAN,
                      .losses_equal = -1,
                      .ok = result->bytes_as_planned && result->replicas_equal && result->losses_finite};
    snprintf(row.set, sizeof(row.set), "%s", options->child->name);
    snprintf(row.losses, sizeof(row.losses), "%016" PRIx64, (uint64_t)XXH64_digest(run->hash));
    return row;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static tw_status_t train(run_t *run, tw_coll_t *coll, tw_trainer_result_t *result)
{
    keys_t keys;
    make_keys(&keys, run->options);
    const tw_trainer_params_t params = {
        .sets = keys.list, .n_sets = keys.n, .coll = coll, .on_step = zero_on_step, .ctx = run};
    tw_status_t status = tw_trainer_run(&params, result);
    return status == TW_OK ? run->status : status;
}

static tw_status_t open_metrics(run_t *run)
{
    const char *path = run->options->metrics;
    run->metrics = path ? fopen(path, "ae") : NULL;
    TW_FAIL_IF(path && !run->metrics, TW_ERR_IO, "%s: %s", path, strerror(errno));
    return TW_OK;
}

int zero_rank_run(const zero_options_t *options)
{
    const tw_coll_params_t params = {.mem = TW_MEM_HOST, .deterministic = 1, .progress_thread = 1};
    run_t run = {.options = options, .hash = XXH64_createState()};
    tw_trainer_result_t result;
    tw_coll_t *coll = NULL;
    tw_status_t status = run.hash ? tw_coll_world_create(&params, &coll) : TW_ERR_NO_MEMORY;

    if (status == TW_OK) {
        XXH64_reset(run.hash, 0);
        status = tw_coll_rank(coll) == 0 ? open_metrics(&run) : TW_OK;
    }
    status = status == TW_OK ? train(&run, coll, &result) : status;
    if (status == TW_OK && tw_coll_rank(coll) == 0) {
        const zero_row_t row = row_of(&run, &result);
        status = zero_row_write(options->child_out, &row);
    }
    if (run.metrics && fclose(run.metrics) != 0 && status == TW_OK) {
        status = tw_fail(TW_ERR_IO, "%s: %s", options->metrics, strerror(errno));
    }
    tw_coll_destroy(coll);
    XXH64_freeState(run.hash);
    return status == TW_OK ? 0 : 1;
}
