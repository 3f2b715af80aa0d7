/* Loads the state that a run starts from: a checkpoint, given weights, or neither. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/agreement.h"
#include "trainer/facts.h"
#include "trainer/persist.h"

#define NO_STEP UINT64_MAX /* the path itself is a step's folder */

static void compare_run(const tw_persist_t *persist, const tw_checkpoint_run_t *run)
{
    const tw_train_options_t *o = persist->options;
    const char *source = tw_persist_source(persist);
    if (run->seed != (uint64_t)o->seed || run->batch != (uint64_t)o->batch ||
        run->seq_len != (uint64_t)o->sequence) {
        tw_warn("%s: saved with seed %" PRIu64 ", a batch of %" PRIu64 " and sequences of %" PRIu64
                " tokens; with others now, this run sees the data in another order",
                source, run->seed, run->batch, run->seq_len);
    }
    if (run->step > (uint64_t)o->steps) {
        tw_warn("%s: it is of step %" PRIu64 ", beyond thinwire.steps %" PRId64, source, run->step, o->steps);
    }
    if (!run->facts) {
        tw_warn("%s: saved by an older program: whether it had the same model.n_head, "
                "model.layer_norm_epsilon, data and schedule cannot be checked",
                source);
    } else {
        tw_facts_say_differences(source, run->facts, persist->facts.text);
    }
}

/** Check that all ranks see the same checkpoint. Nodes that have copies of the folder may have older ones. */
static tw_status_t agree_checkpoint(const tw_persist_t *persist, const tw_checkpoint_run_t *run)
{
    tw_lines_t lines = {0};
    tw_lines_add(&lines, "thinwire.resume, the newest step there,", "%" PRIu64, run->step);
    tw_lines_add(&lines, "thinwire.resume, the manifest's checksum,", "%016" PRIx64, run->checksum);
    tw_status_t status = tw_agree_on(persist->own, &lines);
    tw_lines_cleanup(&lines);
    return status;
}

/** Take over the resumed run's id. But if thinwire.checkpoint has later steps of that run, keep the new id,
 *  since those steps would count as this run's newest. */
static tw_status_t keep_id(tw_persist_t *persist, const tw_checkpoint_run_t *run)
{
    const char *folder = persist->options->checkpoint;
    uint64_t id = run->id;
    if (id == 0 || (*folder && tw_checkpoint_has_later(folder, id, run->step))) {
        id = persist->id;
    }
    uint64_t *all = tw_agree_alloc(persist->own, sizeof(*all));
    tw_status_t status = all ? tw_agree_gather(persist->own, &id, sizeof(id), all) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        persist->is_new = persist->id == all[0] && run->id != 0;
        persist->id = all[0]; /* rank 0 writes to the folder, so its id counts */
    }
    free(all);
    return status;
}

static tw_status_t read_pieces(const tw_persist_t *persist, tw_checkpoint_t *checkpoint)
{
    size_t n_pieces;
    tw_checkpoint_piece_t *pieces = tw_persist_pieces(persist, &n_pieces);
    tw_status_t status = pieces ? tw_checkpoint_read(checkpoint, pieces, n_pieces) : TW_ERR_NO_MEMORY;
    free(pieces);
    return status;
}

/** Read the files on all ranks. Returns this rank's status, or the status of the first rank that failed. */
static tw_status_t read_checkpoint(const tw_persist_t *persist, const char *path, uint64_t step,
                                   tw_checkpoint_t **checkpoint)
{
    tw_attempt_t attempt;
    tw_attempt_begin(&attempt, persist->own, "resume");
    tw_status_t status = step == NO_STEP ? tw_checkpoint_open(path, persist->model, checkpoint)
                                         : tw_checkpoint_open_step(path, step, persist->model, checkpoint);
    TW_TRY(tw_attempt_end(&attempt, status));
    TW_TRY(agree_checkpoint(persist, tw_checkpoint_run_get(*checkpoint)));
    tw_attempt_begin(&attempt, persist->own, "resume");
    return tw_attempt_end(&attempt, read_pieces(persist, *checkpoint));
}

/** Make the weights of all ranks from the pieces. If tw_engine_loaded fails on one rank, the others do not
 *  know it (is_alone). If a rank's device fails afterwards, all ranks know it. */
static tw_status_t put_in_place(tw_persist_t *persist, uint64_t step, double recent_loss, const char *what)
{
    tw_attempt_t attempt;
    persist->is_alone = 1;
    TW_TRY(tw_engine_loaded(persist->engine, step, recent_loss));
    persist->is_alone = 0;
    tw_attempt_begin(&attempt, persist->own, what);
    return tw_attempt_end(&attempt, tw_engine_bring_state(persist->engine));
}

