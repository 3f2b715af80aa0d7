/* Between the engine's pieces and the files of checkpoint/. */
#include "trainer/persist.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/agreement.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/facts.h"

void tw_persist_cleanup(tw_persist_t *persist)
{
    tw_coll_destroy(persist->own);
    persist->own = NULL;
    tw_lines_cleanup(&persist->facts);
}

static tw_status_t create_group(tw_persist_t *persist, tw_coll_t *world)
{
    int n_ranks = tw_coll_size(world), *ranks = calloc((size_t)n_ranks, sizeof(*ranks));
    if (!ranks) {
        tw_error("out of memory");
        return TW_ERR_NO_MEMORY;
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        ranks[rank] = rank;
    }
    tw_status_t status = tw_coll_group_create(world, ranks, n_ranks, &persist->own);
    free(ranks);
    return status;
}

static tw_status_t prepare_folders(const tw_train_options_t *o)
{
    tw_status_t status = *o->checkpoint ? tw_checkpoint_prepare(o->checkpoint) : TW_OK;
    return status == TW_OK && *o->save_model ? tw_checkpoint_prepare(o->save_model) : status;
}

tw_status_t tw_persist_init(tw_persist_t *persist, tw_coll_t *world)
{
    const tw_train_options_t *o = persist->options;
    if (!*o->resume && !*o->init_from && !*o->checkpoint) {
        return TW_OK;
    }
    TW_TRY(create_group(persist, world));
    tw_status_t status = tw_facts_of_run(persist->config, persist->data, &persist->facts);
    if (status == TW_OK && tw_coll_rank(world) == 0) {
        status = prepare_folders(o);
    }
    return tw_agree_status(persist->own, status);
}

/* The engine's pieces as a checkpoint wants them; the caller's to free. */
static tw_checkpoint_piece_t *pieces_of(const tw_persist_t *persist, size_t *n_pieces)
{
    const tw_engine_piece_t *own = tw_engine_pieces(persist->engine, n_pieces);
    tw_checkpoint_piece_t *pieces = calloc(*n_pieces + 1, sizeof(*pieces));
    if (!pieces) {
        tw_error("out of memory for a checkpoint");
        return NULL;
    }
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

/* ---- starting ------------------------------------------------------------------------------------------ */

static void compare_run(const tw_persist_t *persist, const tw_checkpoint_run_t *run)
{
    const tw_train_options_t *o = persist->options;
    if (run->seed != (uint64_t)o->seed || run->batch != (uint64_t)o->batch ||
        run->seq_len != (uint64_t)o->sequence) {
        tw_warn("%s: saved with seed %" PRIu64 ", a batch of %" PRIu64 " and sequences of %" PRIu64
                " tokens; with others now, this run sees the data in another order",
                o->resume, run->seed, run->batch, run->seq_len);
    }
    if (run->step > (uint64_t)o->steps) {
        tw_warn("%s: it is of step %" PRIu64 ", beyond thinwire.steps %" PRId64, o->resume, run->step,
                o->steps);
    }
    if (!run->facts) {
        tw_warn("%s: saved by an older program: whether it had the same model.n_head, "
                "model.layer_norm_epsilon, data and schedule cannot be checked",
                o->resume);
    } else {
        tw_facts_say_differences(o->resume, run->facts, persist->facts.text);
    }
}

/* Copies in folders of their own may be of different ages. */
static tw_status_t agree_checkpoint(const tw_persist_t *persist, const tw_checkpoint_run_t *run)
{
    tw_lines_t lines = {0};
    tw_lines_add(&lines, "thinwire.resume, the newest step there,", "%" PRIu64, run->step);
    tw_lines_add(&lines, "thinwire.resume, the manifest's checksum,", "%016" PRIx64, run->checksum);
    tw_status_t status = tw_agree_on(persist->own, &lines);
    tw_lines_cleanup(&lines);
    return status;
}

/* A run keeps its id, unless it goes on from where it has been further before: its later steps would be taken
 * for the newer ones. */
static tw_status_t keep_id(tw_persist_t *persist, const tw_checkpoint_run_t *run)
{
    const char *folder = persist->options->checkpoint;
    uint64_t id = run->id;
    if (id == 0 || (*folder && tw_checkpoint_has_later(folder, id, run->step))) {
        id = persist->id;
    }
    uint64_t *all = calloc((size_t)tw_coll_size(persist->own), sizeof(*all));
    tw_status_t status = all ? tw_agree_gather(persist->own, &id, sizeof(id), all) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        persist->is_new = persist->id == all[0] && run->id != 0;
        persist->id = all[0]; /* rank 0 writes there, and knows */
    }
    free(all);
    return status;
}

static tw_status_t read_pieces(const tw_persist_t *persist, tw_checkpoint_t *checkpoint)
{
    size_t n_pieces;
    tw_checkpoint_piece_t *pieces = pieces_of(persist, &n_pieces);
    tw_status_t status = pieces ? tw_checkpoint_read(checkpoint, pieces, n_pieces) : TW_ERR_NO_MEMORY;
    free(pieces);
    return status;
}

static tw_status_t take_checkpoint(tw_persist_t *persist, tw_checkpoint_t *checkpoint)
{
    const tw_checkpoint_run_t *run = tw_checkpoint_run_get(checkpoint);
    tw_attempt_t attempt;
    TW_TRY(agree_checkpoint(persist, run));
    if (tw_coll_rank(persist->own) == 0) {
        compare_run(persist, run);
    }
    tw_attempt_begin(&attempt, persist->own, "resume");
    TW_TRY(tw_attempt_end(&attempt, read_pieces(persist, checkpoint)));
    TW_TRY(keep_id(persist, run));
    persist->resumed_step = run->step;
    return tw_engine_loaded(persist->engine, run->step, run->recent_loss);
}

