/* Saves the engine's pieces into files of checkpoint/. resume.c loads them. */
#include "trainer/persist.h"

#include <math.h>
#include <stdlib.h>

#include "trainer/agreement.h"
#include "trainer/export.h"
#include "trainer/facts.h"

void tw_persist_cleanup(tw_persist_t *persist)
{
    tw_checkpoint_save_drop(persist->saving);
    persist->saving = NULL;
    tw_coll_destroy(persist->own);
    persist->own = NULL;
    tw_lines_cleanup(&persist->facts);
    if (persist->lock) {
        fclose(persist->lock);
        persist->lock = NULL;
    }
}

/** Make the communicator for files. It has no timeout, since file operations wait for disks. Its operations
 *  end early only if a rank dies. A rank that waits for long logs that. */
static tw_status_t create_group(tw_persist_t *persist, tw_coll_t *coll)
{
    int world = tw_coll_size(coll), *ranks = calloc((size_t)world, sizeof(*ranks));
    TW_FAIL_IF(!ranks, TW_ERR_NO_MEMORY, "out of memory");
    for (int rank = 0; rank < world; rank++) {
        ranks[rank] = rank;
    }
    tw_status_t status = tw_coll_group_create(coll, ranks, world, &persist->own);
    if (status == TW_OK) {
        tw_coll_patient_set(persist->own);
    }
    free(ranks);
    return status;
}

/** Prepare the folders. Only rank 0 calls it. A run that writes no checkpoint takes no lock. */
static tw_status_t prepare_folders(tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    tw_status_t status = *o->checkpoint ? tw_checkpoint_prepare(o->checkpoint) : TW_OK;
    if (status == TW_OK && *o->checkpoint && (o->steps > 0 || *o->save_model)) {
        status = tw_checkpoint_lock(o->checkpoint, persist->id, &persist->lock);
    }
    status = status == TW_OK && *o->save_best ? tw_checkpoint_prepare(o->save_best) : status;
    return status == TW_OK && *o->save_model ? tw_checkpoint_prepare(o->save_model) : status;
}

tw_status_t tw_persist_init(tw_persist_t *persist, tw_coll_t *coll)
{
    const tw_train_options_t *o = persist->options;
    persist->saved_sec = tw_time_sec();
    if (!*o->resume && !*o->init_from && !*o->checkpoint) {
        return TW_OK;
    }
    TW_TRY(create_group(persist, coll));
    tw_status_t status = tw_facts_of_run(persist->config, persist->data, &persist->facts);
    if (status == TW_OK && tw_coll_rank(coll) == 0) {
        status = prepare_folders(persist);
    }
    return tw_agree_status(persist->own, status);
}

tw_checkpoint_piece_t *tw_persist_pieces(const tw_persist_t *persist, size_t *n_pieces)
{
    const tw_engine_piece_t *own = tw_engine_pieces(persist->engine, n_pieces);
    tw_checkpoint_piece_t *pieces = calloc(*n_pieces + 1, sizeof(*pieces));
    TW_FAIL_IF(!pieces, NULL, "out of memory for a checkpoint");
    for (size_t p = 0; p < *n_pieces; p++) {
        pieces[p] = (tw_checkpoint_piece_t){.tensor = own[p].tensor,
                                            .first = own[p].first,
                                            .n_elems = own[p].n_elems,
                                            .values = {[TW_CHECKPOINT_MASTER] = own[p].master,
                                                       [TW_CHECKPOINT_M] = own[p].m,
                                                       [TW_CHECKPOINT_V] = own[p].v}};
    }
    return pieces;
}

/* ---- during a step ------------------------------------------------------------------------------------- */

static uint32_t notices(void *ctx)
{
    const tw_persist_t *persist = ctx;
    const tw_train_options_t *o = persist->options;
    double minutes = (tw_time_sec() - persist->saved_sec) / 60;
    uint32_t stop = persist->stop && *persist->stop ? TW_PERSIST_STOP : 0;
    uint32_t written =
        persist->saving && tw_checkpoint_save_is_written(persist->saving) ? TW_PERSIST_WRITTEN : 0;
    uint32_t taken = persist->saving && tw_checkpoint_save_is_taken(persist->saving) ? TW_PERSIST_TAKEN : 0;
    uint32_t due = o->checkpoint_minutes > 0 && minutes >= o->checkpoint_minutes ? TW_PERSIST_DUE : 0;
    return stop | written | due | taken;
}

/** Wait until masters and moments may change, since this rank's file is written from them. All ranks wait
 *  here for the slowest disk, without a limit. In the collectives of the update they would time out. */
static tw_status_t before_update(void *ctx)
{
    const tw_persist_t *persist = ctx;
    if (!persist->saving || (tw_engine_heard(persist->engine).all & TW_PERSIST_TAKEN)) {
        return TW_OK;
    }
    tw_checkpoint_save_release(persist->saving);
    return tw_agree_status(persist->own, TW_OK);
}

tw_engine_hooks_t tw_persist_hooks(tw_persist_t *persist)
{
    return (tw_engine_hooks_t){.notices = notices, .before_update = before_update, .ctx = persist};
}

/* ---- saving and exporting ------------------------------------------------------------------------------ */