static tw_status_t take_checkpoint(tw_persist_t *persist, const tw_checkpoint_t *checkpoint)
{
    const tw_checkpoint_run_t *run = tw_checkpoint_run_get(checkpoint);
    if (tw_coll_rank(persist->own) == 0 && persist->options->steps > 0) {
        compare_run(persist, run);
    }
    persist->is_alone = 1;
    TW_TRY(keep_id(persist, run));
    persist->is_alone = 0;
    persist->resumed_step = run->step;
    persist->best_val = run->best_val;
    const tw_engine_past_t past = {
        .passed_over = run->passed_over, .history = run->history, .n_history = run->n_history};
    tw_engine_past_set(persist->engine, &past);
    return put_in_place(persist, run->step, run->recent_loss, "resume");
}

/** Try to resume from a step of the folder `path`, or, with NO_STEP, from `path` itself. *verdict is the
 *  status of the first rank that failed, the same on all ranks. */
static tw_status_t try_step(tw_persist_t *persist, const char *path, uint64_t step, tw_status_t *verdict)
{
    tw_checkpoint_t *checkpoint = NULL;
    tw_status_t status = read_checkpoint(persist, path, step, &checkpoint);
    *verdict = tw_agree_status(persist->own, status);
    if (*verdict == TW_OK) {
        status = take_checkpoint(persist, checkpoint);
    }
    tw_checkpoint_close(checkpoint);
    return status;
}

/* ---- given weights ------------------------------------------------------------------------------------- */

static void read_weights(const tw_persist_t *persist, const tw_weights_t *weights)
{
    size_t n_pieces;
    const tw_engine_piece_t *pieces = tw_engine_pieces(persist->engine, &n_pieces);
    for (size_t p = 0; p < n_pieces; p++) {
        tw_weights_read(weights, pieces[p].tensor, pieces[p].first, pieces[p].n_elems, pieces[p].master);
    }
}

/** Check that all ranks have the same weights, since each may find other files. A rank reads only a part. */
static tw_status_t agree_weights(const tw_persist_t *persist, const tw_weights_t *weights)
{
    tw_lines_t lines = {0};
    tw_lines_add(&lines, "model.init_from, a checksum of the weights there,", "%016" PRIx64,
                 tw_weights_checksum(weights));
    tw_status_t status = tw_agree_on(persist->own, &lines);
    tw_lines_cleanup(&lines);
    return status;
}

static tw_status_t begin_with_weights(tw_persist_t *persist)
{
    tw_weights_t *weights = NULL;
    tw_attempt_t attempt;
    tw_attempt_begin(&attempt, persist->own, "begin with model.init_from");
    tw_status_t status = tw_weights_open(persist->options->init_from, persist->model, &weights);
    status = tw_attempt_end(&attempt, status);
    status = status == TW_OK ? agree_weights(persist, weights) : status;
    if (status == TW_OK && tw_coll_rank(persist->own) == 0) {
        tw_weights_say_left(persist->options->init_from, weights);
    }
    if (status == TW_OK) {
        read_weights(persist, weights);
    }
    tw_weights_close(weights);
    return status == TW_OK ? put_in_place(persist, 0, 0, "begin with model.init_from") : status;
}

/* ---- the newest checkpoint that is not damaged --------------------------------------------------------- */

#define MOST_TRIED 16

/* The steps that a rank finds in a folder of checkpoints; or is_step, if the path is a step's folder. */
typedef struct listing {
    uint64_t n, steps[MOST_TRIED]; /* steps, the newest first */
    int64_t status, is_step;
} listing_t;

static listing_t list(const char *path)
{
    uint64_t *steps;
    size_t n_steps;
    listing_t listing = {.is_step = tw_checkpoint_is_step(path)};
    if (listing.is_step) {
        return listing;
    }
    listing.status = tw_checkpoint_candidates(path, &steps, &n_steps);
    for (size_t i = 0; listing.status == TW_OK && i < n_steps && i < MOST_TRIED; i++) {
        listing.steps[listing.n++] = steps[i];
    }
    free(steps);
    return listing;
}

static tw_status_t agree_newest(const tw_persist_t *persist, const listing_t *own)
{
    tw_lines_t lines = {0};
    if (own->n > 0) {
        tw_lines_add(&lines, "thinwire.resume, the newest step there,", "%" PRIu64, own->steps[0]);
    } else {
        tw_lines_add(&lines, "thinwire.resume, the newest step there,", "%s",
                     own->is_step ? "its own" : "none");
    }
    tw_status_t status = tw_agree_on(persist->own, &lines);
    tw_lines_cleanup(&lines);
    return status;
}

