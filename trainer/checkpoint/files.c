/* Names, makes and removes folders and files of checkpoints. */
#include "trainer/checkpoint/files.h"
#include "trainer/input.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#define UNFINISHED ".tmp"
#define READ_BYTES ((size_t)1 << 20)

tw_status_t tw_checkpoint_path(char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(path, TW_CHECKPOINT_PATH_BYTES, format, args);
    va_end(args);
    TW_FAIL_IF(length < 0 || length >= TW_CHECKPOINT_PATH_BYTES, TW_ERR_INVALID,
               "checkpoint: the path %.60s... is too long", path);
    return TW_OK;
}

void tw_checkpoint_step_name(uint64_t step, char *name)
{
    snprintf(name, 32, "step-%08" PRIu64, step);
}

void tw_checkpoint_shard_name(int rank, char *name)
{
    snprintf(name, 32, "shard-%05d.safetensors", rank);
}

tw_status_t tw_checkpoint_make_folder(const char *path)
{
    char above[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_path(above, "%s", path));
    for (char *slash = strchr(above + (*above == '/'), '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(above, 0777); /* if this fails, so does making the folder inside it */
        *slash = '/';
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST ? TW_OK : tw_input_failed(path, "make this folder");
}

tw_status_t tw_checkpoint_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return tw_input_failed(path, "open it");
    }
    tw_status_t status = fsync(fd) == 0 ? TW_OK : tw_input_failed(path, "bring its names to the disk");
    close(fd);
    return status;
}

static tw_status_t remove_files(const char *path, DIR *folder)
{
    const struct dirent *entry;
    while ((entry = readdir(folder))) {
        int is_dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!is_dots && unlinkat(dirfd(folder), entry->d_name, 0) != 0) {
            return tw_input_failed(path, "remove what is in it");
        }
    }
    return TW_OK;
}

tw_status_t tw_checkpoint_remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) {
        return errno == ENOENT ? TW_OK : tw_input_failed(path, "open it");
    }
    tw_status_t status = remove_files(path, folder);
    closedir(folder);
    if (status == TW_OK && rmdir(path) != 0) {
        status = tw_input_failed(path, "remove it");
    }
    return status;
}

/** Return 1 if `name` is a step's folder: a complete one, or, if `unfinished` is set, an incomplete one. */
static int parse_step(const char *name, int unfinished, uint64_t *step)
{
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') {
        return 0;
    }
    char *end, same[32];
    *step = strtoull(name + 5, &end, 10);
    tw_checkpoint_step_name(*step, same);
    return strncmp(name, same, strlen(same)) == 0 && strcmp(end, unfinished ? UNFINISHED : "") == 0;
}

static int compare_steps(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static tw_status_t list_steps(DIR *folder, int unfinished, uint64_t **steps, size_t *n_steps)
{
    const struct dirent *entry;
    uint64_t step;
    while ((entry = readdir(folder))) {
        if (!parse_step(entry->d_name, unfinished, &step)) {
            continue;
        }
        uint64_t *longer = realloc(*steps, (*n_steps + 1) * sizeof(*longer));
        TW_FAIL_IF(!longer, TW_ERR_NO_MEMORY, "checkpoint: out of memory");
        *steps = longer;
        longer[(*n_steps)++] = step;
    }
    return TW_OK;
}

tw_status_t tw_checkpoint_steps(const char *path, int unfinished, uint64_t **steps, size_t *n_steps)
{
    *steps = NULL;
    *n_steps = 0;
    DIR *folder = opendir(path);
    if (!folder) {
        return errno == ENOENT ? TW_ERR_NOT_FOUND : tw_input_failed(path, "open it");
    }
    tw_status_t status = list_steps(folder, unfinished, steps, n_steps);
    closedir(folder);
    if (*n_steps > 1) {
        qsort(*steps, *n_steps, sizeof(**steps), compare_steps);
    }
    return status;
}

static tw_status_t checksum_of(const char *path, FILE *file, XXH3_state_t *state, uint64_t *checksum,
                               uint64_t *bytes)
{
    char *buffer = malloc(READ_BYTES);
    TW_FAIL_IF(!buffer, TW_ERR_NO_MEMORY, "%s: out of memory for its checksum", path);
    size_t n;
    *bytes = 0;
    XXH3_64bits_reset(state);
    while ((n = fread(buffer, 1, READ_BYTES, file)) > 0) {
        XXH3_64bits_update(state, buffer, n);
        *bytes += n;
    }
    free(buffer);
    *checksum = XXH3_64bits_digest(state);
    return ferror(file) ? tw_input_failed(path, "read it") : TW_OK;
}

tw_status_t tw_checkpoint_checksum(const char *path, uint64_t *checksum, uint64_t *bytes)
{
    FILE *file = fopen(path, "rbe");
    if (!file) {
        return tw_input_failed(path, "open it");
    }
    XXH3_state_t *state = XXH3_createState();
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (state) {
        status = checksum_of(path, file, state, checksum, bytes);
    } else {
        tw_error("%s: out of memory for its checksum", path);
    }
    XXH3_freeState(state);
    fclose(file);
    return status;
}
