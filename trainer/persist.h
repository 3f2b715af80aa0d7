/** Private to trainer: loads the state that a run starts from, and saves checkpoints and models. */
#pragma once

#include <signal.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/engine/engine.h"
#include "trainer/lines.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Bits of a rank's notices (tw_engine_notices_t). */
enum {
    TW_PERSIST_STOP = 1,    /**< this rank was asked to end */
    TW_PERSIST_WRITTEN = 2, /**< this rank's file of the current checkpoint is written */
    TW_PERSIST_DUE = 4,     /**< a checkpoint is due by this rank's clock; only rank 0's bit counts */
    TW_PERSIST_TAKEN = 8    /**< the file has been filled from masters and moments, which may change now */
};

/** State of saving and loading. Pointers are borrowed, except `own`, `facts` and `lock`. */
typedef struct tw_persist {
    const tw_train_config_t *config;
    const tw_train_options_t *options;
    const tw_model_t *model;
    const tw_data_t *data;
    tw_engine_t *engine;
    const volatile sig_atomic_t *stop; /* not 0 if this rank was asked to end; may be NULL */
    /* id of the run, equal on all ranks: a new id, or the id of the run that was resumed */
    uint64_t id;
    int is_new;            /* 1: `id` is new */
    uint64_t resumed_step; /* step of the checkpoint that was resumed; 0: a new run */
    tw_lines_t facts;      /* facts of the run, which checkpoints store */
    FILE *lock;            /* rank 0's lock of thinwire.checkpoint, or NULL */
    double best_val;       /* the lowest validation loss so far; 0: none */
    /* 1: the last step has the lowest validation loss, and its model is to be saved */
    int is_best;
    int is_alone;                   /* 1: this rank has failed, and the others do not know it */
    double saved_sec;               /* time when the run or its last checkpoint began; tw_time_sec */
    tw_checkpoint_saving_t *saving; /* the checkpoint that is being written, on all ranks, or NULL */
    /** A communicator of all ranks for files. Its operations do not count as training, and may wait for
     *  disks. NULL: nothing is saved or loaded. */
    tw_coll_t *own;
} tw_persist_t;

/** Prepare saving and loading. The caller has set config, options, model, data, stop and id, and sets engine
 *  afterwards. Collective. Errors of tw_coll_group_create, and on all ranks those of tw_checkpoint_prepare
 *  and tw_checkpoint_lock. */
tw_status_t tw_persist_init(tw_persist_t *persist, tw_coll_t *coll);
/** Free what is owned, and abandon a checkpoint that is being written. Accepts a zeroed struct. */
void tw_persist_cleanup(tw_persist_t *persist);
/** Return hooks for the engine. `persist` is borrowed. */
tw_engine_hooks_t tw_persist_hooks(tw_persist_t *persist);

/** Replace the initial weights by a checkpoint (thinwire.resume) or given weights (model.init_from). Does
 *  nothing if neither key is set, or if thinwire.resume is auto and there is no checkpoint. From a folder of
 *  checkpoints it takes the newest one that all ranks can read. Rank 0 warns of settings that have changed
 *  since, and of other runs' steps in thinwire.checkpoint. Collective. Errors, on all ranks: those of
 *  tw_checkpoint_open, tw_checkpoint_read, tw_weights_open and tw_checkpoint_claim; TW_ERR_MISMATCH (logged):
 *  ranks see different checkpoints. */
tw_status_t tw_persist_restore(tw_persist_t *persist);
/** After a bad step, load the last checkpoint of this run, and skip the data that were used since.
 *  Collective. Errors are those of tw_persist_restore; TW_ERR_NOT_FOUND (logged): there is no checkpoint. */
tw_status_t tw_persist_rollback(tw_persist_t *persist);
/** Record the validation loss of the last step. `loss` is the same on all ranks. */
void tw_persist_validated(tw_persist_t *persist, double loss);
/** Return 1 if tw_persist_step_done will begin or finish a checkpoint after this step. */
int tw_persist_is_due(const tw_persist_t *persist);
/** Return 1 if any rank was asked to end before the last step's update. */
int tw_persist_is_stopped(const tw_persist_t *persist);
/** Call it after each step. If a checkpoint is due, begins it; it is written while later steps run. After the
 *  last step, or if a rank was asked to end, waits for the checkpoint. After the last step it also exports
 *  the model, if asked for. Collective. Errors of tw_checkpoint_save and tw_weights_export. */
tw_status_t tw_persist_step_done(tw_persist_t *persist);
/** Wait for the checkpoint that is being written, if any, and complete it. Collective. */
tw_status_t tw_persist_finish(tw_persist_t *persist);
/** Call it instead of tw_persist_step_done if the run had no step to do. Exports the model, if asked for.
 *  Collective. Errors are those of tw_persist_step_done. */
tw_status_t tw_persist_nothing_done(tw_persist_t *persist);

/** Return the engine's pieces in a checkpoint's form. The caller frees the array. NULL: memory ran out,
 *  logged. Private to persist.c and resume.c. */
tw_checkpoint_piece_t *tw_persist_pieces(const tw_persist_t *persist, size_t *n_pieces);
/** Return the place to resume from: thinwire.resume, or thinwire.checkpoint if thinwire.resume is auto. */
const char *tw_persist_source(const tw_persist_t *persist);

TW_C_END