/** Give rank 0's list to all ranks, and check that they see the same newest step. */
static tw_status_t agree_listing(const tw_persist_t *persist, const char *path, listing_t *out)
{
    listing_t own = list(path), *all = tw_agree_alloc(persist->own, sizeof(*all));
    tw_status_t status = all ? tw_agree_status(persist->own, (tw_status_t)own.status) : TW_ERR_NO_MEMORY;
    status = status == TW_OK ? agree_newest(persist, &own) : status;
    status = status == TW_OK ? tw_agree_gather(persist->own, &own, sizeof(own), all) : status;
    if (status == TW_OK) {
        *out = all[0];
    }
    free(all);
    return status;
}

/** Return 1 if a status means that the checkpoint is damaged: another one may be readable. */
static int is_damage(tw_status_t status)
{
    return status == TW_ERR_FORMAT || status == TW_ERR_TRUNCATED || status == TW_ERR_NOT_FOUND ||
           status == TW_ERR_IO;
}

/** On rank 0, rename a damaged checkpoint. Otherwise the next job would try it again as the newest one. */
static void pass_over(const tw_persist_t *persist, const char *path, uint64_t step, int is_last)
{
    if (tw_coll_rank(persist->own) != 0) {
        return;
    }
    tw_warn("%s: step %" PRIu64 " is damaged: %s", path, step,
            is_last ? "there is none before it" : "going back to the one before it");
    if (!is_last && strcmp(path, persist->options->checkpoint) == 0) {
        (void)tw_checkpoint_set_aside(path, step);
    }
}

/** Resume from the newest step of the list that no rank finds damaged. */
static tw_status_t resume_newest(tw_persist_t *persist, const char *path, const listing_t *listing)
{
    tw_status_t status = TW_ERR_NOT_FOUND, verdict = TW_ERR_NOT_FOUND;
    for (uint64_t i = 0; i < listing->n && is_damage(verdict); i++) {
        status = try_step(persist, path, listing->steps[i], &verdict);
        if (is_damage(verdict)) {
            pass_over(persist, path, listing->steps[i], i + 1 == listing->n);
        }
    }
    return status;
}

static tw_status_t resume(tw_persist_t *persist)
{
    const char *path = tw_persist_source(persist);
    tw_status_t verdict;
    listing_t listing;
    TW_TRY(agree_listing(persist, path, &listing));
    if (listing.n > 0) {
        return resume_newest(persist, path, &listing);
    }
    if (!listing.is_step && tw_train_resumes_by_itself(persist->options)) {
        return *persist->options->init_from ? begin_with_weights(persist) : TW_OK;
    }
    return try_step(persist, path, NO_STEP, &verdict);
}

/* ---- restoring a run ----------------------------------------------------------------------------------- */

/** Claim the folder for this run from now on. Only rank 0 calls it. */
static tw_status_t claim_folder(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    tw_checkpoint_others_t others;
    TW_TRY(tw_checkpoint_claim(o->checkpoint, persist->id, &others));
    tw_checkpoint_lock_sign(persist->lock, persist->id);
    if (others.n_steps > 0 && persist->is_new) { /* steps of a resumed run were logged before */
        tw_warn("%s: there are steps of another run, up to step %" PRIu64
                ": this one will not go on from them, and replaces those of the same number%s",
                o->checkpoint, others.last_step, *o->resume ? "" : "; to go on is thinwire.resume");
    }
    return TW_OK;
}

tw_status_t tw_persist_restore(tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    tw_status_t status = TW_OK;
    if (*o->resume) {
        status = resume(persist);
    } else if (*o->init_from) {
        status = begin_with_weights(persist);
    }
    /* a run that takes no steps leaves the folder as it is */
    if (status != TW_OK || !*o->checkpoint || o->steps == 0) {
        return status;
    }
    return tw_agree_status(persist->own, tw_coll_rank(persist->own) == 0 ? claim_folder(persist) : TW_OK);
}

/* ---- rolling back -------------------------------------------------------------------------------------- */

tw_status_t tw_persist_rollback(tw_persist_t *persist)
{
    const char *folder = persist->options->checkpoint;
    uint64_t bad_step = tw_engine_steps_done(persist->engine);
    uint64_t passed_over = tw_engine_past_get(persist->engine).passed_over;
    listing_t listing;
    persist->is_alone = 1;
    TW_TRY(tw_engine_drain(persist->engine));
    persist->is_alone = 0;
    TW_TRY(tw_persist_finish(persist));
    TW_TRY(agree_listing(persist, folder, &listing));
    if (listing.n == 0) {
        if (tw_coll_rank(persist->own) == 0) {
            tw_error("%s: there is no checkpoint yet to go back to from step %" PRIu64, folder, bad_step);
        }
        return TW_ERR_NOT_FOUND;
    }
    TW_TRY(resume_newest(persist, folder, &listing));
    tw_engine_pass_over(persist->engine, passed_over + bad_step - tw_engine_steps_done(persist->engine));
    return TW_OK;
}
