/** Private to trainer: facts of a run as lines of text, each "NAME=VALUE". Ranks compare them, and
 *  checkpoints store them. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_LINES_NAME_BYTES 256
#define TW_LINES_VALUE_BYTES 4096

/** A list of lines. A zeroed struct has none. */
typedef struct tw_lines {
    char *text; /**< NUL-terminated; NULL: no lines */
    size_t bytes;
    int failed; /**< 1: memory ran out, and lines are missing */
} tw_lines_t;

/** Add a line. A newline in the value becomes a blank. Values are cut to TW_LINES_VALUE_BYTES - 1 bytes. */
void tw_lines_add(tw_lines_t *lines, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void tw_lines_cleanup(tw_lines_t *lines);

/** A line, split into name and value. */
typedef struct tw_line {
    char name[TW_LINES_NAME_BYTES], value[TW_LINES_VALUE_BYTES];
} tw_line_t;

/** Get the line at *at, and move *at to the next line. Returns 0 if there is none. */
int tw_lines_next(const char **at, tw_line_t *line);
/** Get the value of a name into value [TW_LINES_VALUE_BYTES]. Returns 0 if no line has this name. */
int tw_lines_find(const char *text, const char *name, char *value);

TW_C_END
