/** Private to trainer/data: maps files to read them, and writes files under temporary names. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_DATA_PATH_BYTES 4096

/** The bytes of a mapped file, read-only. */
typedef struct tw_data_map {
    const unsigned char *at; /**< NULL: no file is mapped, or the file is empty */
    size_t bytes;
    int fd;     /**< open while the bytes are mapped */
    char *path; /**< set while the bytes are mapped */
} tw_data_map_t;

/** Maps a file. TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_INVALID (not a regular file), TW_ERR_NO_MEMORY;
 *  logged. */
tw_status_t tw_data_map(const char *path, tw_data_map_t *map);
void tw_data_unmap(tw_data_map_t *map);
/** Check that the file has not become shorter since it was mapped. Reading beyond its end would kill the
 *  process (SIGBUS). TW_ERR_TRUNCATED, TW_ERR_IO; logged. */
tw_status_t tw_data_map_check(const tw_data_map_t *map);
/** Release the memory of the bytes that have been read. Later reads come from the system's cache again. */
void tw_data_rest(const tw_data_map_t *map);

/** Write the path of the folder of caches to `folder` [TW_DATA_PATH_BYTES], and create the folder. `wanted`:
 *  tw_data_config_t.cache_dir. TW_ERR_IO, TW_ERR_INVALID (the path is too long); logged. */
tw_status_t tw_data_cache_folder(const char *wanted, char *folder);

/** A file that is being written. It gets the name `path` when it is complete. */
typedef struct tw_data_writer {
    FILE *out;
    char path[TW_DATA_PATH_BYTES], temporary[TW_DATA_PATH_BYTES];
} tw_data_writer_t;

/** Begin a file. TW_ERR_IO, TW_ERR_INVALID (the path is too long); logged. */
tw_status_t tw_data_writer_open(tw_data_writer_t *writer, const char *path);
/** Close the file. If all was written and `status` is TW_OK, rename it to its path; otherwise remove it.
 *  Returns `status`, or TW_ERR_IO (logged). */
tw_status_t tw_data_writer_close(tw_data_writer_t *writer, tw_status_t status);

TW_C_END
