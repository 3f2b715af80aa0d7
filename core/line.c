#include "core/line.h"

#include <string.h>

int tw_line_read(const char *path, const char *begins, char *line, size_t n)
{
    FILE *file = fopen(path, "re");
    int found = 0;
    while (file && !found && fgets(line, (int)n, file)) {
        int last = strchr(line, '\n') ? '\n' : '\0';
        while (last != '\n' && last != EOF) { /* the rest of a line that is longer than the buffer */
            last = getc(file);
        }
        line[strcspn(line, "\n")] = '\0';
        found = strncmp(line, begins, strlen(begins)) == 0;
    }
    if (!found) {
        line[0] = '\0';
    }
    if (file) {
        fclose(file);
    }
    return found;
}
