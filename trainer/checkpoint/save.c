/* Saving: rank 0 makes a folder, all write their files into it, rank 0 adds the manifest and gives the folder
 * its name. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/claim.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/shard.h"

/* What ranks tell each other between the stages. */
typedef struct report {
    int64_t status;
    uint64_t bytes, checksum; /* of the rank's file */
} report_t;

typedef struct saving {
    tw_coll_t *world;
    const tw_checkpoint_state_t *save;
    report_t own, *all;                       /* [size of world] */
    char folder[TW_CHECKPOINT_PATH_BYTES];    /* of the step, finished */
    char temporary[TW_CHECKPOINT_PATH_BYTES]; /* unfinished */
} saving_t;

/* Everyone hears how everyone fared; returns the first failure. */
static tw_status_t agree(saving_t *saving, tw_status_t status)
{
    int n_ranks = tw_coll_size(saving->world);
    saving->own.status = status;
    tw_coll_segment_t segment = {
        .src = &saving->own, .dst = saving->all, .n_elems = (size_t)n_ranks * sizeof(report_t)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_status_t exchanged = tw_coll_run(saving->world, &args);
    for (int rank = 0; rank < n_ranks && exchanged == TW_OK; rank++) {
        exchanged = (tw_status_t)saving->all[rank].status;
    }
    return exchanged;
}

static int is_first(const saving_t *saving)
{
    return tw_coll_rank(saving->world) == 0;
}

/* What a crash has left is removed: nobody else writes into this folder. */
static tw_status_t remove_unfinished(const char *folder)
{
    uint64_t *steps;
    size_t n_steps;
    char path[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_status_t status = tw_checkpoint_steps(folder, 1, &steps, &n_steps);
    for (size_t i = 0; i < n_steps && status == TW_OK; i++) {
        tw_checkpoint_step_name(steps[i], name);
        status = tw_checkpoint_path(path, "%s/%s.tmp", folder, name);
        if (status == TW_OK) {
            status = tw_checkpoint_remove_folder(path);
        }
    }
    free(steps);
    return status;
}

static tw_status_t make_folders(const saving_t *saving)
{
    const char *folder = saving->save->folder;
    tw_status_t status = tw_checkpoint_make_folder(folder);
    if (status == TW_OK) {
        status = remove_unfinished(folder);
    }
    return status == TW_OK ? tw_checkpoint_make_folder(saving->temporary) : status;
}

static tw_status_t write_shard(saving_t *saving)
{
    const tw_checkpoint_state_t *save = saving->save;
    char path[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_checkpoint_shard_name(tw_coll_rank(saving->world), name);
    tw_status_t status = tw_checkpoint_path(path, "%s/%s", saving->temporary, name);
    if (status == TW_OK) {
        status = tw_shard_write(path, save->model, save->pieces, save->n_pieces);
    }
    return status == TW_OK ? tw_checkpoint_checksum(path, &saving->own.checksum, &saving->own.bytes) : status;
}

static tw_status_t write_manifest(const saving_t *saving)
{
    int n_ranks = tw_coll_size(saving->world);
    char path[TW_CHECKPOINT_PATH_BYTES];
    tw_manifest_t manifest = {.run = saving->save->run,
                              .shards = calloc((size_t)n_ranks, sizeof(*manifest.shards))};
    if (!manifest.shards) {
        tw_error("%s: out of memory for the manifest", saving->folder);
        return TW_ERR_NO_MEMORY;
    }
    manifest.run.n_ranks = n_ranks;
    for (int rank = 0; rank < n_ranks; rank++) {
        manifest.shards[rank] = (tw_manifest_shard_t){saving->all[rank].bytes, saving->all[rank].checksum};
    }
    tw_status_t status = tw_checkpoint_path(path, "%s/%s", saving->temporary, TW_CHECKPOINT_MANIFEST);
    if (status == TW_OK) {
        status = tw_manifest_write(path, &manifest, saving->save->model);
    }
    tw_manifest_cleanup(&manifest);
    return status == TW_OK ? tw_checkpoint_sync_folder(saving->temporary) : status;
}

/* One rename; where the same step has been saved before, the two folders change places. */
static tw_status_t give_name(const saving_t *saving)
{
    if (renameat2(AT_FDCWD, saving->temporary, AT_FDCWD, saving->folder, RENAME_NOREPLACE) == 0) {
        return TW_OK;
    }
    if ((errno == EEXIST &&
         renameat2(AT_FDCWD, saving->temporary, AT_FDCWD, saving->folder, RENAME_EXCHANGE) == 0) ||
        (errno == EINVAL && rename(saving->temporary, saving->folder) == 0)) { /* not every file system can */
        return TW_OK;
    }
    int error = errno;
    tw_error("%s: cannot give a folder this name: %s", saving->folder, strerror(error));
    return tw_status_from_errno(error);
}

/* Under the name of what is unfinished first: nobody is to take half of one for a checkpoint. */
static tw_status_t remove_step(const char *folder, uint64_t step)
{
    char path[TW_CHECKPOINT_PATH_BYTES], unfinished[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_checkpoint_step_name(step, name);
    tw_status_t status = tw_checkpoint_path(path, "%s/%s", folder, name);
    if (status == TW_OK) {
        status = tw_checkpoint_path(unfinished, "%s/%s.tmp", folder, name);
    }
    if (status == TW_OK && rename(path, unfinished) != 0) {
        int error = errno;
        tw_error("%s: cannot remove it: %s", path, strerror(error));
        status = tw_status_from_errno(error);
    }
    return status == TW_OK ? tw_checkpoint_remove_folder(unfinished) : status;
}

/* All but the newest `keep` of this run up to this step; others are of another run, and somebody's. */
static tw_status_t remove_old(const tw_checkpoint_state_t *save)
{
    uint64_t *steps;
    size_t n_steps, n_ours = 0;
    tw_status_t status = tw_checkpoint_steps(save->folder, 0, &steps, &n_steps);
    for (size_t i = 0; i < n_steps; i++) {
        if (steps[i] <= save->run.step && tw_checkpoint_step_run(save->folder, steps[i]) == save->run.id) {
            steps[n_ours++] = steps[i];
        }
    }
    for (size_t i = 0; i + save->keep < n_ours && status == TW_OK; i++) {
        status = remove_step(save->folder, steps[i]);
    }
    free(steps);
    return status;
}

static tw_status_t publish(const saving_t *saving)
{
    tw_status_t status = write_manifest(saving);
    if (status == TW_OK) {
        status = give_name(saving);
    }
    if (status == TW_OK) {
        status = tw_checkpoint_sync_folder(saving->save->folder);
    }
    if (status == TW_OK) {
        status = remove_unfinished(saving->save->folder);
    }
    return status == TW_OK ? remove_old(saving->save) : status;
}

static tw_status_t run_stages(saving_t *saving)
{
    TW_TRY(agree(saving, is_first(saving) ? make_folders(saving) : TW_OK));
    tw_status_t status = agree(saving, write_shard(saving));
    if (status == TW_OK) {
        status = agree(saving, is_first(saving) ? publish(saving) : TW_OK);
    }
    if (status != TW_OK && status != TW_ERR_PEER && is_first(saving)) {
        (void)tw_checkpoint_remove_folder(saving->temporary); /* a full disk is not to stay so */
    }
    return status;
}

tw_status_t tw_checkpoint_prepare(const char *path)
{
    char probe[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_make_folder(path));
    TW_TRY(tw_checkpoint_path(probe, "%s/writable.tmp", path));
    if ((mkdir(probe, 0777) != 0 && errno != EEXIST) || rmdir(probe) != 0) {
        int error = errno;
        tw_error("%s: cannot write into this folder: %s", path, strerror(error));
        return tw_status_from_errno(error);
    }
    return TW_OK;
}

tw_status_t tw_checkpoint_save(tw_coll_t *world, const tw_checkpoint_state_t *save)
{
    char name[32];
    saving_t *saving = calloc(1, sizeof(*saving));
    report_t *all = calloc((size_t)tw_coll_size(world), sizeof(*all));
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (saving && all) {
        *saving = (saving_t){.world = world, .save = save, .all = all};
        tw_checkpoint_step_name(save->run.step, name);
        status = tw_checkpoint_path(saving->folder, "%s/%s", save->folder, name);
        if (status == TW_OK) {
            status = tw_checkpoint_path(saving->temporary, "%s/%s.tmp", save->folder, name);
        }
        if (status == TW_OK) {
            status = run_stages(saving);
        }
    } else {
        tw_error("checkpoint: out of memory");
    }
    free(all);
    free(saving);
    return status;
}
