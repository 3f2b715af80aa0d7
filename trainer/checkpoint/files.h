/** Private to trainer/checkpoint: names of a checkpoint's files and folders, and how they reach the disk. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_CHECKPOINT_PATH_BYTES 4096
#define TW_CHECKPOINT_MANIFEST "manifest.json"

/** Writes a path into `path` [TW_CHECKPOINT_PATH_BYTES]. TW_ERR_INVALID (logged): it does not fit. */
tw_status_t tw_checkpoint_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Writes "step-00000600", or "shard-00003.safetensors", into name [32]. */
void tw_checkpoint_step_name(uint64_t step, char *name);
void tw_checkpoint_shard_name(int rank, char *name);

/** Make a folder and its parents, unless they are there. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_make_folder(const char *path);
/** Flush the names of a folder's files to the disk. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_sync_folder(const char *path);
/** Remove a folder and the files in it; that they are not there is no error. Errors are logged. */
tw_status_t tw_checkpoint_remove_folder(const char *path);

/** List the steps whose folders lie in `path`, ascending; with `unfinished`, those that a crash left. The
 *  caller frees *steps. TW_ERR_NOT_FOUND: no such folder (silent); TW_ERR_NO_MEMORY. */
tw_status_t tw_checkpoint_steps(const char *path, int unfinished, uint64_t **steps, size_t *n_steps);

/** Compute checksum and size of a file. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_checksum(const char *path, uint64_t *checksum, uint64_t *bytes);

TW_C_END
