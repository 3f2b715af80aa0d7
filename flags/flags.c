#include "flags/flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "core/core.h"

/* Input of argp's parser: the table of flags, and the options to fill in. */
typedef struct reader {
    const tw_flags_t *flags;
    void *options;
} reader_t;

/* argp's keys of flags without a letter: FIRST_KEY + the flag's index. */
#define FIRST_KEY 256

/* ---- one value ----------------------------------------------------------------------------------------- */

static void store_switch(const tw_flag_t *flag, void *options)
{
    const int yes = 1;
    memcpy((char *)options + flag->field.offset, &yes, sizeof(yes));
}

static void take_item(struct argp_state *state, const tw_flag_t *flag, void *options, const char *item)
{
    size_t *n = (void *)((char *)options + flag->field.offset);
    if (*n == flag->most_items) {
        argp_error(state, "--%s: more than %zu", flag->field.name, flag->most_items);
    }
    flag->take(state, flag, options, item);
    ++*n;
}

static void flags_take(struct argp_state *state, const tw_flag_t *flag, void *options, const char *text)
{
    char allowed[512];
    if (flag->most_items > 0) {
        memset((char *)options + flag->field.offset, 0, sizeof(size_t));
        tw_flag_each(state, flag, options, text, take_item);
    } else if (flag->take) {
        flag->take(state, flag, options, text);
    } else if (flag->field.type == TW_CONFIG_STRING) {
        memcpy((char *)options + flag->field.offset, &text, sizeof(text));
    } else if (tw_config_parse(&flag->field, options, text) != TW_OK) {
        argp_error(state, "--%s: '%s' is not %s", flag->field.name, text,
                   tw_config_describe(&flag->field, allowed, sizeof(allowed)));
    }
}

void tw_flag_take_link(struct argp_state *state, const tw_flag_t *flag, void *options, const char *text)
{
    double bps = 0;
    if (tw_cluster_parse_link(text, &bps) != TW_OK) {
        argp_error(state, "--%s: '%s' is not a rate from 1mbit on, such as 1gbit or 100mbit, or none",
                   flag->field.name, text);
    }
    memcpy((char *)options + flag->field.offset, &bps, sizeof(bps));
}

void tw_flag_each(struct argp_state *state, const tw_flag_t *flag, void *options, const char *list,
                  tw_flag_take_t add)
{
    char item[128];
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        snprintf(item, sizeof(item), "%.*s", (int)strcspn(at, ","), at);
        add(state, flag, options, item);
    }
}

size_t tw_flag_choice(struct argp_state *state, const tw_flag_t *flag, const char *text,
                      const char *const *names, size_t n_names)
{
    char known[512] = "";
    for (size_t i = 0; i < n_names; i++) {
        if (tw_word_is(text, names[i])) {
            return i;
        }
        snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i > 0 ? ", " : "", names[i]);
    }
    argp_error(state, "--%s: '%s' is not one of %s", flag->field.name, text, known);
    return 0;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static int flags_key_of(const tw_flags_t *flags, size_t i)
{
    return flags->flags[i].letter ? flags->flags[i].letter : FIRST_KEY + (int)i;
}

static void store_defaults(struct argp_state *state, const reader_t *reader)
{
    for (size_t i = 0; i < reader->flags->n_flags; i++) {
        const tw_flag_t *flag = &reader->flags->flags[i];
        if (flag->field.dflt && flag->field.type != TW_CONFIG_BOOL) {
            flags_take(state, flag, reader->options, flag->field.dflt);
        }
    }
}

static error_t on_args(struct argp_state *state, const reader_t *reader)
{
    if (!reader->flags->take_args) {
        argp_error(state, "what is '%s'?", state->argv[state->next]);
    } else {
        reader->flags->take_args(reader->options, &state->argv[state->next], state->argc - state->next);
    }
    return 0;
}

static error_t on_option(int key, char *text, struct argp_state *state)
{
    const reader_t *reader = state->input;
    const tw_flags_t *flags = reader->flags;
    switch (key) {
    case ARGP_KEY_INIT:
        store_defaults(state, reader);
        return 0;
    case ARGP_KEY_ARGS:
        return on_args(state, reader);
    case ARGP_KEY_NO_ARGS:
        if (flags->args_doc) {
            argp_error(state, "%s is missing", flags->args_doc);
        }
        return 0;
    case ARGP_KEY_END:
        if (flags->check) {
            flags->check(state, reader->options);
        }
        return 0;
    default:
        break;
    }
    for (size_t i = 0; i < flags->n_flags; i++) {
        if (key != flags_key_of(flags, i)) {
            continue;
        }
        if (flags->flags[i].field.type == TW_CONFIG_BOOL && !flags->flags[i].take) {
            store_switch(&flags->flags[i], reader->options);
        } else {
            flags_take(state, &flags->flags[i], reader->options, text);
        }
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static void flags_no_memory(void)
{
    (void)fprintf(stderr, "out of memory for the command line\n");
    exit(1);
}

/** Return a flag's text for --help, such as "Nodes (default: 2)"; the caller frees it. */
static char *doc_of(const tw_config_field_t *field)
{
    char *doc = NULL;
    int n = field->doc && field->dflt ? asprintf(&doc, "%s (default: %s)", field->doc, field->dflt)
                                      : asprintf(&doc, "%s", field->doc ? field->doc : "");
    if (n < 0) {
        flags_no_memory();
    }
    return doc;
}

/** Make argp's table of options from the flags, with an empty row at its end. */
static struct argp_option *make_options(const tw_flags_t *flags)
{
    struct argp_option *options = calloc(flags->n_flags + 1, sizeof(*options));
    if (!options) {
        flags_no_memory();
    }
    for (size_t i = 0; i < flags->n_flags; i++) {
        const tw_flag_t *flag = &flags->flags[i];
        options[i] = (struct argp_option){.name = flag->field.name,
                                          .key = flags_key_of(flags, i),
                                          .arg = flag->field.type == TW_CONFIG_BOOL ? NULL : flag->field.unit,
                                          .flags = flag->field.doc ? 0 : OPTION_HIDDEN,
                                          .doc = doc_of(&flag->field),
                                          .group = flag->group};
    }
    return options;
}

void tw_flags_read(const tw_flags_t *flags, int argc, char **argv, void *options)
{
    struct argp_option *list = make_options(flags);
    reader_t reader = {.flags = flags, .options = options};
    const struct argp argp = {
        .options = list, .parser = on_option, .args_doc = flags->args_doc, .doc = flags->doc};
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, flags->args_doc ? ARGP_IN_ORDER : 0, NULL, &reader);
    const char *folder = getenv("BUILD_WORKING_DIRECTORY");
    if (folder && chdir(folder) != 0) {
        tw_warn("%s: %s", folder, strerror(errno));
    }
    for (size_t i = 0; i < flags->n_flags; i++) {
        free((char *)list[i].doc);
    }
    free(list);
}
