/** The state and functions of the planner's program. Private to it. */
#pragma once

#include "trainer/plan/case.h"
#include "trainer/plan/plan.h"
#include "trainer/plan/report.h"
#include "trainer/trainer.h"

TW_C_BEGIN

enum { PLAN_MAX_SETS = 256, PLAN_MAX_ROWS = 32 };

typedef struct plan {
    const char *config, *calibrate, *json;
    const char *cluster_file, *case_name, *model;
    const char *sets[PLAN_MAX_SETS + 8];
    size_t n_sets;
    char *params_key;
    size_t device_bytes;
    double n_params;
    tw_plan_cluster_t cluster;
    double compute_sec; /* seconds that a step computes; 0: from device_flops */
    tw_plan_row_t rows[PLAN_MAX_ROWS];
    size_t n_rows;
} plan_t;

/** Make the configuration, with a set's keys added last. TW_ERR_CONFIG and the like (logged). */
tw_status_t plan_configure(const plan_t *plan, const tw_trainer_set_t *set, tw_train_config_t **config);
tw_status_t plan_model(const tw_train_options_t *options, tw_model_t **model);
/** Measure codecs and copies on messages of a layer, and set their speeds in plan->cluster. */
tw_status_t plan_speeds(plan_t *plan, const tw_model_t *model);
/** Append a row to plan->rows: the memory, bytes and time that a set needs. */
tw_status_t plan_row(plan_t *plan, const tw_trainer_set_t *set, const tw_model_t *model);
/** Plan all sets, and print the model and cluster that they are planned for. */
tw_status_t plan_all(plan_t *plan);
/** Do what --cluster asks for: predict cases. */
tw_status_t plan_cases(plan_t *plan);

TW_C_END
