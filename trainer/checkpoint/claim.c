/* Finds the run to which the steps in a folder of checkpoints belong. Each step's manifest has the id of its
 * run. The file "run" in the folder has the id of the run that was started or resumed there last. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/claim.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/input.h"

#define NAME "run" /* the file has 16 hexadecimal digits and a newline */

/** Read the id of the run that wrote a step. Returns 0 if the step's manifest is missing or damaged. */
static int read_run(const char *folder, uint64_t step, uint64_t *id)
{
    char path[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_checkpoint_step_name(step, name);
    *id = 0;
    return tw_checkpoint_path(path, "%s/%s/%s", folder, name, TW_CHECKPOINT_MANIFEST) == TW_OK &&
           tw_manifest_run_id(path, id);
}

uint64_t tw_checkpoint_step_run(const char *folder, uint64_t step)
{
    uint64_t id;
    (void)read_run(folder, step, &id);
    return id;
}

uint64_t tw_checkpoint_claimed(const char *folder)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    uint64_t id = 0;
    FILE *file = tw_checkpoint_path(path, "%s/%s", folder, NAME) == TW_OK ? fopen(path, "re") : NULL;
    if (file) {
        id = fscanf(file, "%16" SCNx64, &id) == 1 ? id : 0;
        fclose(file);
    }
    return id;
}

/** Replace the folder's file "run" by one with this id, atomically, and flush it to the disk. */
static tw_status_t write_id(const char *folder, uint64_t id)
{
    char path[TW_CHECKPOINT_PATH_BYTES], temporary[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_path(path, "%s/%s", folder, NAME));
    TW_TRY(tw_checkpoint_path(temporary, "%s/%s.tmp", folder, NAME));
    FILE *file = fopen(temporary, "we");
    if (!file) {
        return tw_input_failed(temporary, "write it");
    }
    int wrong = fprintf(file, "%016" PRIx64 "\n", id) < 0 || fflush(file) != 0 || fsync(fileno(file)) != 0;
    if (fclose(file) != 0 || wrong) {
        return tw_input_failed(temporary, "write it");
    }
    return rename(temporary, path) == 0 ? tw_checkpoint_sync_folder(folder)
                                        : tw_input_failed(path, "write it");
}

tw_status_t tw_checkpoint_claim(const char *folder, uint64_t id, tw_checkpoint_others_t *others)
{
    uint64_t *steps;
    size_t n_steps;
    *others = (tw_checkpoint_others_t){0};
    if (tw_checkpoint_steps(folder, 0, &steps, &n_steps) == TW_OK) {
        for (size_t i = 0; i < n_steps; i++) {
            if (tw_checkpoint_step_run(folder, steps[i]) != id) {
                others->n_steps++;
                others->last_step = steps[i];
            }
        }
    }
    free(steps);
    return write_id(folder, id);
}

int tw_checkpoint_has_later(const char *folder, uint64_t id, uint64_t step)
{
    uint64_t *steps;
    size_t n_steps;
    int found = 0;
    /* no steps if the folder cannot be read */
    (void)tw_checkpoint_steps(folder, 0, &steps, &n_steps);
    for (size_t i = 0; i < n_steps && !found; i++) {
        found = steps[i] > step && tw_checkpoint_step_run(folder, steps[i]) == id;
    }
    free(steps);
    return found;
}

/** Return 1 if a step may be this run's. A damaged one may be any run's; loading it logs the damage. */
static int may_be_of(const char *folder, uint64_t id, uint64_t step)
{
    uint64_t of;
    return !read_run(folder, step, &of) || id == 0 || of == id;
}

tw_status_t tw_checkpoint_candidates(const char *folder, uint64_t **steps, size_t *n_steps)
{
    uint64_t id = tw_checkpoint_claimed(folder), *all;
    size_t n_all, n = 0;
    tw_status_t status = tw_checkpoint_steps(folder, 0, &all, &n_all);
    *steps = NULL;
    *n_steps = 0;
    if (status != TW_OK && status != TW_ERR_NOT_FOUND) {
        free(all);
        return status;
    }
    uint64_t *found = calloc(n_all + 1, sizeof(*found));
    for (size_t i = n_all; found && i-- > 0;) {
        if (may_be_of(folder, id, all[i])) {
            found[n++] = all[i];
        }
    }
    free(all);
    *steps = found;
    *n_steps = n;
    return found ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t tw_checkpoint_set_aside(const char *folder, uint64_t step)
{
    char path[TW_CHECKPOINT_PATH_BYTES], aside[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_checkpoint_step_name(step, name);
    TW_TRY(tw_checkpoint_path(path, "%s/%s", folder, name));
    TW_TRY(tw_checkpoint_path(aside, "%s/%s.damaged", folder, name));
    TW_TRY(tw_checkpoint_remove_folder(aside));
    if (rename(path, aside) != 0) {
        return tw_input_failed(path, "give it another name");
    }
    return TW_OK;
}
