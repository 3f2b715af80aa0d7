/* Saves checkpoints. Rank 0 makes a folder with a temporary name, all ranks write their files into it, and
 * rank 0 adds the manifest and renames the folder. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/claim.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/shard.h"
#include "trainer/input.h"

/* A rank's result of a stage, which ranks exchange before the next stage. */
typedef struct report {
    int64_t status;
    uint64_t bytes, checksum; /* of the rank's own file */
} report_t;

typedef enum stage { WRITING, TAKEN, WRITTEN } stage_t;

struct tw_checkpoint_saving {
    tw_coll_t *coll;
    tw_checkpoint_state_t save;
    report_t own, *all;                       /* [world] */
    char folder[TW_CHECKPOINT_PATH_BYTES];    /* the step's folder after it is complete */
    char temporary[TW_CHECKPOINT_PATH_BYTES]; /* the step's folder while it is written */
    tw_checkpoint_piece_t *pieces;            /* [save.n_pieces], a copy */
    pthread_t thread;                         /* writes the file */
    int has_thread;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    stage_t stage;
    tw_status_t status; /* result of writing, valid from stage WRITTEN on */
};

typedef tw_checkpoint_saving_t saving_t;

/** Exchange the ranks' results; return the first failure. Waits without a limit, since disks may be slow. */
static tw_status_t save_exchange(tw_coll_t *coll, const report_t *own, report_t *all)
{
    int world = tw_coll_size(coll);
    tw_coll_segment_t segment = {.src = own, .dst = all, .n_elems = (size_t)world * sizeof(report_t)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1, .patient = 1};
    tw_status_t status = tw_coll_run(coll, &args);
    for (int rank = 0; rank < world && status == TW_OK; rank++) {
        status = (tw_status_t)all[rank].status;
    }
    return status;
}

static tw_status_t save_agree(saving_t *saving, tw_status_t status)
{
    saving->own.status = status;
    return save_exchange(saving->coll, &saving->own, saving->all);
}

static tw_status_t save_no_memory(const tw_coll_t *coll)
{
    return tw_fail(TW_ERR_NO_MEMORY, "rank %d: out of memory for a checkpoint", tw_coll_rank(coll));
}

/** Tell all ranks that this rank is out of memory. If it cannot even allocate the buffer for their results,
 *  it aborts the communicator, and the other ranks' calls fail, too. */
static tw_status_t tell_no_memory(tw_coll_t *coll)
{
    const report_t own = {.status = save_no_memory(coll)};
    report_t *all = calloc((size_t)tw_coll_size(coll), sizeof(*all));
    if (!all) {
        tw_coll_abort(coll);
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = save_exchange(coll, &own, all);
    free(all);
    return status;
}

static int is_first(const saving_t *saving)
{
    return tw_coll_rank(saving->coll) == 0;
}

/** Remove incomplete steps that a crash has left. No other job writes here, because of the lock. */
static tw_status_t remove_unfinished(const char *folder)
{
    uint64_t *steps;
    size_t n_steps;
    char path[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_status_t status = tw_checkpoint_steps(folder, 1, &steps, &n_steps);
    for (size_t i = 0; i < n_steps && status == TW_OK; i++) {
        tw_checkpoint_step_name(steps[i], name);
        status = tw_checkpoint_path(path, "%s/%s.tmp", folder, name);
        status = status == TW_OK ? tw_checkpoint_remove_folder(path) : status;
    }
    free(steps);
    return status;
}

static tw_status_t make_folders(const saving_t *saving)
{
    const char *folder = saving->save.folder;
    TW_TRY(tw_checkpoint_make_folder(folder));
    TW_TRY(remove_unfinished(folder));
    return tw_checkpoint_make_folder(saving->temporary);
}

/* ---- a rank's file ------------------------------------------------------------------------------------- */

static void save_enter(saving_t *saving, stage_t stage, tw_status_t status)
{
    pthread_mutex_lock(&saving->lock);
    saving->stage = stage;
    saving->status = status;
    pthread_cond_broadcast(&saving->changed);
    pthread_mutex_unlock(&saving->lock);
}

/** Warn that the disk takes long, so that somebody can look at it. The run continues to wait. */
static void say_waiting(const saving_t *saving, double limit_sec)
{
    char name[32];
    tw_checkpoint_shard_name(tw_coll_rank(saving->coll), name);
    tw_warn("rank %d: %s/%s: the disk has not taken it for %.1f s; all ranks go on waiting for it",
            tw_coll_rank(saving->coll), saving->temporary, name, limit_sec);
}

/** Wait until the stage is reached; the caller holds the lock. Returns 0 if limit_sec passes first. */
static int comes_within(saving_t *saving, stage_t stage, double limit_sec)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double sec = (double)until.tv_sec + (double)until.tv_nsec * 1e-9 + limit_sec;
    until = (struct timespec){.tv_sec = (time_t)sec, .tv_nsec = (long)((sec - floor(sec)) * 1e9)};
    int error = 0;
    while (saving->stage < stage && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&saving->changed, &saving->lock, &until);
    }
    return saving->stage >= stage;
}

