/* Configuration tables: fill an options struct from the environment, a name and a value, or a list. */
#include "core/config_value.h"

#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\n"
#define NAME_BYTES 128

tw_status_t tw_config_parse(const tw_config_field_t *field, void *options, const char *text)
{
    tw_config_value_t value;
    TW_TRY(tw_config_value_parse(field, text, &value));
    if (!tw_config_value_in_range(field, &value)) {
        return TW_ERR_INVALID; /* nothing to free: strings have no range */
    }
    tw_config_value_store(field, options, &value);
    return TW_OK;
}

/** Parse, check and store one value. Logs what is wrong, with `source` before the name. */
static tw_status_t set_field(const tw_config_field_t *field, void *options, const char *source,
                             const char *text)
{
    char allowed[512];
    tw_status_t status = tw_config_parse(field, options, text);
    TW_FAIL_IF(status == TW_ERR_NO_MEMORY, status, "config: out of memory for %s%s", source, field->name);
    TW_FAIL_IF(status != TW_OK, TW_ERR_CONFIG, "config: %s%s=%s: expected %s", source, field->name,
               text ? text : "(null)", tw_config_describe(field, allowed, sizeof(allowed)));
    return TW_OK;
}

tw_status_t tw_config_init(const tw_config_table_t *table, void *options)
{
    tw_status_t status = TW_OK;
    memset(options, 0, table->options_bytes);
    for (size_t i = 0; i < table->n_fields && status == TW_OK; i++) {
        const tw_config_field_t *field = &table->fields[i];
        const char *text = getenv(field->name);

        if (text) {
            status = set_field(field, options, "", text);
        } else {
            status = set_field(field, options, "default of ", field->dflt);
        }
    }
    if (status != TW_OK) {
        tw_config_cleanup(table, options);
    }
    return status;
}

static const tw_config_field_t *find_field(const tw_config_table_t *table, const char *name)
{
    for (size_t i = 0; i < table->n_fields; i++) {
        if (strcmp(table->fields[i].name, name) == 0) {
            return &table->fields[i];
        }
    }
    return NULL;
}

tw_status_t tw_config_set(const tw_config_table_t *table, void *options, const char *name, const char *value)
{
    const tw_config_field_t *field = find_field(table, name);
    return field ? set_field(field, options, "", value) : TW_ERR_NOT_FOUND;
}

/* ---- lists: "section:key=value,key=value;section:key=value" -------------------------------------------- */

typedef struct list {
    const tw_config_table_t *table;
    void *options;
    const char *source;
} list_t;

/** Cut `text` at the first `mark`. Returns the text after the mark, or NULL if there is no mark. */
static char *cut(char *text, char mark)
{
    char *at = strchr(text, mark);
    if (!at) {
        return NULL;
    }
    *at = '\0';
    return at + 1;
}

static char *trim(char *text)
{
    char *end;
    text += strspn(text, BLANKS);
    for (end = text + strlen(text); end > text && strchr(BLANKS, end[-1]); end--) {
    }
    *end = '\0';
    return text;
}

static tw_status_t bad_form(const list_t *list, const char *text)
{
    return tw_fail(TW_ERR_CONFIG, "config: %s: '%s' is not of the form section:key=value,key=value",
                   list->source, text);
}

static tw_status_t config_unknown_key(const list_t *list, const char *name)
{
    size_t n = list->table->n_fields;
    const char *names[n + 1], *nearest;
    for (size_t i = 0; i < n; i++) {
        names[i] = list->table->fields[i].name;
    }
    nearest = tw_nearest_name(name, names, n);
    return tw_fail(TW_ERR_CONFIG, "config: %s: unknown key %s%s%s%s", list->source, name,
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static tw_status_t set_pair(const list_t *list, const char *section, char *pair)
{
    char name[NAME_BYTES], source[NAME_BYTES];
    char *value = cut(pair, '=');
    if (!value) {
        return bad_form(list, pair);
    }
    snprintf(name, sizeof(name), "%s:%s", section, trim(pair));
    snprintf(source, sizeof(source), "%s: ", list->source);
    const tw_config_field_t *field = find_field(list->table, name);
    return field ? set_field(field, list->options, source, trim(value)) : config_unknown_key(list, name);
}

static tw_status_t set_section(const list_t *list, char *section)
{
    char *pair = cut(section, ':');
    section = trim(section);
    if (!pair) {
        return *section != '\0' ? bad_form(list, section) : TW_OK;
    }
    for (char *next; pair; pair = next) {
        next = cut(pair, ',');
        TW_TRY(set_pair(list, section, pair));
    }
    return TW_OK;
}

tw_status_t tw_config_set_list(const tw_config_table_t *table, void *options, const char *source,
                               const char *text)
{
    const list_t list = {.table = table, .options = options, .source = source};
    char *copy = strdup(text);
    tw_status_t status = TW_OK;
    TW_FAIL_IF(!copy, TW_ERR_NO_MEMORY, "config: out of memory for %s", source);
    for (char *section = copy, *next; section && status == TW_OK; section = next) {
        next = cut(section, ';');
        status = set_section(&list, section);
    }
    free(copy);
    return status;
}

void tw_config_cleanup(const tw_config_table_t *table, void *options)
{
    for (size_t i = 0; i < table->n_fields; i++) {
        const tw_config_value_t none = {.string = NULL};

        if (tw_config_is_string(&table->fields[i])) {
            tw_config_value_store(&table->fields[i], options, &none);
        }
    }
}
