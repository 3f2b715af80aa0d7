/* Files that many processes read. */
#include "trainer/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tw_status_t tw_input_failed(const char *path, const char *what)
{
    int error = errno;
    tw_error("%s: cannot %s: %s", path, what, strerror(error));
    return tw_status_from_errno(error);
}

tw_status_t tw_input_open(const char *path, FILE **file)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for a writer */
    struct stat info;
    if (fd >= 0 && fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
        close(fd);
        tw_error("%s: not a regular file", path);
        return TW_ERR_INVALID;
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
