/** Private to trainer/data: maps files to read them, and writes files under a temporary name. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_DATA_PATH_BYTES 4096

/** A file's bytes, read-only. */
typedef struct tw_data_map {
    const unsigned char *at; /**< NULL: nothing is mapped, or the file is empty */
    size_t bytes;
    int fd;     /**< open as long as the bytes are mapped */
    char *path; /**< set as long as the bytes are mapped */
} tw_data_map_t;

/** Maps a file. TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_INVALID (not a regular file), TW_ERR_NO_MEMORY;
 *  logged. */
tw_status_t tw_data_map(const char *path, tw_data_map_t *map);
void tw_data_unmap(tw_data_map_t *map);
/** Check that the file is still as long as it was: reading beyond its end would kill the process (SIGBUS).
 *  TW_ERR_TRUNCATED, TW_ERR_IO; logged. */
tw_status_t tw_data_map_check(const tw_data_map_t *map);
/** Release the memory of what has been read so far; reading it again takes it from the system's cache. */
void tw_data_rest(const tw_data_map_t *map);

/** Write the path of the folder of caches (see data.h) to `folder` [TW_DATA_PATH_BYTES], and make it if it is
 *  not there. `wanted` may be NULL or "". TW_ERR_IO, TW_ERR_INVALID (a name is too long); logged. */
tw_status_t tw_data_cache_folder(const char *wanted, char *folder);

/** A file that is being written; it appears at `path` once it is whole. */
typedef struct tw_data_writer {
    FILE *out;
    char path[TW_DATA_PATH_BYTES], temporary[TW_DATA_PATH_BYTES];
} tw_data_writer_t;

/** Begin a file. TW_ERR_IO, TW_ERR_INVALID (a name is too long); logged. */
tw_status_t tw_data_writer_open(tw_data_writer_t *writer, const char *path);
/** Close the file, and give it its name if all was written and `status` is TW_OK; otherwise remove it.
 *  Returns `status`, or TW_ERR_IO (logged). */
tw_status_t tw_data_writer_close(tw_data_writer_t *writer, tw_status_t status);

TW_C_END
