/** Private to trainer: what a run starts from and leaves behind, on disk. */
#pragma once

#include <signal.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/engine/engine.h"
#include "trainer/lines.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Bits of tw_engine_notices_t. */
enum {
    TW_PERSIST_STOP = 1,    /**< this rank has been asked to end */
    TW_PERSIST_WRITTEN = 2, /**< its file of the checkpoint under way is written */
    TW_PERSIST_DUE = 4,     /**< by its clock a checkpoint is due; rank 0's counts */
    TW_PERSIST_TAKEN = 8    /**< masters and moments may change: its file has them */
};

/** What is written and read; borrowed, but for `own`, `facts` and `lock`. */
typedef struct tw_persist {
    const tw_train_config_t *config;
    const tw_train_options_t *options;
    const tw_model_t *model;
    const tw_data_t *data;
    tw_engine_t *engine;
    const volatile sig_atomic_t *stop; /* or NULL: not 0 once this rank is asked to end */
    uint64_t id; /* of the run: at first a new one, the same on all ranks; what goes on keeps its own */
    int is_new;  /* the id is */
    uint64_t resumed_step;          /* 0: it is a new run */
    tw_lines_t facts;               /* what the run's checkpoints keep of it */
    FILE *lock;                     /* rank 0's, of thinwire.checkpoint; NULL: none */
    double best_val;                /* the lowest validation loss so far; 0: none */
    int is_best;                    /* the last step's is, and is to be saved */
    int is_alone;                   /* it has failed, and others have not heard of it */
    double saved_sec;               /* when the last checkpoint began, or the run; tw_time_sec */
    tw_checkpoint_saving_t *saving; /* under way, on all ranks; NULL: none */
    /** the job's ranks again: what they say here does not count as training, and may wait for disks; NULL:
     *  nothing is asked for */
    tw_coll_t *own;
} tw_persist_t;

/** config, options, model, data, stop and id are set, and engine after it. Collective. Errors of
 *  tw_coll_group_create, and on all ranks those of tw_checkpoint_prepare and
 *  tw_checkpoint_lock. */
tw_status_t tw_persist_init(tw_persist_t *persist, tw_coll_t *coll);
/** Accepts what tw_persist_init has not seen, zeroed. Gives up a checkpoint under way. */
void tw_persist_cleanup(tw_persist_t *persist);
/** Returns the engine's hooks of a tw_persist_t. */
tw_engine_hooks_t tw_persist_hooks(tw_persist_t *persist);

/** Put a checkpoint (thinwire.resume) or given weights (model.init_from) in place of the first weights;
 *  nothing if neither is asked for, or with thinwire.resume=auto none is there. Of a folder of checkpoints
 *  the newest one that all ranks can read. Rank 0 warns of what is other than when it was saved, and of
 *  another run's steps in thinwire.checkpoint. Collective. Errors of tw_checkpoint_open, tw_checkpoint_read,
 *  tw_weights_open and tw_checkpoint_claim, on all ranks; TW_ERR_MISMATCH (logged): the ranks see different
 *  checkpoints. */
tw_status_t tw_persist_restore(tw_persist_t *persist);
/** A bad step: back to the last checkpoint of this run, and past the data that came since. Collective. Errors
 *  as of tw_persist_restore; TW_ERR_NOT_FOUND (logged): there is none. */
tw_status_t tw_persist_rollback(tw_persist_t *persist);
/** Notes the last step's validation, which is the same on all ranks. */
void tw_persist_validated(tw_persist_t *persist, double loss);
/** Something is to be written after this step. */
int tw_persist_is_due(const tw_persist_t *persist);
/** A rank was asked to end, before the last step's update. */
int tw_persist_is_stopped(const tw_persist_t *persist);
/** After a step: a checkpoint, if one is due, which is written beside the steps that follow; after the last
 *  step, or where a rank is asked to end, at once, and after the last step the whole model too, if asked
 *  for. Collective. Errors of tw_checkpoint_save and tw_weights_export. */
tw_status_t tw_persist_step_done(tw_persist_t *persist);
/** The checkpoint under way becomes one. Collective. */
tw_status_t tw_persist_finish(tw_persist_t *persist);
/** In place of tw_persist_step_done, where no step was left to be done: the whole model, if asked for.
 *  Collective. The same errors. */
tw_status_t tw_persist_nothing_done(tw_persist_t *persist);

/** The engine's pieces as a checkpoint wants them; the caller's to free. NULL: memory is short, logged.
 *  Private to persist. */
tw_checkpoint_piece_t *tw_persist_pieces(const tw_persist_t *persist, size_t *n_pieces);
/** Where checkpoints are looked for: thinwire.resume, or with "auto" thinwire.checkpoint. */
const char *tw_persist_source(const tw_persist_t *persist);

TW_C_END
