#include "bench/timing.h"

#include <errno.h>
#include <string.h>
#include <time.h>

double bench_thread_sec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static tw_status_t fail(const char *path)
{
    tw_error("bench: %s: %s", path, strerror(errno));
    return TW_ERR_IO;
}

tw_status_t bench_json_open(const char *path, FILE **json)
{
    *json = path ? fopen(path, "we") : NULL;
    return path && !*json ? fail(path) : TW_OK;
}

tw_status_t bench_json_close(const char *path, FILE *json, tw_status_t status)
{
    return json && fclose(json) != 0 ? fail(path) : status;
}
