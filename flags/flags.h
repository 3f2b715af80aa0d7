/** Thinwire flags: a program's command line as a table of core's configuration fields, on top of argp.
 *  A wrong value ends the program with exit code 2 and a message that names the flag and what it takes. */
#pragma once

#include <argp.h>
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_flag tw_flag_t;

/** Parse a flag's text and store what it says in `options`; ends the program by argp_error where it
 *  cannot. */
typedef void (*tw_flag_take_t)(struct argp_state *state, const tw_flag_t *flag, void *options,
                               const char *text);

/** One flag. Of the field:
 *  - name: without "--";
 *  - doc: NULL: the flag is left out of --help;
 *  - dflt: what it is without the flag, as text; --help shows it. NULL: `options` keeps what the caller put
 *    there;
 *  - unit: the value's name in --help: N, FILE;
 *  - type and offset: as in a configuration table, but BOOL takes no value and means 1, and STRING stores a
 *    pointer to the text itself (const char *), which nobody frees;
 *  - min, max, choices: as there. */
struct tw_flag {
    tw_config_field_t field;
    /** The same flag as one letter: 'n' for -n. 0: none. */
    char letter;
    /** Flags are listed by group; 0: that of the flag before. */
    char group;
    /** Takes the text in the place of the field's type, the default's too, which comes first. NULL: the type
     *  does. */
    tw_flag_take_t take;
    /** Not 0: the text is a list between commas, of which `take` takes an item at a time, at most so many.
     *  At the field's offset a size_t counts them: those before, while one is taken. */
    size_t most_items;
};

typedef struct tw_flags {
    const tw_flag_t *flags;
    size_t n_flags;
    /** What the program does, "\v", and what follows the flags in --help. */
    const char *doc;
    /** Name of the words after the flags, such as "-- COMMAND [ARG...]"; NULL: there may be none. */
    const char *args_doc;
    /** Takes those words (`n` of them, at least one, NULL-terminated). */
    void (*take_args)(void *options, char **args, int n);
    /** Looks at what depends on several flags, once all are read; NULL: nothing does. Errors as
     *  tw_flag_take_t. */
    void (*check)(struct argp_state *state, void *options);
} tw_flags_t;

/** Stores the flags' defaults, then what the command line says, in `options`. Then goes to the folder that
 *  the user is in, which paths are meant from: `bazel run` starts programs elsewhere. */
void tw_flags_read(const tw_flags_t *flags, int argc, char **argv, void *options);

/** A tw_flag_take_t. A link's rate, a double in bit/s: 1mbit or more, or 0 for none. */
void tw_flag_take_link(struct argp_state *state, const tw_flag_t *flag, void *options, const char *text);
/** For a tw_flag_take_t of a list: calls add(state, flag, options, item) for each item between commas, cut
 *  after 127 characters. */
void tw_flag_each(struct argp_state *state, const tw_flag_t *flag, void *options, const char *list,
                  tw_flag_take_t add);
/** Index of `text` in `names`; ends the program if it is not there, naming the flag and all of them. */
size_t tw_flag_choice(struct argp_state *state, const tw_flag_t *flag, const char *text,
                      const char *const *names, size_t n_names);

/** For a tw_flag_take_t: a whole number, or a size (64K), from min to max. */
int64_t tw_flag_int(struct argp_state *state, const tw_flag_t *flag, const char *text, int64_t min,
                    int64_t max);
size_t tw_flag_bytes(struct argp_state *state, const tw_flag_t *flag, const char *text, size_t min,
                     size_t max);

/** Write as much of `text` as the terminal has columns for over its last line, where the cursor stays: how
 *  far a program is. "" clears it. (A text that went on in the next line would stay there.) Nothing, if `out`
 *  is no terminal. */
void tw_terminal_show(FILE *out, const char *text);

TW_C_END
