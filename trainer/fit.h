/** Private to trainer: does a run fit into the memory of the machines that it is to run on? */
#pragma once

#include "collectives/collectives.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Bytes; infinite where nothing bounds them, or where that is not known. */
typedef struct tw_room {
    double total, available;
} tw_room_t;

/** Of the machine, with its swap space: proc is "/proc". */
tw_room_t tw_room_of_machine(const char *proc);
/** Of this process's control group and those that it is in (version 2): cgroups is "/sys/fs/cgroup". */
tw_room_t tw_room_of_group(const char *proc, const char *cgroups);

/** What a rank will hold, by the planner. */
typedef struct tw_need {
    /** weights, optimizer, gradients, activations: all of it is written to; without what lies in files */
    double sure;
    double all; /**< and what moves, and what the process takes besides */
} tw_need_t;

/** Plans what a rank needs in a job of so many. TW_ERR_NO_MEMORY. */
tw_status_t tw_need_of(const tw_train_options_t *options, const tw_model_t *model, int world, int n_nodes,
                       tw_need_t *need);

/** Can n_ranks such ranks share this room? TW_ERR_CONFIG (logged) if what is sure is more than there is at
 *  all: nothing but swapping elsewhere or being killed could come of it; says: a warning where it is only
 *  more than is available now. */
tw_status_t tw_fit_check(const char *where, const tw_room_t *room, const tw_need_t *need, int n_ranks,
                         int says);
/** Likewise for all of a job's ranks, each for the machine and control group that it shares with others.
 *  Collective. */
tw_status_t tw_fit_check_job(tw_coll_t *coll, const tw_need_t *need);
/** The same of a job whose ranks are all to run here. No warning. */
tw_status_t tw_fit_check_here(const tw_need_t *need, int world);

TW_C_END
