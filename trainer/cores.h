/** Private to trainer: decides how many threads a rank computes with. */
#pragma once

#include "collectives/collectives.h"

TW_C_BEGIN

#define TW_CORES_MASK_WORDS 16 /* words of 64 processors, with the system's numbers */

/** The processors that a rank may use. */
typedef struct tw_cores_place {
    uint64_t machine; /* equal for all ranks on one machine */
    uint64_t group;   /* equal for all ranks in the cgroup whose limit is `quota` */
    uint64_t mask[TW_CORES_MASK_WORDS];
    int32_t n_cores; /* number of cores that have processors of the mask */
    int32_t quota;   /* processors that the cgroup may use in all; 0: no limit */
    int32_t asked;   /* thinwire.threads; 0: not set */
} tw_cores_place_t;

/** Count the cores of a mask. `cpu` is "/sys/devices/system/cpu", where each processor's core is listed. */
int tw_cores_count(const uint64_t mask[TW_CORES_MASK_WORDS], const char *cpu);
/** Return how many processors the process's cgroups (version 2) let it use, rounded up. Returns INT_MAX if no
 *  cgroup sets a limit. `cgroups` is "/sys/fs/cgroup"; `group` is the path inside it, such as "/a/b". */
int tw_cores_quota(const char *cgroups, const char *group);
/** Return the number of threads of a rank: `asked`, or, if that is 0, its cores divided by the number of
 *  ranks of its machine whose masks overlap, at most an even share of its cgroup's quota, and at least 1. */
int tw_cores_share(const tw_cores_place_t *all, int world, int rank);

typedef struct tw_cores {
    int own, least, most; /* threads of this rank; the fewest and the most of any rank */
} tw_cores_t;
/** Decide how many threads each rank computes with. Collective. TW_ERR_NO_MEMORY, or the communicator's
 *  errors. */
tw_status_t tw_cores_of_job(tw_coll_t *coll, int64_t asked, tw_cores_t *cores);

TW_C_END
