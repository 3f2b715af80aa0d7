/* Compares the memory that ranks will need with the memory of their machines. */
#include "trainer/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "core/line.h"
#include "trainer/agreement.h"
#include "trainer/input.h"
#include "trainer/plan/plan.h"

#define PATH_BYTES 4096
#define DELTA_BITS 4.0 /* about how many bits a lossless delta takes per parameter */

/** Return the number after a word at the beginning of a line of the file, or -1 if there is none. */
static double fit_read_number(const char *path, const char *word)
{
    char line[256], *end;
    if (!tw_line_read(path, word, line, sizeof(line))) {
        return -1;
    }
    char *at = line + strlen(word) + strspn(line + strlen(word), " :\t");
    double value = strtod(at, &end);
    return end > at && strspn(at, "0123456789") > 0 ? value : -1;
}

tw_room_t tw_room_of_machine(const char *proc)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/meminfo", proc);
    double total = fit_read_number(path, "MemTotal"), available = fit_read_number(path, "MemAvailable");
    double swap = fmax(fit_read_number(path, "SwapTotal"), 0),
           swap_free = fmax(fit_read_number(path, "SwapFree"), 0);
    return (tw_room_t){.total = total >= 0 ? 1024 * (total + swap) : INFINITY,
                       .available = available >= 0 ? 1024 * (available + swap_free) : INFINITY};
}

/** Read the memory limit of a cgroup's folder. Only anonymous memory counts as taken, since the system can
 *  drop its file cache. */
static tw_room_t room_of_folder(const char *folder)
{
    char path[2 * PATH_BYTES + 32];
    snprintf(path, sizeof(path), "%s/memory.max", folder);
    double total = fit_read_number(path, "");
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    double taken = fmax(fit_read_number(path, "anon"), 0);
    return (tw_room_t){.total = total >= 0 ? total : INFINITY,
                       .available = total >= 0 ? fmax(total - taken, 0) : INFINITY};
}

tw_room_t tw_room_of_group(const char *proc, const char *cgroups)
{
    char group[PATH_BYTES], folder[2 * PATH_BYTES];
    tw_room_t room = {INFINITY, INFINITY};
    if (!tw_input_group(proc, group, sizeof(group))) {
        return room;
    }
    for (char *slash = group + strlen(group); slash; slash = strrchr(group, '/')) {
        *slash = '\0';
        snprintf(folder, sizeof(folder), "%s%s", cgroups, group);
        tw_room_t one = room_of_folder(folder);
        room.total = fmin(room.total, one.total);
        room.available = fmin(room.available, one.available);
    }
    return room;
}

/* ---- what is needed ------------------------------------------------------------------------------------ */

tw_status_t tw_need_of(const tw_train_options_t *o, const tw_model_t *model, int world, int n_nodes,
                       tw_need_t *need)
{
    tw_plan_memory_t memory;
    tw_plan_cluster_t cluster = tw_plan_cluster_of(world, n_nodes);
    tw_train_options_t quiet = *o; /* the rank that needs most may not be the one that samples */
    quiet.sample_steps = 0;
    cluster.delta_bits = DELTA_BITS;
    TW_TRY(tw_plan_memory_of(&quiet, model, &cluster, &memory));
    double optimizer = o->offload_optimizer == TW_TRAIN_NVME ? 0 : memory.optimizer;
    double weights = o->offload_param == TW_TRAIN_NVME ? 0 : memory.weights;
    double activations = *o->activation_path ? 0 : memory.activations;
    /* one rank of the job samples: count an even share of that for each rank of its node */
    double sampling = tw_plan_sampling_bytes(o, model) / cluster.ranks_per_node;
    *need = (tw_need_t){.sure = optimizer + weights + memory.gradients + activations,
                        .all = tw_plan_memory_sum(&memory) + sampling};
    return TW_OK;
}

tw_status_t tw_fit_check(const char *where, const tw_room_t *room, const tw_need_t *need, int n_ranks,
                         int says)
{
    double sure = n_ranks * need->sure, all = n_ranks * need->all;
    TW_FAIL_IF(sure > room->total, TW_ERR_CONFIG,
               "%d ranks will hold %.2f GB at least, %.2f each, but %s has %.2f GB: "
               "zero_optimization.stage 3, thinwire.recompute and offloading to nvme take less, and "
               "thinwire.check_memory=false begins all the same",
               n_ranks, sure * 1e-9, need->sure * 1e-9, where, room->total * 1e-9);
    if (says && all > room->available) {
        tw_warn("%d ranks will hold about %.2f GB, but of the memory of %s only %.2f GB are free: the run "
                "may be killed, or swap",
                n_ranks, all * 1e-9, where, room->available * 1e-9);
    }
    return TW_OK;
}

tw_status_t tw_fit_check_here(const tw_need_t *need, int world)
{
    tw_room_t machine = tw_room_of_machine("/proc"), group = tw_room_of_group("/proc", "/sys/fs/cgroup");
    TW_TRY(tw_fit_check("this machine", &machine, need, world, 0));
    return tw_fit_check("this control group", &group, need, world, 0);
}

/* ---- a job --------------------------------------------------------------------------------------------- */

/* Where a rank runs. Ranks on the same machine, or in the same cgroup, have equal numbers. */
typedef struct place {
    uint64_t machine, group;
} place_t;

static uint64_t hash_file(const char *path, uint64_t hash)
{
    char text[PATH_BYTES];
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof(text), file) : 0;
    if (file) {
        fclose(file);
    }
    return XXH3_64bits_withSeed(text, n, hash);
}

/** Find where this rank runs. All nodes of a cluster in a box are one machine. Containers on one machine
 *  count as different groups, even if each calls its own "/". */
static place_t own_place(void)
{
    struct stat info = {0};
    place_t place = {.machine = hash_file("/proc/sys/kernel/random/boot_id", 0)};
    (void)stat("/proc/self/ns/cgroup", &info);
    place.group = hash_file("/proc/self/cgroup", place.machine ^ (uint64_t)info.st_ino);
    return place;
}

/** Count the ranks in this rank's place. *is_first is 1 if this rank is the lowest there, which logs. */
static int count_alike(const place_t *all, int world, int rank, int by_group, int *is_first)
{
    int n = 0;
    *is_first = 1;
    for (int r = 0; r < world; r++) {
        int alike = by_group ? all[r].group == all[rank].group : all[r].machine == all[rank].machine;
        *is_first &= !alike || n > 0 || r == rank;
        n += alike;
    }
    return n;
}

static tw_status_t check_place(const tw_need_t *need, const place_t *all, int world, int rank, int by_group)
{
    int is_first, n = count_alike(all, world, rank, by_group, &is_first);
    tw_room_t room = by_group ? tw_room_of_group("/proc", "/sys/fs/cgroup") : tw_room_of_machine("/proc");
    char where[64];
    snprintf(where, sizeof(where), "the %s of rank %d", by_group ? "control group" : "machine", rank);
    return is_first ? tw_fit_check(where, &room, need, n, 1) : TW_OK;
}

tw_status_t tw_fit_check_job(tw_coll_t *coll, const tw_need_t *need)
{
    int world = tw_coll_size(coll), rank = tw_coll_rank(coll);
    place_t own = own_place(), *all = tw_agree_alloc(coll, sizeof(*all));
    tw_status_t status = all ? tw_agree_gather(coll, &own, sizeof(own), all) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        status = check_place(need, all, world, rank, 0);
        status = status == TW_OK ? check_place(need, all, world, rank, 1) : status;
        status = tw_agree_status(coll, status);
    }
    free(all);
    return status;
}
