/** Private to trainer: what a run starts from and leaves behind, on disk. */
#ifndef TW_TRAINER_PERSIST_H
#define TW_TRAINER_PERSIST_H

#include "trainer/config/config.h"
#include "trainer/engine/engine.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** What is written and read; borrowed, but for `own`. */
typedef struct tw_persist {
    const tw_train_options_t *options;
    const tw_model_t *model;
    tw_engine_t *engine;
    tw_coll_t *
        own; /**< the world's ranks again: what they say here does not count as training; NULL: nothing is asked for */
} tw_persist_t;

/** options, model and engine are set. Collective. Errors of tw_coll_group_create, and on all ranks those of tw_checkpoint_prepare. */
tw_status_t tw_persist_init(tw_persist_t *persist, tw_coll_t *world);
/** Accepts what tw_persist_init has not seen, zeroed. */
void tw_persist_cleanup(tw_persist_t *persist);

/** Put a checkpoint (thinwire.resume) or given weights (model.init_from) in place of the first weights; nothing if neither is
 *  asked for. Collective. Errors of tw_checkpoint_open, tw_checkpoint_read and tw_weights_open, on all ranks. */
tw_status_t tw_persist_restore(const tw_persist_t *persist);
/** A checkpoint is written after this step. */
int tw_persist_is_due(const tw_persist_t *persist);
/** After a step: a checkpoint, if one is due; after the last step the whole model too, if asked for. Collective. Errors of
 *  tw_checkpoint_save and tw_weights_export. */
tw_status_t tw_persist_step_done(const tw_persist_t *persist);

TW_C_END

#endif
