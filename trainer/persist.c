/* Between the engine's pieces and the files of checkpoint/. */
#include "trainer/persist.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/checkpoint.h"

void tw_persist_cleanup(tw_persist_t *persist)
{
    tw_coll_destroy(persist->own);
    persist->own = NULL;
}

/* A failure of one rank is everybody's. */
static tw_status_t agree(const tw_persist_t *persist, tw_status_t status)
{
    int n_ranks = tw_coll_size(persist->own);
    int64_t own = status, *all = calloc((size_t)n_ranks, sizeof(*all));
    if (!all) {
        tw_error("out of memory");
        return TW_ERR_NO_MEMORY;
    }
    tw_coll_segment_t segment = {.src = &own, .dst = all, .n_elems = (size_t)n_ranks * sizeof(*all)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    status = tw_coll_run(persist->own, &args);
    for (int rank = 0; rank < n_ranks && status == TW_OK; rank++) {
        status = (tw_status_t)all[rank];
    }
    free(all);
    return status;
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
    return agree(persist, tw_coll_rank(world) == 0 ? prepare_folders(o) : TW_OK);
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

/* ---- starting -------------------------------------------------------------------------------------------- */

static void compare_run(const tw_train_options_t *o, const tw_checkpoint_run_t *run)
{
    if (run->seed != (uint64_t)o->seed || run->batch != (uint64_t)o->batch ||
        run->seq_len != (uint64_t)o->sequence) {
        tw_warn("%s: saved with seed %" PRIu64 ", a batch of %" PRIu64 " and sequences of %" PRIu64
                " tokens; with others now, this run sees the data in another order",
                o->resume, run->seed, run->batch, run->seq_len);
    }
}

static tw_status_t read_checkpoint(const tw_persist_t *persist, uint64_t *step)
{
    tw_checkpoint_t *checkpoint;
    TW_TRY(tw_checkpoint_open(persist->options->resume, persist->model, &checkpoint));
    size_t n_pieces;
    tw_checkpoint_piece_t *pieces = pieces_of(persist, &n_pieces);
    tw_status_t status = pieces ? tw_checkpoint_read(checkpoint, pieces, n_pieces) : TW_ERR_NO_MEMORY;
    *step = tw_checkpoint_run_get(checkpoint)->step;
    if (status == TW_OK && tw_coll_rank(persist->own) == 0) {
        compare_run(persist->options, tw_checkpoint_run_get(checkpoint));
    }
    free(pieces);
    tw_checkpoint_close(checkpoint);
    return status;
}

static tw_status_t read_weights(const tw_persist_t *persist)
{
    tw_weights_t *weights;
    TW_TRY(tw_weights_open(persist->options->init_from, persist->model, &weights));
    size_t n_pieces;
    const tw_engine_piece_t *pieces = tw_engine_pieces(persist->engine, &n_pieces);
    for (size_t p = 0; p < n_pieces; p++) {
        tw_weights_read(weights, pieces[p].tensor, pieces[p].first, pieces[p].n_elems, pieces[p].master);
    }
    tw_weights_close(weights);
    return TW_OK;
}

tw_status_t tw_persist_restore(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    uint64_t step = 0;
    if (!*o->resume && !*o->init_from) {
        return TW_OK;
    }
    tw_status_t status = *o->resume ? read_checkpoint(persist, &step) : read_weights(persist);
    status = agree(persist, status);
    return status == TW_OK ? tw_engine_loaded(persist->engine, step) : status;
}

/* ---- leaving --------------------------------------------------------------------------------------------- */

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
    status = agree(persist, status == TW_OK && !pieces ? TW_ERR_NO_MEMORY : status);
    if (status == TW_OK) {
        tw_checkpoint_state_t state = {.folder = o->checkpoint,
                                       .keep = (size_t)o->checkpoint_keep,
                                       .model = persist->model,
                                       .run = {.step = tw_engine_steps_done(persist->engine),
                                               .seed = (uint64_t)o->seed,
                                               .batch = (uint64_t)o->batch,
                                               .seq_len = (uint64_t)o->sequence},
                                       .pieces = pieces,
                                       .n_pieces = writes_pieces(persist) ? n_pieces : 0};
        status = tw_checkpoint_save(persist->own, &state);
    }
    free(pieces);
    return status;
}

/* By rank 0, from the checkpoint that was just written. */
static tw_status_t export_weights(const tw_persist_t *persist)
{
    const tw_train_options_t *o = persist->options;
    tw_checkpoint_t *checkpoint;
    if (tw_coll_rank(persist->own) != 0) {
        return TW_OK;
    }
    tw_status_t status = tw_checkpoint_open_step(o->checkpoint, tw_engine_steps_done(persist->engine),
                                                 persist->model, &checkpoint);
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
        status = agree(persist, export_weights(persist));
    }
    return status;
}
