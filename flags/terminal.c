/* Writes a line of progress on a terminal, replacing the previous one. */
#include <sys/ioctl.h>
#include <unistd.h>

#include "flags/flags.h"

#define USUAL_COLUMNS 80

void tw_terminal_show(FILE *out, const char *text)
{
    struct winsize size = {0};
    const int fd = fileno(out);
    if (!isatty(fd)) {
        return;
    }
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        size.ws_col = USUAL_COLUMNS;
    }
    /* Leave the last column free: after a character there, terminals begin another line. */
    fprintf(out, "\r%.*s\033[K", size.ws_col - 1, text);
    fflush(out);
}