static void save_wait_for(saving_t *saving, stage_t stage)
{
    double limit_sec = tw_coll_timeout(saving->coll);
    pthread_mutex_lock(&saving->lock);
    if (limit_sec > 0 && !comes_within(saving, stage, limit_sec)) {
        say_waiting(saving, limit_sec);
    }
    while (saving->stage < stage) {
        pthread_cond_wait(&saving->changed, &saving->lock);
    }
    pthread_mutex_unlock(&saving->lock);
}

static tw_status_t write_shard(saving_t *saving)
{
    const tw_checkpoint_state_t *save = &saving->save;
    tw_safetensors_writer_t *writer;
    char path[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_checkpoint_shard_name(tw_coll_rank(saving->coll), name);
    TW_TRY(tw_checkpoint_path(path, "%s/%s", saving->temporary, name));
    TW_TRY(tw_shard_write(path, save->model, saving->pieces, save->n_pieces, &writer));
    save_enter(saving, TAKEN, TW_OK);
    TW_TRY(tw_safetensors_writer_finish(writer));
    return tw_checkpoint_checksum(path, &saving->own.checksum, &saving->own.bytes);
}

static void *write_beside(void *ctx)
{
    saving_t *saving = ctx;
    save_enter(saving, WRITTEN, write_shard(saving));
    return NULL;
}

/** Write the file in a thread. If no thread can be made, write it before returning. */
static void start_writing(saving_t *saving)
{
    saving->has_thread = pthread_create(&saving->thread, NULL, write_beside, saving) == 0;
    if (!saving->has_thread) {
        (void)write_beside(saving);
    }
}

static void stop_writing(saving_t *saving)
{
    if (saving->has_thread) {
        pthread_join(saving->thread, NULL);
        saving->has_thread = 0;
    }
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

static tw_status_t write_manifest(const saving_t *saving)
{
    int world = tw_coll_size(saving->coll);
    char path[TW_CHECKPOINT_PATH_BYTES];
    tw_manifest_t manifest = {.run = saving->save.run,
                              .shards = calloc((size_t)world, sizeof(*manifest.shards))};
    TW_FAIL_IF(!manifest.shards, TW_ERR_NO_MEMORY, "%s: out of memory for the manifest", saving->folder);
    manifest.run.world = world;
    for (int rank = 0; rank < world; rank++) {
        manifest.shards[rank] = (tw_manifest_shard_t){saving->all[rank].bytes, saving->all[rank].checksum};
    }
    tw_status_t status = tw_checkpoint_path(path, "%s/%s", saving->temporary, TW_CHECKPOINT_MANIFEST);
    status = status == TW_OK ? tw_manifest_write(path, &manifest, saving->save.model) : status;
    tw_manifest_cleanup(&manifest);
    return status == TW_OK ? tw_checkpoint_sync_folder(saving->temporary) : status;
}

/** Rename the complete folder on a file system that lacks renameat2's flags, such as NFS. A crash in between
 *  leaves the earlier save under another name. */
static tw_status_t give_name_in_turn(const saving_t *saving)
{
    char aside[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_path(aside, "%s.replaced", saving->folder));
    TW_TRY(tw_checkpoint_remove_folder(aside));
    if ((rename(saving->folder, aside) != 0 && errno != ENOENT) ||
        rename(saving->temporary, saving->folder) != 0) {
        return tw_input_failed(saving->folder, "give a folder this name");
    }
    return tw_checkpoint_remove_folder(aside);
}

/** Rename the complete folder. If the step's folder exists from an earlier save, exchange the two. */
static tw_status_t give_name(const saving_t *saving)
{
    if (renameat2(AT_FDCWD, saving->temporary, AT_FDCWD, saving->folder, RENAME_NOREPLACE) == 0) {
        return TW_OK;
    }
    if (errno == EEXIST &&
        renameat2(AT_FDCWD, saving->temporary, AT_FDCWD, saving->folder, RENAME_EXCHANGE) == 0) {
        return TW_OK;
    }
    return errno == EINVAL ? give_name_in_turn(saving)
                           : tw_input_failed(saving->folder, "give a folder this name");
}

/** Remove a step's folder. Give it the name of an incomplete step first: a crash may leave half of it. */
static tw_status_t remove_step(const char *folder, uint64_t step)
{
    char path[TW_CHECKPOINT_PATH_BYTES], unfinished[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_checkpoint_step_name(step, name);
    tw_status_t status = tw_checkpoint_path(path, "%s/%s", folder, name);
    status = status == TW_OK ? tw_checkpoint_path(unfinished, "%s/%s.tmp", folder, name) : status;
    if (status == TW_OK && rename(path, unfinished) != 0) {
        status = tw_input_failed(path, "remove it");
    }
    return status == TW_OK ? tw_checkpoint_remove_folder(unfinished) : status;
}

/** Remove all but the newest `keep` of this run's steps up to this one. Later and other runs' steps stay. */
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

static tw_status_t save_publish(const saving_t *saving)
{
    TW_TRY(write_manifest(saving));
    TW_TRY(give_name(saving));
    TW_TRY(tw_checkpoint_sync_folder(saving->save.folder));
    TW_TRY(remove_unfinished(saving->save.folder));
    return remove_old(&saving->save);
}

tw_status_t tw_checkpoint_prepare(const char *path)
{
    char probe[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_make_folder(path));
    TW_TRY(tw_checkpoint_path(probe, "%s/writable.tmp", path));
    if ((mkdir(probe, 0777) != 0 && errno != EEXIST) || rmdir(probe) != 0) {
        return tw_input_failed(path, "write into this folder");
    }
    return TW_OK;
}

/* ---- saving a checkpoint ------------------------------------------------------------------------------- */

static void save_destroy(saving_t *saving)
{
    if (saving) {
        stop_writing(saving);
        pthread_cond_destroy(&saving->changed);
        pthread_mutex_destroy(&saving->lock);
        free(saving->pieces);
        free(saving->all);
        free(saving);
    }
}

static saving_t *save_create(tw_coll_t *coll, const tw_checkpoint_state_t *save)
{
    saving_t *saving = calloc(1, sizeof(*saving));
    if (!saving) {
        return NULL;
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&saving->lock, NULL);
    pthread_cond_init(&saving->changed, &clock);
    pthread_condattr_destroy(&clock);
    saving->coll = coll;
    saving->save = *save;
    saving->all = calloc((size_t)tw_coll_size(coll), sizeof(*saving->all));
    saving->pieces = calloc(save->n_pieces + 1, sizeof(*saving->pieces));
    if (!saving->all || !saving->pieces) {
        save_destroy(saving);
        return NULL;
    }
    if (save->n_pieces > 0) {
        memcpy(saving->pieces, save->pieces, save->n_pieces * sizeof(*saving->pieces));
    }
    return saving;
}

static tw_status_t set_paths(saving_t *saving)
{
    char name[32];
    tw_checkpoint_step_name(saving->save.run.step, name);
    TW_TRY(tw_checkpoint_path(saving->folder, "%s/%s", saving->save.folder, name));
    return tw_checkpoint_path(saving->temporary, "%s/%s.tmp", saving->save.folder, name);
}

/** Remove the incomplete folder after a failure, so that it does not fill the disk. */
static tw_status_t clear_away(const saving_t *saving, tw_status_t status)
{
    if (status != TW_OK && status != TW_ERR_PEER && is_first(saving)) {
        (void)tw_checkpoint_remove_folder(saving->temporary);
    }
    return status;
}

tw_status_t tw_checkpoint_save_begin(tw_coll_t *coll, const tw_checkpoint_state_t *save, saving_t **out)
{
    saving_t *saving = save_create(coll, save);
    if (!saving) {
        return tell_no_memory(coll);
    }
    tw_status_t status = set_paths(saving);
    if (status == TW_OK) {
        status = save_agree(saving, is_first(saving) ? make_folders(saving) : TW_OK);
    }
    if (status != TW_OK) {
        save_destroy(saving);
        return status;
    }
    start_writing(saving);
    *out = saving;
    return TW_OK;
}

void tw_checkpoint_save_release(saving_t *saving)
{
    save_wait_for(saving, TAKEN);
}

static int is_at(saving_t *saving, stage_t stage)
{
    pthread_mutex_lock(&saving->lock);
    int is_there = saving->stage >= stage;
    pthread_mutex_unlock(&saving->lock);
    return is_there;
}

int tw_checkpoint_save_is_taken(saving_t *saving)
{
    return is_at(saving, TAKEN);
}

int tw_checkpoint_save_is_written(saving_t *saving)
{
    return is_at(saving, WRITTEN);
}

tw_status_t tw_checkpoint_save_end(saving_t *saving)
{
    save_wait_for(saving, WRITTEN);
    stop_writing(saving);
    tw_status_t status = save_agree(saving, saving->status);
    if (status == TW_OK) {
        status = save_agree(saving, is_first(saving) ? save_publish(saving) : TW_OK);
    }
    status = clear_away(saving, status);
    save_destroy(saving);
    return status;
}

void tw_checkpoint_save_drop(saving_t *saving)
{
    save_destroy(saving);
}

tw_status_t tw_checkpoint_save(tw_coll_t *coll, const tw_checkpoint_state_t *save)
{
    saving_t *saving;
    TW_TRY(tw_checkpoint_save_begin(coll, save, &saving));
    return tw_checkpoint_save_end(saving);
}
