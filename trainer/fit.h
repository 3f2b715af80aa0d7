/** Private to trainer: checks that a run fits into the memory of its machines. */
#pragma once

#include "collectives/collectives.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Bytes of memory; infinite if nothing bounds them, or if that is not known. */
typedef struct tw_room {
    double total, available;
} tw_room_t;

/** Return the room of the machine, swap space included; `proc` is "/proc". */
tw_room_t tw_room_of_machine(const char *proc);
/** Return the room of this process's control group and of those above it (version 2); cgroups:
 *  "/sys/fs/cgroup". */
tw_room_t tw_room_of_group(const char *proc, const char *cgroups);

/** Bytes that a rank will hold, by the planner. */
typedef struct tw_need {
    /** Weights, optimizer, gradients and activations, all of which are written to, outside files. */
    double sure;
    double all; /**< these, buffers for what is sent and received, and what the process takes besides */
} tw_need_t;

/** Plan what a rank needs in a job of `world` ranks. TW_ERR_NO_MEMORY. */
tw_status_t tw_need_of(const tw_train_options_t *options, const tw_model_t *model, int world, int n_nodes,
                       tw_need_t *need);

/** Check that n_ranks ranks of this need can share this room. TW_ERR_CONFIG (logged): their `sure` is
 *  more than its total, so the run would be killed. says 1: warn if they need more than is available now. */
tw_status_t tw_fit_check(const char *where, const tw_room_t *room, const tw_need_t *need, int n_ranks,
                         int says);
/** Check the same for all of a job's ranks, on each machine and in each control group that they share.
 *  Collective. */
tw_status_t tw_fit_check_job(tw_coll_t *coll, const tw_need_t *need);
/** Check the same for a job whose ranks will all run here, without warnings. */
tw_status_t tw_fit_check_here(const tw_need_t *need, int world);

TW_C_END
