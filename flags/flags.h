/** Thinwire flags: a program's command line as a table of core's configuration fields, on top of argp.
 *  A wrong value ends the program with exit code 2 and a message that names the flag and what it takes. */
#pragma once

#include <argp.h>
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_flag tw_flag_t;

/** Parse a flag's text and store what it says in `options`; ends the program by argp_error if it is wrong. */
typedef void (*tw_flag_take_t)(struct argp_state *state, const tw_flag_t *flag, void *options,
                               const char *text);

/** One flag. Its field has:
 *  - name: without "--";
 *  - doc: its text in --help; NULL: the flag is not listed there;
 *  - dflt: the default as text, which --help shows; NULL: `options` keeps what the caller put there;
 *  - unit: the value's name in --help: N, FILE;
 *  - type and offset: as in a configuration table, but BOOL takes no value and means 1, and STRING stores a
 *    pointer to the text itself (const char *), which nobody frees;
 *  - min, max, choices: as there. */
struct tw_flag {
    tw_config_field_t field;
    /** The flag's short form: 'n' for -n; 0: none. */
    char letter;
    /** Group in which --help lists the flag; 0: that of the flag before. */
    char group;
    /** Parses the flag's text, and before it the default's; NULL: the field's type says how. */
    tw_flag_take_t take;
    /** Not 0: the text is a list between commas, of which `take` takes an item at a time, at most so many.
     *  At the field's offset a size_t counts them: those before, while one is taken. */
    size_t most_items;
};

typedef struct tw_flags {
    const tw_flag_t *flags;
    size_t n_flags;
    /** Text of --help: what the program does, "\v", and what follows the flags. */
    const char *doc;
    /** Name of the words after the flags, such as "-- COMMAND [ARG...]"; NULL: there may be none. */
    const char *args_doc;
    /** Takes those `n` words, at least one, NULL-terminated. */
    void (*take_args)(void *options, char **args, int n);
    /** Checks what depends on several flags, once all are read; NULL: nothing does. Ends the program as
     *  tw_flag_take_t. */
    void (*check)(struct argp_state *state, void *options);
} tw_flags_t;

/** Stores the flags' defaults, then what the command line says, in `options`. Then changes to the user's
 *  folder, which relative paths start from: `bazel run` starts programs elsewhere. */
void tw_flags_read(const tw_flags_t *flags, int argc, char **argv, void *options);

/** A tw_flag_take_t for a link's rate, a double in bit/s: 1mbit or more; 0: not shaped. */
void tw_flag_take_link(struct argp_state *state, const tw_flag_t *flag, void *options, const char *text);
/** For a tw_flag_take_t of a list: call add(state, flag, options, item) for each item between commas, cut
 *  after 127 characters. */
void tw_flag_each(struct argp_state *state, const tw_flag_t *flag, void *options, const char *list,
                  tw_flag_take_t add);
/** Return the index of `text` in `names`; end the program if it is none, naming the flag and all names. */
size_t tw_flag_choice(struct argp_state *state, const tw_flag_t *flag, const char *text,
                      const char *const *names, size_t n_names);

/** Show how far a program is: write `text` over the terminal's last line, where the cursor stays. "" clears
 *  the line. The text is cut to the terminal's columns, as what runs on to a second line would stay there.
 *  Does nothing if `out` is no terminal. */
void tw_terminal_show(FILE *out, const char *text);

TW_C_END
