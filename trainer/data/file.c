/* Maps files, finds the folder of caches, and writes files that get their names when they are complete. */
#include "trainer/data/file.h"
#include "trainer/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- mapping ------------------------------------------------------------------------------------------- */

static tw_status_t map_descriptor(const char *path, int fd, tw_data_map_t *map)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return tw_input_failed(path, "look at it");
    }
    TW_FAIL_IF(!S_ISREG(info.st_mode), TW_ERR_INVALID, "%s: not a regular file", path);
    if (info.st_size == 0) {
        return TW_OK;
    }
    void *at = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        return tw_input_failed(path, "map it");
    }
    *map = (tw_data_map_t){.at = at, .bytes = (size_t)info.st_size, .fd = fd, .path = strdup(path)};
    if (!map->path) {
        tw_error("%s: out of memory for its name", path);
        munmap(at, map->bytes);
        *map = (tw_data_map_t){0};
        return TW_ERR_NO_MEMORY;
    }
    return TW_OK;
}

tw_status_t tw_data_map(const char *path, tw_data_map_t *map)
{
    *map = (tw_data_map_t){0};
    /* non-blocking: opening a FIFO would wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return tw_input_failed(path, "open it");
    }
    tw_status_t status = map_descriptor(path, fd, map);
    if (!map->at) {
        close(fd);
    }
    return status;
}

tw_status_t tw_data_map_check(const tw_data_map_t *map)
{
    struct stat info;
    if (!map->at) {
        return TW_OK;
    }
    if (fstat(map->fd, &info) != 0) {
        return tw_input_failed(map->path, "look at it");
    }
    TW_FAIL_IF((uint64_t)info.st_size < map->bytes, TW_ERR_TRUNCATED,
               "%s: cut to %lld bytes since it was opened with %zu", map->path, (long long)info.st_size,
               map->bytes);
    return TW_OK;
}

void tw_data_rest(const tw_data_map_t *map)
{
    if (map->at) {
        /* Only advice: if it fails, the memory stays in use. */
        (void)madvise((void *)(uintptr_t)map->at, map->bytes, MADV_DONTNEED);
    }
}

void tw_data_unmap(tw_data_map_t *map)
{
    if (map->at) {
        munmap((void *)(uintptr_t)map->at, map->bytes);
        close(map->fd);
        free(map->path);
    }
    *map = (tw_data_map_t){0};
}

/* ---- the folder of caches ------------------------------------------------------------------------------ */

/** Make a folder, unless it exists. It may be another user's; temporary_folder checks that. */
static tw_status_t make_folder(const char *folder)
{
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        return tw_input_failed(folder, "make this folder");
    }
    struct stat info;
    if (stat(folder, &info) != 0) {
        return tw_input_failed(folder, "look at it");
    }
    return S_ISDIR(info.st_mode) ? TW_OK : tw_fail(TW_ERR_IO, "%s: not a folder", folder);
}

/** Make `base`, and in it the folders of `below`, one inside the other. `folder` gets the innermost path. */
static tw_status_t make_folders(const char *base, const char *const *below, char *folder)
{
    size_t used = (size_t)snprintf(folder, TW_DATA_PATH_BYTES, "%s", base);
    tw_status_t status = make_folder(folder);
    for (size_t i = 0; below[i] && status == TW_OK; i++) {
        used += (size_t)snprintf(folder + used, TW_DATA_PATH_BYTES - used, "/%s", below[i]);
        status = make_folder(folder);
    }
    return status;
}

static tw_status_t temporary_folder(char *folder)
{
    const char *base = getenv("TMPDIR");
    char name[64];
    if (!base || !*base || strlen(base) >= TW_DATA_PATH_BYTES / 2) {
        base = "/tmp";
    }
    snprintf(name, sizeof(name), "thinwire-%u", (unsigned)getuid());
    tw_status_t status = make_folders(base, (const char *const[]){name, NULL}, folder);
    struct stat info;
    TW_FAIL_IF(status == TW_OK &&
                   (lstat(folder, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != getuid()),
               TW_ERR_IO, "%s: belongs to somebody else", folder);
    return status;
}

tw_status_t tw_data_cache_folder(const char *wanted, char *folder)
{
    const size_t longest = TW_DATA_PATH_BYTES / 2;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    TW_FAIL_IF(wanted && strlen(wanted) >= longest, TW_ERR_INVALID,
               "data: the name of the folder of caches is too long: %.60s...", wanted);
    if (wanted && *wanted) {
        return make_folders(wanted, (const char *const[]){NULL}, folder);
    }
    if (cache && *cache && strlen(cache) < longest) {
        return make_folders(cache, (const char *const[]){"thinwire", NULL}, folder);
    }
    if (home && *home && strlen(home) < longest) {
        return make_folders(home, (const char *const[]){".cache", "thinwire", NULL}, folder);
    }
    return temporary_folder(folder);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static tw_status_t open_temporary(tw_data_writer_t *writer)
{
    int fd = mkstemp(writer->temporary);
    if (fd < 0) {
        return tw_input_failed(writer->temporary, "make this file");
    }
    writer->out = fdopen(fd, "w");
    if (!writer->out) {
        tw_status_t status = tw_input_failed(writer->temporary, "write it");
        close(fd);
        unlink(writer->temporary);
        return status;
    }
    return TW_OK;
}

tw_status_t tw_data_writer_open(tw_data_writer_t *writer, const char *path)
{
    *writer = (tw_data_writer_t){0};
    size_t room = sizeof(writer->temporary);
    int length = snprintf(writer->temporary, room, "%s.XXXXXX", path);
    TW_FAIL_IF(length < 0 || (size_t)length >= room, TW_ERR_INVALID, "%s: the name is too long", path);
    memcpy(writer->path, path, strlen(path) + 1);
    return open_temporary(writer);
}

tw_status_t tw_data_writer_close(tw_data_writer_t *writer, tw_status_t status)
{
    int wrong = ferror(writer->out);
    if ((fclose(writer->out) != 0 || wrong) && status == TW_OK) {
        status = tw_input_failed(writer->temporary, "write it");
    }
    if (status == TW_OK && rename(writer->temporary, writer->path) != 0) {
        status = tw_input_failed(writer->path, "give a file this name");
    }
    if (status != TW_OK) {
        unlink(writer->temporary);
    }
    return status;
}
