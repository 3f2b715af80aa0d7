/** Private to trainer: the state of a rank's run, and how it is set up and torn down. */
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
    int is_started;    /* 1: ranks may wait for each other */
    int is_agreed;     /* 1: a failure now happens on all ranks */
    double *step_secs; /* [most_steps] */
    size_t most_steps; /* steps of the run; steps beyond this number, which follow rollbacks, are not timed */
    tw_trainer_result_t *result;
} tw_run_t;

/** Do the part of setting up that needs no other rank: configuration, data, model. Errors are logged. */
tw_status_t tw_run_prepare(tw_run_t *run, int world, int n_nodes, int is_first);
/** Set the run up from run->params; all other members are 0. Afterwards the engine has its first weights, or
 *  a checkpoint's. Collective. Errors of tw_trainer_run. */
tw_status_t tw_run_set_up(tw_run_t *run);
/** Tear the run down. `status` is the run's result. */
void tw_run_tear_down(tw_run_t *run, tw_status_t status);

/** Fill in run->result, with the same values on all ranks. Collective. */
tw_status_t tw_run_settle(tw_run_t *run);

TW_C_END
