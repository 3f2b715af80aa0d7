/** Private to trainer: a rank's run, and its first and last parts. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/cores.h"
#include "trainer/data/data.h"
#include "trainer/device/device.h"
#include "trainer/engine/engine.h"
#include "trainer/model/model.h"
#include "trainer/persist.h"
#include "trainer/sampling.h"
#include "trainer/trainer.h"

TW_C_BEGIN

typedef struct tw_run {
    const tw_trainer_params_t *params;
    tw_train_config_t *config;
    const tw_train_options_t *options;
    tw_coll_t *coll, *own_coll;
    tw_data_t *data;
    tw_cores_t cores;
    tw_pool_t *pool;
    tw_device_t *device; /* NULL: the model computes on this processor */
    tw_model_t *model;
    tw_engine_t *engine;
    tw_persist_t persist;
    tw_sampling_t sampling;
    int is_started;    /* ranks may wait for each other */
    int is_agreed;     /* a failure is all ranks' */
    double *step_secs; /* [most_steps] */
    size_t most_steps; /* the run's; what a rollback does again may be more, and is not timed */
    tw_trainer_result_t *result;
} tw_run_t;

/** What a rank does for itself, before it needs the others: configuration, data, model. Logged what is wrong
 *  with them. */
tw_status_t tw_run_prepare(tw_run_t *run, int world, int n_nodes, int is_first);
/** From run->params, the rest of which is zero, to an engine that has its first weights or those of a
 *  checkpoint. Collective. Errors of tw_trainer_run. */
tw_status_t tw_run_set_up(tw_run_t *run);
/** The other way round, after whatever came of it. */
void tw_run_tear_down(tw_run_t *run, tw_status_t status);

/** What it came to, on all ranks, into run->result. Collective. */
tw_status_t tw_run_settle(tw_run_t *run);

TW_C_END
