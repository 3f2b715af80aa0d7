/* Keeps facts as lines of text. */
#include "trainer/lines.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void lines_append(tw_lines_t *lines, const char *name, const char *value)
{
    size_t more = strlen(name) + strlen(value) + 2;
    char *longer = realloc(lines->text, lines->bytes + more + 1);
    if (!longer) {
        lines->failed = 1;
        return;
    }
    lines->text = longer;
    lines->bytes += (size_t)snprintf(longer + lines->bytes, more + 1, "%s=%s\n", name, value);
}

void tw_lines_add(tw_lines_t *lines, const char *name, const char *format, ...)
{
    char value[TW_LINES_VALUE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    for (char *at = value; (at = strchr(at, '\n'));) {
        *at = ' ';
    }
    lines_append(lines, name, value);
}

void tw_lines_cleanup(tw_lines_t *lines)
{
    free(lines->text);
    *lines = (tw_lines_t){0};
}

int tw_lines_next(const char **at, tw_line_t *line)
{
    const char *end = *at ? strchr(*at, '\n') : NULL, *equals = end ? strchr(*at, '=') : NULL;
    if (!equals || equals > end) {
        return 0;
    }
    snprintf(line->name, sizeof(line->name), "%.*s", (int)(equals - *at), *at);
    snprintf(line->value, sizeof(line->value), "%.*s", (int)(end - equals - 1), equals + 1);
    *at = end + 1;
    return 1;
}

int tw_lines_find(const char *text, const char *name, char *value)
{
    tw_line_t line;
    while (tw_lines_next(&text, &line)) {
        if (strcmp(line.name, name) == 0) {
            memcpy(value, line.value, sizeof(line.value));
            return 1;
        }
    }
    return 0;
}
