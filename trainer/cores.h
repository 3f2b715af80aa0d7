/** Private to trainer: decides how many threads a rank computes with. */
#pragma once

#include "collectives/collectives.h"

TW_C_BEGIN

#define TW_CORES_MASK_WORDS 16 /* words of 64 processors each, as the system numbers them */

/** What a rank may run on. */
typedef struct tw_cores_place {
    uint64_t machine; /* equal for all ranks on one machine */
    uint64_t group;   /* equal for all ranks in the control group that bounds them by `quota` */
    uint64_t mask[TW_CORES_MASK_WORDS];
    int32_t n_cores; /* cores that the mask's processors are on */
    int32_t quota;   /* processors that the group may use in all; 0: as many as there are */
    int32_t asked;   /* thinwire.threads; 0: the rank asks for nothing */
} tw_cores_place_t;

/** Count the cores of a mask. `cpu` is "/sys/devices/system/cpu", which tells who shares a core. */
int tw_cores_count(const uint64_t mask[TW_CORES_MASK_WORDS], const char *cpu);
/** Return how many processors the process's control groups (version 2) let it use, rounded up; INT_MAX: all.
 *  `cgroups` is "/sys/fs/cgroup", `group` the process's own, "/a/b". */
int tw_cores_quota(const char *cgroups, const char *group);
/** Return the threads of a rank: what it asks for, or its cores, shared evenly by the ranks of its machine
 *  that may run on any of them, but no more than its share of its control group's quota; at least 1. */
int tw_cores_share(const tw_cores_place_t *all, int world, int rank);

typedef struct tw_cores {
    int own, least, most; /* threads of this rank; the fewest and most of any rank */
} tw_cores_t;
/** Decides how many threads all ranks compute with. Collective. TW_ERR_NO_MEMORY, or the communicator's
 *  errors. */
tw_status_t tw_cores_of_job(tw_coll_t *coll, int64_t asked, tw_cores_t *cores);

TW_C_END
