/** Private to trainer/checkpoint: names, makes, flushes and removes a checkpoint's files and folders. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_CHECKPOINT_PATH_BYTES 4096
#define TW_CHECKPOINT_MANIFEST "manifest.json"

/** Format a path into path [TW_CHECKPOINT_PATH_BYTES]. TW_ERR_INVALID, logged: the path is too long. */
tw_status_t tw_checkpoint_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Write a name into name [32]: "step-00000600", or "shard-00003.safetensors". */
void tw_checkpoint_step_name(uint64_t step, char *name);
void tw_checkpoint_shard_name(int rank, char *name);

/** Make a folder and its parents, unless they exist. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_make_folder(const char *path);
/** Flush a folder's list of files to the disk. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_sync_folder(const char *path);
/** Remove a folder and the files in it. Succeeds if the folder does not exist. Errors are logged. */
tw_status_t tw_checkpoint_remove_folder(const char *path);

/** List the complete steps in `path`, ascending, or, if `unfinished` is 1, the incomplete ones of a crash.
 *  The caller frees *steps. TW_ERR_NOT_FOUND, not logged: no such folder. TW_ERR_NO_MEMORY. */
tw_status_t tw_checkpoint_steps(const char *path, int unfinished, uint64_t **steps, size_t *n_steps);

/** Compute checksum and size of a file. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_checksum(const char *path, uint64_t *checksum, uint64_t *bytes);

TW_C_END
