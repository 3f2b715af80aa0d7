/** Private to trainer: loads what a run starts from, and saves what it leaves, on disk. */
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
    TW_PERSIST_STOP = 1,    /**< this rank has been asked to end */
    TW_PERSIST_WRITTEN = 2, /**< this rank's file of the current checkpoint is written */
    TW_PERSIST_DUE = 4,     /**< a checkpoint is due by its clock; only rank 0's bit counts */
    TW_PERSIST_TAKEN = 8    /**< masters and moments may change: the file no longer needs them */
};

/** State of saving and loading. Pointers are borrowed, except `own`, `facts` and `lock`. */
typedef struct tw_persist {
    const tw_train_config_t *config;
    const tw_train_options_t *options;
    const tw_model_t *model;
    const tw_data_t *data;
    tw_engine_t *engine;
    const volatile sig_atomic_t *stop; /* not 0 once this rank is asked to end; may be NULL */
    /* id of the run: at first a new one, the same on all ranks; a run that goes on keeps its own */
    uint64_t id;
    int is_new;                     /* 1: the id is new */
    uint64_t resumed_step;          /* 0: it is a new run */
    tw_lines_t facts;               /* facts of the run that checkpoints keep */
    FILE *lock;                     /* on rank 0, the lock of thinwire.checkpoint; NULL: none */
    double best_val;                /* the lowest validation loss so far; 0: none */
    int is_best;                    /* 1: the last step's validation loss is the lowest, and is to be saved */
    int is_alone;                   /* 1: this rank has failed, and the others do not know */
    double saved_sec;               /* when the last checkpoint began, or the run; tw_time_sec */
    tw_checkpoint_saving_t *saving; /* checkpoint under way, on all ranks; NULL: none */
    /** A communicator of all ranks whose operations do not count as training, and may wait for disks. NULL:
     *  nothing is to be saved or loaded. */
    tw_coll_t *own;
} tw_persist_t;

/** Prepare saving and loading. The caller has set config, options, model, data, stop and id, and sets engine
 *  after it. Collective. Errors of tw_coll_group_create, and on all ranks those of tw_checkpoint_prepare and
 *  tw_checkpoint_lock. */
tw_status_t tw_persist_init(tw_persist_t *persist, tw_coll_t *coll);
/** Free what is owned, and abandon a checkpoint under way. Accepts a zeroed struct. */
void tw_persist_cleanup(tw_persist_t *persist);
/** Return the engine's hooks of a tw_persist_t. */
tw_engine_hooks_t tw_persist_hooks(tw_persist_t *persist);

/** Replace the initial weights by a checkpoint (thinwire.resume) or given weights (model.init_from). It does
 *  nothing if neither is asked for, or if with thinwire.resume=auto there is no checkpoint. From a folder of
 *  checkpoints it takes the newest one that all ranks can read. Rank 0 warns of what has changed since it was
 *  saved, and of another run's steps in thinwire.checkpoint. Collective. Errors of tw_checkpoint_open,
 *  tw_checkpoint_read, tw_weights_open and tw_checkpoint_claim, on all ranks; TW_ERR_MISMATCH (logged): the
 *  ranks see different checkpoints. */
tw_status_t tw_persist_restore(tw_persist_t *persist);
/** After a bad step, go back to the last checkpoint of this run, and skip the data that came since.
 *  Collective. Errors as of tw_persist_restore; TW_ERR_NOT_FOUND (logged): there is no checkpoint. */
tw_status_t tw_persist_rollback(tw_persist_t *persist);
/** Note the last step's validation, which is the same on all ranks. */
void tw_persist_validated(tw_persist_t *persist, double loss);
/** Return 1 if something is to be written after this step. */
int tw_persist_is_due(const tw_persist_t *persist);
/** Return 1 if some rank had been asked to end by the time of the last step's update. */
int tw_persist_is_stopped(const tw_persist_t *persist);
/** Call it after each step: it begins a checkpoint, if one is due, which is written while later steps run.
 *  After the last step, or if a rank is asked to end, it waits for the checkpoint; after the last step it
 *  also exports the model, if asked for. Collective. Errors of tw_checkpoint_save and tw_weights_export. */
tw_status_t tw_persist_step_done(tw_persist_t *persist);
/** Finish the checkpoint under way. Collective. */
tw_status_t tw_persist_finish(tw_persist_t *persist);
/** Call it instead of tw_persist_step_done if no step was left to do: it exports the model, if asked for.
 *  Collective. Errors are the same. */
tw_status_t tw_persist_nothing_done(tw_persist_t *persist);

/** Return the engine's pieces in a checkpoint's form; the caller frees them. NULL: memory is short, logged.
 *  Private to persist.c and resume.c. */
tw_checkpoint_piece_t *tw_persist_pieces(const tw_persist_t *persist, size_t *n_pieces);
/** Return where checkpoints are looked for: thinwire.resume, or with "auto" thinwire.checkpoint. */
const char *tw_persist_source(const tw_persist_t *persist);

TW_C_END
