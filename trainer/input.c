/* Opens input files, logs their errors, and finds this process's cgroup. */
#include "trainer/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/line.h"

tw_status_t tw_input_failed(const char *path, const char *what)
{
    int error = errno;
    tw_error("%s: cannot %s: %s", path, what, strerror(error));
    return tw_status_from_errno(error);
}

tw_status_t tw_input_open(const char *path, FILE **file)
{
    /* non-blocking: opening a FIFO would wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd >= 0 && fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
        close(fd);
        return tw_fail(TW_ERR_INVALID, "%s: not a regular file", path);
    }
    *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!*file) {
        tw_status_t status = tw_input_failed(path, "open");
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    return TW_OK;
}

int tw_input_group(const char *proc, char *group, size_t n)
{
    char path[4096], line[4096];
    snprintf(path, sizeof(path), "%s/self/cgroup", proc);
    int found = tw_line_read(path, "0::", line, sizeof(line)) && !strstr(line, "..");
    snprintf(group, n, "%s", found ? line + 3 : "");
    return found;
}