static tw_status_t resume(tw_persist_t *persist)
{
    tw_checkpoint_t *checkpoint = NULL;
    tw_attempt_t attempt;
    tw_attempt_begin(&attempt, persist->own, "resume");
    tw_status_t status =
        tw_attempt_end(&attempt, tw_checkpoint_open(persist->options->resume, persist->model, &checkpoint));
    if (status == TW_OK) {
        status = take_checkpoint(persist, checkpoint);
    }
    tw_checkpoint_close(checkpoint);
    return status;
}

static void read_weights(const tw_persist_t *persist, const tw_weights_t *weights)
{
    size_t n_pieces;
    const tw_engine_piece_t *pieces = tw_engine_pieces(persist->engine, &n_pieces);
    for (size_t p = 0; p < n_pieces; p++) {
        tw_weights_read(weights, pieces[p].tensor, pieces[p].first, pieces[p].n_elems, pieces[p].master);
    }
}

/* Each rank reads its own part: of the same model, wherever it lies. */
static tw_status_t agree_weights(const tw_persist_t *persist, const tw_weights_t *weights)
{
    tw_lines_t lines = {0};
    tw_lines_add(&lines, "model.init_from, a checksum of the weights there,", "%016" PRIx64,
                 tw_weights_checksum(weights));
    tw_status_t status = tw_agree_on(persist->own, &lines);
    tw_lines_cleanup(&lines);
    return status;
}

static tw_status_t begin_with_weights(const tw_persist_t *persist)
{
    tw_weights_t *weights = NULL;
    tw_attempt_t attempt;
    tw_attempt_begin(&attempt, persist->own, "begin with model.init_from");
    tw_status_t status = tw_weights_open(persist->options->init_from, persist->model, &weights);
    status = tw_attempt_end(&attempt, status);
    if (status == TW_OK) {
        status = agree_weights(persist, weights);
    }
    if (status == TW_OK) {
        read_weights(persist, weights);
    }
    tw_weights_close(weights);
    return status == TW_OK ? tw_engine_loaded(persist->engine, 0, 0) : status;
}

/* By rank 0: from here on the folder's steps are this run's. */
static tw_status_t claim_folder(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    tw_checkpoint_others_t others;
    TW_TRY(tw_checkpoint_claim(o->checkpoint, persist->id, &others));
    if (others.n_steps > 0 && persist->is_new) { /* else it has been said */
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
    if (status != TW_OK || !*o->checkpoint) {
        return status;
    }
    return tw_agree_status(persist->own, tw_coll_rank(persist->own) == 0 ? claim_folder(persist) : TW_OK);
}

/* ---- leaving ------------------------------------------------------------------------------------------- */

/* In stage 0 every rank has everything: one of them writes it. */
static int writes_pieces(const tw_persist_t *persist)
{
    return persist->options->stage > 0 || tw_coll_rank(persist->own) == 0;
}

static tw_status_t save(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    size_t n_pieces;
    tw_status_t status = tw_engine_sync(persist->engine);
    tw_checkpoint_piece_t *pieces = pieces_of(persist, &n_pieces);
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
                                               .facts = persist->facts.text},
                                       .pieces = pieces,
                                       .n_pieces = writes_pieces(persist) ? n_pieces : 0};
        status = tw_checkpoint_save(persist->own, &state);
    }
    free(pieces);
    return status;
}

/* By rank 0, from the checkpoint that was just written, or gone on from. */
static tw_status_t export_weights(const tw_persist_t *persist, int is_saved)
{
    const tw_train_options_t *o = persist->options;
    tw_checkpoint_t *checkpoint;
    if (tw_coll_rank(persist->own) != 0) {
        return TW_OK;
    }
    tw_status_t status = is_saved
                             ? tw_checkpoint_open_step(o->checkpoint, tw_engine_steps_done(persist->engine),
                                                       persist->model, &checkpoint)
                             : tw_checkpoint_open(o->resume, persist->model, &checkpoint);
    if (status == TW_OK) {
        status = tw_weights_export(checkpoint, persist->model, TW_TYPE_BF16, o->save_model);
        tw_checkpoint_close(checkpoint);
    }
    return status;
}

static int is_last(const tw_persist_t *persist)
{
    return tw_engine_steps_done(persist->engine) == (uint64_t)persist->options->steps;
}

int tw_persist_is_due(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    uint64_t step = tw_engine_steps_done(persist->engine);
    return *o->checkpoint &&
           (is_last(persist) || (o->checkpoint_every > 0 && step % (uint64_t)o->checkpoint_every == 0));
}

tw_status_t tw_persist_step_done(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    if (!tw_persist_is_due(persist)) {
        return TW_OK;
    }
    tw_status_t status = save(persist);
    if (status == TW_OK && is_last(persist) && *o->save_model) {
        status = tw_agree_status(persist->own, export_weights(persist, 1));
    }
    return status;
}

tw_status_t tw_persist_nothing_done(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    if (!*o->save_model) {
        return TW_OK;
    }
    tw_status_t status = *o->resume ? TW_OK : save(persist);
    return status == TW_OK ? tw_agree_status(persist->own, export_weights(persist, !*o->resume)) : status;
}
