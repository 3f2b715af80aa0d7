/* Decides how many threads each rank computes with. Launchers may bind ranks to cores or not, a container may
 * have a part of a machine, and nodes of a cluster in a box share a machine. So ranks exchange which
 * processors they may use. */
#include "trainer/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/line.h"
#include "trainer/agreement.h"
#include "trainer/input.h"

#define PATH_BYTES 4096
#define MOST_PROCESSORS (64 * TW_CORES_MASK_WORDS)

static int cores_has(const uint64_t *mask, long processor)
{
    return processor >= 0 && processor < MOST_PROCESSORS && (mask[processor / 64] >> (processor % 64) & 1);
}

/** Return 1 if the mask has a lower processor of the same core. `list` is the core's: "0-1" or "3,67". */
static int has_lower(const uint64_t *mask, const char *list, long processor)
{
    char *end;
    for (const char *at = list; *at; at = *end ? end + 1 : end) {
        long first = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        for (long other = first; end > at && other <= last && other < processor; other++) {
            if (cores_has(mask, other)) {
                return 1;
            }
        }
        if (end == at) {
            return 0;
        }
    }
    return 0;
}

int tw_cores_count(const uint64_t mask[TW_CORES_MASK_WORDS], const char *cpu)
{
    char path[PATH_BYTES], list[256];
    int n = 0;
    for (long processor = 0; processor < MOST_PROCESSORS; processor++) {
        if (cores_has(mask, processor)) {
            snprintf(path, sizeof(path), "%s/cpu%ld/topology/thread_siblings_list", cpu, processor);
            (void)tw_line_read(path, "", list, sizeof(list));
            n += !has_lower(mask, list, processor);
        }
    }
    return n;
}

int tw_cores_quota(const char *cgroups, const char *group)
{
    char path[2 * PATH_BYTES], line[64], name[PATH_BYTES];
    double least = INT_MAX;
    snprintf(name, sizeof(name), "%s", group);
    for (char *slash = name + strlen(name); slash; slash = strrchr(name, '/')) {
        *slash = '\0';
        double quota, period; /* microseconds; "max 100000" means no quota */
        snprintf(path, sizeof(path), "%s%s/cpu.max", cgroups, name);
        (void)tw_line_read(path, "", line, sizeof(line));
        if (sscanf(line, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0) {
            double processors = quota / period;
            least = processors < least ? processors : least;
        }
    }
    return least > (int)least ? (int)least + 1 : (int)least;
}

/* ---- this process -------------------------------------------------------------------------------------- */

/** Read this process's mask. All bits are set if the system has more processors than fit into a mask. */
static void own_mask(uint64_t mask[TW_CORES_MASK_WORDS])
{
    cpu_set_t set;
    int is_known = sched_getaffinity(0, sizeof(set), &set) == 0;
    memset(mask, 0, TW_CORES_MASK_WORDS * sizeof(*mask));
    for (int processor = 0; processor < MOST_PROCESSORS; processor++) {
        if (!is_known || CPU_ISSET(processor, &set)) {
            mask[processor / 64] |= (uint64_t)1 << (processor % 64);
        }
    }
}

/** Return the quota of `group`, and shorten `group` to the outermost cgroup with this quota. */
static int find_quota(char *group)
{
    int quota = tw_cores_quota("/sys/fs/cgroup", group);
    for (char *slash = strrchr(group, '/'); slash; slash = strrchr(group, '/')) {
        *slash = '\0';
        if (tw_cores_quota("/sys/fs/cgroup", group) != quota) {
            *slash = '/';
            break;
        }
    }
    return quota;
}

/** Fill in this process's place. `group` includes the cgroup namespace: containers may use equal names. */
static tw_cores_place_t own_place(int64_t asked)
{
    char boot[64], group[PATH_BYTES];
    struct stat names = {0};
    tw_cores_place_t place = {.asked = (int32_t)asked};
    (void)tw_line_read("/proc/sys/kernel/random/boot_id", "", boot, sizeof(boot));
    (void)tw_input_group("/proc", group, sizeof(group));
    own_mask(place.mask);
    int quota = find_quota(group);
    (void)stat("/proc/self/ns/cgroup", &names);
    place.machine = XXH3_64bits(boot, strlen(boot));
    place.group = XXH3_64bits_withSeed(group, strlen(group), place.machine ^ (uint64_t)names.st_ino);
    place.quota = quota < INT_MAX ? quota : 0;
    place.n_cores = tw_cores_count(place.mask, "/sys/devices/system/cpu");
    return place;
}

/* ---- a job --------------------------------------------------------------------------------------------- */

static int is_shared(const tw_cores_place_t *a, const tw_cores_place_t *b)
{
    int shared = 0;
    for (int i = 0; i < TW_CORES_MASK_WORDS; i++) {
        shared |= (a->mask[i] & b->mask[i]) != 0;
    }
    return a->machine == b->machine && shared;
}

int tw_cores_share(const tw_cores_place_t *all, int world, int rank)
{
    const tw_cores_place_t *own = &all[rank];
    int n_beside = 0, n_in_group = 0;
    for (int r = 0; r < world; r++) {
        n_beside += r == rank || is_shared(own, &all[r]);
        n_in_group += r == rank || all[r].group == own->group;
    }
    int n = own->n_cores / n_beside, most = own->quota > 0 ? own->quota / n_in_group : n;
    n = most < n ? most : n;
    return own->asked > 0 ? own->asked : n > 1 ? n : 1;
}

tw_status_t tw_cores_of_job(tw_coll_t *coll, int64_t asked, tw_cores_t *cores)
{
    int world = tw_coll_size(coll);
    tw_cores_place_t own = own_place(asked), *all = tw_agree_alloc(coll, sizeof(*all));
    tw_status_t status = all ? tw_agree_gather(coll, &own, sizeof(own), all) : TW_ERR_NO_MEMORY;
    *cores = (tw_cores_t){1, INT_MAX, 1};
    for (int r = 0; r < world && status == TW_OK; r++) {
        int n = tw_cores_share(all, world, r);
        cores->own = r == tw_coll_rank(coll) ? n : cores->own;
        cores->least = n < cores->least ? n : cores->least;
        cores->most = n > cores->most ? n : cores->most;
    }
    free(all);
    return status;
}
