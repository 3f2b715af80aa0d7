/** Private to trainer: what a run starts from and leaves behind, on disk. */
#ifndef TW_TRAINER_PERSIST_H
#define TW_TRAINER_PERSIST_H

#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/engine/engine.h"
#include "trainer/lines.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** What is written and read; borrowed, but for `own` and `facts`. */
typedef struct tw_persist {
    const tw_train_config_t *config;
    const tw_train_options_t *options;
    const tw_model_t *model;
    const tw_data_t *data;
    tw_engine_t *engine;
    uint64_t id; /* of the run: at first a new one, the same on all ranks; what goes on keeps its own */
    int is_new;  /* the id is */
    uint64_t resumed_step; /* 0: it is a new run */
    tw_lines_t facts;      /* for its checkpoints */
    /** the world's ranks again: what they say here does not count as training; NULL: nothing is asked for */
    tw_coll_t *own;
} tw_persist_t;

/** config, options, model, data, engine and id are set. Collective. Errors of tw_coll_group_create, and on
 *  all ranks those of tw_checkpoint_prepare. */
tw_status_t tw_persist_init(tw_persist_t *persist, tw_coll_t *world);
/** Accepts what tw_persist_init has not seen, zeroed. */
void tw_persist_cleanup(tw_persist_t *persist);

/** Put a checkpoint (thinwire.resume) or given weights (model.init_from) in place of the first weights;
 *  nothing if neither is asked for. Rank 0 warns of what is other than when it was saved, and of another
 *  run's steps in thinwire.checkpoint. Collective. Errors of tw_checkpoint_open, tw_checkpoint_read,
 *  tw_weights_open and tw_checkpoint_claim, on all ranks; TW_ERR_MISMATCH (logged): the ranks see different
 *  checkpoints. */
tw_status_t tw_persist_restore(tw_persist_t *persist);
/** A checkpoint is written after this step. */
int tw_persist_is_due(const tw_persist_t *persist);
/** After a step: a checkpoint, if one is due; after the last step the whole model too, if asked for.
 *  Collective. Errors of tw_checkpoint_save and tw_weights_export. */
tw_status_t tw_persist_step_done(const tw_persist_t *persist);
/** In place of that, where no step was left to be done: the whole model, if asked for. Collective. The same
 *  errors. */
tw_status_t tw_persist_nothing_done(const tw_persist_t *persist);

TW_C_END

#endif
