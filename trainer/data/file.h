/** Private to trainer/data: files, mapped to be read, and written under a temporary name. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_DATA_PATH_BYTES 4096

/** A file's bytes, read-only. */
typedef struct tw_data_map {
    const unsigned char *at; /**< NULL: nothing is mapped, or the file is empty */
    size_t bytes;
    int fd;     /**< open as long as the bytes are mapped */
    char *path; /**< likewise */
} tw_data_map_t;

/** Maps a file. TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_INVALID (not a regular file), TW_ERR_NO_MEMORY;
 *  logged. */
tw_status_t tw_data_map(const char *path, tw_data_map_t *map);
void tw_data_unmap(tw_data_map_t *map);
/** Is the file as long as it was? Reading what is gone would end the process (SIGBUS). TW_ERR_TRUNCATED,
 *  TW_ERR_IO; logged. */
tw_status_t tw_data_map_check(const tw_data_map_t *map);
/** What has been read so far takes no memory of this process any more; it comes back from the system's cache
 *  when read again. */
void tw_data_rest(const tw_data_map_t *map);

/** The folder of caches (see data.h), made if it is not there, into `folder` [TW_DATA_PATH_BYTES]. `wanted`
 *  may be NULL or "". TW_ERR_IO, TW_ERR_INVALID (a name too long); logged. */
tw_status_t tw_data_cache_folder(const char *wanted, char *folder);

/** A file being written; what reads `path` sees nothing of it before it is whole. */
typedef struct tw_data_writer {
    FILE *out;
    char path[TW_DATA_PATH_BYTES], temporary[TW_DATA_PATH_BYTES];
} tw_data_writer_t;

/** TW_ERR_IO, TW_ERR_INVALID (a name too long); logged. */
tw_status_t tw_data_writer_open(tw_data_writer_t *writer, const char *path);
/** Closes, and gives the file its name if everything before was written and `status` is TW_OK; otherwise
 *  removes it. Returns status, or TW_ERR_IO (logged). */
tw_status_t tw_data_writer_close(tw_data_writer_t *writer, tw_status_t status);

TW_C_END
