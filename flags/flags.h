/** Thinwire flags: a program's command line as a table of core's configuration fields, on top of argp.
 *  A wrong value ends the program with exit code 2 and a message that names the flag and what it takes. */
#pragma once

#include <argp.h>
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_flag tw_flag_t;

/** Parse a flag's text and store its value in `options`. Ends the program if it is wrong (argp_error). */
typedef void (*tw_flag_take_t)(struct argp_state *state, const tw_flag_t *flag, void *options,
                               const char *text);

/** One flag. Members of `field` mean:
 *  - name: the flag's name without "--";
 *  - doc: its text in --help; NULL: the flag is not listed there;
 *  - dflt: the default as text, which --help shows; NULL: `options` keeps what the caller put there;
 *  - unit: what --help calls the value: N, FILE;
 *  - type and offset: as in a configuration table, but a BOOL flag takes no value and stores 1, and a
 *    STRING flag stores a pointer to the text itself (const char *), which nobody frees;
 *  - min, max, choices: as in a configuration table. */
struct tw_flag {
    tw_config_field_t field;
    /** The flag's short form: 'n' for -n; 0: none. */
    char letter;
    /** Group in which --help lists the flag; 0: the previous flag's group. */
    char group;
    /** Parses the default's text, then the command line's text; NULL: parse as field.type says. */
    tw_flag_take_t take;
    /** Not 0: the flag's text is a list of at most this many items, separated by commas. `take` is then
     *  called once for each item. At field.offset stands a size_t, the number of items taken before. */
    size_t most_items;
};

typedef struct tw_flags {
    const tw_flag_t *flags;
    size_t n_flags;
    /** Text of --help in argp's form: what the program does, "\v", and what --help prints after the flags. */
    const char *doc;
    /** Name of the words after the flags, such as "-- COMMAND [ARG...]"; NULL: such words are an error. */
    const char *args_doc;
    /** Takes the words after the flags: `n` >= 1 of them, NULL-terminated. */
    void (*take_args)(void *options, char **args, int n);
    /** Checks values that depend on several flags, once all are read. If they are wrong, it ends the program
     *  with argp_error. NULL: nothing to check. */
    void (*check)(struct argp_state *state, void *options);
} tw_flags_t;

/** Store the flags' defaults, then the values from the command line, in `options`. Then change to the user's
 *  directory: `bazel run` starts programs elsewhere, but relative paths are the user's. */
void tw_flags_read(const tw_flags_t *flags, int argc, char **argv, void *options);

/** A tw_flag_take_t for a link's rate: at least 1mbit, or none. Stores a double in bit/s; 0: not shaped. */
void tw_flag_take_link(struct argp_state *state, const tw_flag_t *flag, void *options, const char *text);
/** Helper for a tw_flag_take_t that parses a list: call add(state, flag, options, item) for each item between
 *  commas. An item longer than 127 characters is cut. */
void tw_flag_each(struct argp_state *state, const tw_flag_t *flag, void *options, const char *list,
                  tw_flag_take_t add);
/** Return the index of `text` in `names`. If it is not there, end the program; the error lists all names. */
size_t tw_flag_choice(struct argp_state *state, const tw_flag_t *flag, const char *text,
                      const char *const *names, size_t n_names);

/** Show a program's progress: replace the terminal's last line by `text` and leave the cursor there. ""
 *  clears the line. The text is cut to the terminal's width, because a second line could not be replaced
 *  later. Does nothing if `out` is no terminal. */
void tw_terminal_show(FILE *out, const char *text);

TW_C_END
