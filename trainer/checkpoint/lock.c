/* Ensures that only one job at a time uses a folder of checkpoints. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/input.h"

#define NAME "lock" /* has a line that names the owner; the kernel drops the lock when the owner ends */
#define TRIES 50
#define TRY_US 100000 /* time between tries, since the job that has the lock may be about to end */

/** Try to take the lock for up to TRIES * TRY_US. Returns 0 if this process has it. */
static int lock_take(FILE *file)
{
    int code = flock(fileno(file), LOCK_EX | LOCK_NB);
    for (int i = 1; i < TRIES && code != 0 && errno == EWOULDBLOCK; i++) {
        usleep(TRY_US);
        code = flock(fileno(file), LOCK_EX | LOCK_NB);
    }
    return code;
}

void tw_checkpoint_lock_sign(FILE *file, uint64_t id)
{
    char host[256] = "";
    time_t now = time(NULL);
    struct tm utc = {0};
    (void)gethostname(host, sizeof(host) - 1);
    (void)gmtime_r(&now, &utc);
    (void)ftruncate(fileno(file), 0);
    (void)fprintf(file, "run %016" PRIx64 ", process %d on %s, since %04d-%02d-%02d %02d:%02d UTC\n", id,
                  (int)getpid(), host, utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                  utc.tm_min);
    (void)fflush(file); /* the lock holds even if this is not written */
}

static tw_status_t taken(const char *folder, FILE *file)
{
    char owner[512] = "";
    rewind(file);
    if (fgets(owner, sizeof(owner), file)) {
        owner[strcspn(owner, "\n")] = '\0';
    }
    return tw_fail(
        TW_ERR_INVALID,
        "%s: another job writes its checkpoints there (%s): end that one, or give this one a folder of "
        "its own",
        folder, *owner ? owner : "it does not say which");
}

tw_status_t tw_checkpoint_lock(const char *folder, uint64_t id, FILE **lock)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_path(path, "%s/%s", folder, NAME));
    FILE *file = fopen(path, "a+e");
    if (!file) {
        return tw_input_failed(path, "open it");
    }
    if (lock_take(file) == 0) {
        tw_checkpoint_lock_sign(file, id);
    } else if (errno == EWOULDBLOCK) {
        tw_status_t status = taken(folder, file);
        fclose(file);
        return status;
    } else {
        tw_warn("%s: cannot lock it (%s): nothing keeps another job out of this folder", path,
                strerror(errno));
    }
    *lock = file;
    return TW_OK;
}
