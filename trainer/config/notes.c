/* Logs what the user should know about a configuration: keys without effect, and values of "auto". */
#include <stdlib.h>
#include <string.h>

#include "trainer/config/state.h"
#include "trainer/config/table.h"

#define VALUE_BYTES 256

tw_status_t tw_train_refuse(const char *why)
{
    return tw_fail(TW_ERR_CONFIG, "config: %s", why);
}

tw_status_t tw_train_refuse_any(const tw_train_refusal_t *refusals, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (refusals[i].is_wrong) {
            return tw_train_refuse(refusals[i].why);
        }
    }
    return TW_OK;
}

int tw_train_is_said(const tw_train_config_t *config, const char *key)
{
    unsigned char origin = config->origins[tw_train_field_of(key)];
    return origin == TW_TRAIN_FROM_FILE || origin == TW_TRAIN_FROM_COMMAND;
}

void tw_train_note(tw_train_config_t *config, int is_file, const char *key, const char *reason)
{
    tw_train_note_t *notes = realloc(config->notes, (config->n_notes + 1) * sizeof(*notes));
    if (!notes) {
        return;
    }
    config->notes = notes;
    notes[config->n_notes] = (tw_train_note_t){.key = strdup(key), .reason = reason, .is_file = is_file};
    config->n_notes += notes[config->n_notes].key != NULL;
}

void tw_train_note_key(tw_train_config_t *config, const char *key, const char *reason)
{
    if (tw_train_is_said(config, key)) {
        tw_train_note(config, config->origins[tw_train_field_of(key)] == TW_TRAIN_FROM_FILE, key, reason);
    }
}

void tw_train_note_follows(tw_train_config_t *config, const void *member)
{
    size_t offset = (size_t)((const char *)member - (const char *)&config->options);
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        if (tw_train_options_table.fields[i].offset == offset) {
            config->origins[i] = TW_TRAIN_FOLLOWS;
        }
    }
}

void tw_train_notes_cleanup(tw_train_config_t *config)
{
    for (size_t i = 0; i < config->n_notes; i++) {
        free(config->notes[i].key);
    }
    free(config->notes);
}

/** Return 1 if two notes share a line, because they have the same reason. */
static int is_alike(const tw_train_note_t *a, const tw_train_note_t *b)
{
    return a->is_file == b->is_file && a->reason == b->reason;
}

static void write_key(const tw_train_config_t *config, const tw_train_note_t *note, FILE *out)
{
    char value[VALUE_BYTES];
    fputs(note->key, out);
    if (!note->reason) {
        const tw_config_field_t *field = &tw_train_options_table.fields[tw_train_field_of(note->key)];
        tw_config_format(field, &config->options, value, sizeof(value));
        fprintf(out, " %s", value);
    }
}

/** Write the keys of note `first` and of later notes with the same reason. Returns the number of keys. */
static size_t write_keys(const tw_train_config_t *config, size_t first, FILE *out)
{
    size_t n = 0;
    for (size_t i = first; i < config->n_notes; i++) {
        if (is_alike(&config->notes[i], &config->notes[first])) {
            fputs(n++ > 0 ? ", " : "", out);
            write_key(config, &config->notes[i], out);
        }
    }
    return n;
}

static void say(const tw_train_config_t *config, size_t first)
{
    const tw_train_note_t *note = &config->notes[first];
    const char *source = note->is_file ? config->name : "--set";
    char *keys = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&keys, &bytes);
    size_t n = out ? write_keys(config, first, out) : 0;
    if (!out || fclose(out) != 0) {
        tw_warn("out of memory for what there is to say of %s", source);
    } else if (note->reason) {
        tw_warn("%s: %s %s nothing here: %s", source, keys, n > 1 ? "mean" : "means", note->reason);
    } else {
        tw_warn("%s: auto comes to %s; --print-config says what that means", source, keys);
    }
    free(keys);
}

void tw_train_config_say(const tw_train_config_t *config)
{
    for (size_t i = 0; i < config->n_notes; i++) {
        size_t first = 0;
        while (!is_alike(&config->notes[first], &config->notes[i])) {
            first++;
        }
        if (first == i) {
            say(config, i);
        }
    }
}
