/** Private to trainer: checks that a run fits into the memory of its machines. */
#pragma once

#include "collectives/collectives.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Bytes of memory. Infinite if there is no limit, or if the limit is not known. */
typedef struct tw_room {
    double total, available;
} tw_room_t;

/** Return the memory of the machine, including swap space. `proc` is "/proc". */
tw_room_t tw_room_of_machine(const char *proc);
/** Return the smallest memory limit of this process's cgroup (version 2) and the cgroups around it. `cgroups`
 *  is "/sys/fs/cgroup". */
tw_room_t tw_room_of_group(const char *proc, const char *cgroups);

/** Bytes that a rank will hold, as the planner computes them. */
typedef struct tw_need {
    /** Weights, optimizer, gradients and activations that are not in files. The run writes to all of them. */
    double sure;
    double all; /**< `sure`, buffers for communication, and the process's other memory */
} tw_need_t;

/** Compute what a rank needs in a job of `world` ranks. TW_ERR_NO_MEMORY. */
tw_status_t tw_need_of(const tw_train_options_t *options, const tw_model_t *model, int world, int n_nodes,
                       tw_need_t *need);

/** Check that n_ranks ranks fit into `room`; `where` is its name. TW_ERR_CONFIG (logged): their `sure` is
 *  more than its total, so the run would be killed. says 1: warn if they need more than is available now. */
tw_status_t tw_fit_check(const char *where, const tw_room_t *room, const tw_need_t *need, int n_ranks,
                         int says);
/** Do tw_fit_check for all ranks of a job, on each machine and in each cgroup that ranks share.
 *  Collective. */
tw_status_t tw_fit_check_job(tw_coll_t *coll, const tw_need_t *need);
/** Do tw_fit_check for a job whose ranks will all run on this machine, without warnings. */
tw_status_t tw_fit_check_here(const tw_need_t *need, int world);

TW_C_END