/** Return 1 if this rank writes its pieces. In stage 0 all ranks have all pieces, and rank 0 writes them. */
static int writes_pieces(const tw_persist_t *persist)
{
    return persist->options->stage > 0 || tw_coll_rank(persist->own) == 0;
}

/** Do everything that comes before the ranks write their files. */
static tw_status_t begin_save(tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    size_t n_pieces;
    tw_engine_past_t past = tw_engine_past_get(persist->engine);
    tw_status_t status = tw_engine_sync(persist->engine);
    tw_checkpoint_piece_t *pieces = tw_persist_pieces(persist, &n_pieces);
    status = tw_agree_status(persist->own, status == TW_OK && !pieces ? TW_ERR_NO_MEMORY : status);
    if (status == TW_OK) {
        tw_checkpoint_state_t state = {.folder = o->checkpoint,
                                       .keep = (size_t)o->checkpoint_keep,
                                       .model = persist->model,
                                       .run = {.step = tw_engine_steps_done(persist->engine),
                                               .seed = (uint64_t)o->seed,
                                               .batch = (uint64_t)o->batch,
                                               .seq_len = (uint64_t)o->sequence,
                                               .id = persist->id,
                                               .recent_loss = tw_engine_recent_loss(persist->engine),
                                               .best_val = persist->best_val,
                                               .passed_over = past.passed_over,
                                               .history = past.history,
                                               .n_history = past.n_history,
                                               .facts = persist->facts.text},
                                       .pieces = pieces,
                                       .n_pieces = writes_pieces(persist) ? n_pieces : 0};
        persist->saved_sec = tw_time_sec();
        status = tw_checkpoint_save_begin(persist->own, &state, &persist->saving);
    }
    free(pieces);
    return status;
}

tw_status_t tw_persist_finish(tw_persist_t *persist)
{
    tw_checkpoint_saving_t *saving = persist->saving;
    persist->saving = NULL;
    return saving ? tw_checkpoint_save_end(saving) : TW_OK;
}

const char *tw_persist_source(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    return tw_train_resumes_by_itself(o) ? o->checkpoint : o->resume;
}

/** Export the model on rank 0, from the checkpoint that was just written or resumed from. */
static tw_status_t export_to(const tw_persist_t *persist, const char *checkpoints, const char *folder)
{
    tw_status_t status = TW_OK;
    if (tw_coll_rank(persist->own) == 0) {
        status = tw_export_model(persist->options, persist->model, checkpoints,
                                 tw_engine_steps_done(persist->engine), folder);
    }
    return tw_agree_status(persist->own, status);
}

static int is_last(const tw_persist_t *persist)
{
    return tw_engine_steps_done(persist->engine) == (uint64_t)persist->options->steps;
}

int tw_persist_is_stopped(const tw_persist_t *persist)
{
    return (tw_engine_heard(persist->engine).any & TW_PERSIST_STOP) != 0;
}

/** Return 1 if a checkpoint must begin after this step. */
static int begins(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    uint64_t step = tw_engine_steps_done(persist->engine);
    int is_step = o->checkpoint_every > 0 && step % (uint64_t)o->checkpoint_every == 0;
    int is_time = (tw_engine_heard(persist->engine).first & TW_PERSIST_DUE) != 0;
    return *o->checkpoint &&
           (is_last(persist) || is_step || is_time || persist->is_best || tw_persist_is_stopped(persist));
}

static int can_finish(const tw_persist_t *persist)
{
    return persist->saving && (tw_engine_heard(persist->engine).all & TW_PERSIST_WRITTEN);
}

int tw_persist_is_due(const tw_persist_t *persist)
{
    return begins(persist) || can_finish(persist);
}

void tw_persist_validated(tw_persist_t *persist, double loss)
{
    if (*persist->options->save_best && isfinite(loss) &&
        (persist->best_val == 0 || loss < persist->best_val)) {
        persist->best_val = loss;
        persist->is_best = 1;
    }
}

/** Begin a checkpoint. Wait for it only if it is the last one, or if a model is exported from it. */
static tw_status_t save_step(tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    int is_best = persist->is_best, is_end = is_last(persist) || tw_persist_is_stopped(persist);
    persist->is_best = 0;
    TW_TRY(begin_save(persist));
    if (!is_best && !is_end) {
        return TW_OK;
    }
    TW_TRY(tw_persist_finish(persist));
    TW_TRY(is_best ? export_to(persist, o->checkpoint, o->save_best) : TW_OK);
    return is_last(persist) && *o->save_model ? export_to(persist, o->checkpoint, o->save_model) : TW_OK;
}

tw_status_t tw_persist_step_done(tw_persist_t *persist)
{
    int is_begun = begins(persist);
    if (is_begun || can_finish(persist)) {
        TW_TRY(tw_persist_finish(persist)); /* finish the previous checkpoint */
    }
    return is_begun ? save_step(persist) : TW_OK;
}

tw_status_t tw_persist_nothing_done(tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    if (!*o->save_model) {
        return TW_OK;
    }
    if (persist->resumed_step > 0) {
        return export_to(persist, tw_persist_source(persist), o->save_model);
    }
    TW_TRY(begin_save(persist));
    TW_TRY(tw_persist_finish(persist));
    return export_to(persist, o->checkpoint, o->save_model);
}
