/* Reads the file and the command line into the options, and records the source of each value. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/config/config.h"
#include "trainer/config/state.h"
#include "trainer/config/table.h"
#include "trainer/input.h"

#define KEY_BYTES 256
#define VALUE_BYTES 4096
#define MAX_NAMES 256
#define MAX_FILE_BYTES (1 << 20)
#define OWN_MARK '?' /* marks a setting of the calling program, which counts as a default */

/* ---- one key ------------------------------------------------------------------------------------------- */

static tw_status_t config_unknown_key(const char *source, const char *key)
{
    const char *names[MAX_NAMES], *nearest;
    size_t n = tw_train_ignored_names(names, MAX_NAMES);
    for (size_t i = 0; i < tw_train_options_table.n_fields && n < MAX_NAMES; i++) {
        names[n++] = tw_train_options_table.fields[i].name;
    }
    nearest = tw_nearest_name(key, names, n);
    return tw_fail(TW_ERR_CONFIG, "%s: unknown key %s%s%s%s", source, key, nearest ? "; did you mean " : "",
                   nearest ? nearest : "", nearest ? "?" : "");
}

/** Return a count as plain digits, since DeepSpeed's files may have 5e8. */
static const char *canonical(const tw_config_field_t *field, const char *text, char buffer[32])
{
    char *end;
    double real = strtod(text, &end);
    int is_plain = *text && strspn(text, "0123456789.eE+") == strlen(text) && *end == '\0';
    if (field->type != TW_CONFIG_INT || !is_plain || real >= 1e15 || real != (double)(long long)real) {
        return text;
    }
    snprintf(buffer, 32, "%lld", (long long)real);
    return buffer;
}

static const char *source_of(const tw_train_config_t *config, int is_file)
{
    return is_file ? config->name : "--set";
}

/** Return 1 if "auto" is one of this key's own values. For other keys it selects the default. */
static int has_auto(const tw_config_field_t *field)
{
    return strcmp(field->dflt, "auto") == 0 || strcmp(field->name, "thinwire.resume") == 0;
}

/** Return a key's name in the table. DeepSpeed's keys of stage 3 may lack the prefix "stage3_", and a section
 *  may stand for its key "enabled" ("bf16": true). */
static const char *table_name(const char *key, char buffer[KEY_BYTES])
{
    static const char zero[] = "zero_optimization.";
    if (tw_train_field_of(key) >= 0 || strlen(key) + strlen("stage3_.enabled") >= KEY_BYTES) {
        return key;
    }
    snprintf(buffer, KEY_BYTES, "%s.enabled", key);
    if (tw_train_field_of(buffer) >= 0) {
        return buffer;
    }
    if (tw_train_ignored_reason(key) || strncmp(key, zero, strlen(zero)) != 0) {
        return key;
    }
    snprintf(buffer, KEY_BYTES, "%sstage3_%s", zero, key + strlen(zero));
    return tw_train_field_of(buffer) >= 0 || tw_train_ignored_reason(buffer) ? buffer : key;
}

static tw_status_t set_key(tw_train_config_t *config, int is_file, const char *name, const char *text)
{
    char now[KEY_BYTES], buffer[32];
    const char *key = table_name(name, now);
    int field = tw_train_field_of(key);
    const char *reason = field < 0 ? tw_train_ignored_reason(key) : NULL;
    if (reason) {
        tw_train_note(config, is_file, key, reason);
        return TW_OK;
    }
    if (field < 0) {
        return config_unknown_key(source_of(config, is_file), key);
    }
    const tw_config_field_t *of = &tw_train_options_table.fields[field];
    if (strcmp(text, "auto") == 0 && !has_auto(of)) {
        tw_train_note(config, is_file, key, NULL);
        config->origins[field] = TW_TRAIN_FROM_AUTO;
        return tw_config_set(&tw_train_options_table, &config->options, key, of->dflt);
    }
    tw_status_t status =
        tw_config_set(&tw_train_options_table, &config->options, key, canonical(of, text, buffer));
    const char *instead = tw_train_instead_of(key, text);
    TW_FAIL_IF(status != TW_OK, status, "%s: this value is refused: %s%s%s", source_of(config, is_file), key,
               instead ? ": " : "", instead ? instead : "");
    config->origins[field] = is_file ? TW_TRAIN_FROM_FILE : TW_TRAIN_FROM_COMMAND;
    return TW_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

typedef struct walk {
    tw_train_config_t *config;
    const char *source;
} walk_t;

static tw_status_t text_of(const walk_t *walk, const char *key, const json_t *value, char text[VALUE_BYTES])
{
    int length = 0;
    switch (json_typeof(value)) {
    case JSON_STRING:
        length = snprintf(text, VALUE_BYTES, "%s", json_string_value(value));
        break;
    case JSON_INTEGER:
        length = snprintf(text, VALUE_BYTES, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        length = snprintf(text, VALUE_BYTES, "%.17g", json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        length = snprintf(text, VALUE_BYTES, "%s", json_is_true(value) ? "y" : "n");
        break;
    default:
        return tw_fail(TW_ERR_CONFIG, "%s: %s: expected a number, a text, true or false", walk->source, key);
    }
    TW_FAIL_IF(length >= VALUE_BYTES, TW_ERR_CONFIG, "%s: %s: longer than %d bytes", walk->source, key,
               VALUE_BYTES - 1);
    return TW_OK;
}

static tw_status_t walk_value(const walk_t *walk, const char *name, const json_t *value);

/** Return 1 if a key is a comment. JSON has no comments, so people write keys like "_comment". */
static int is_comment(const char *name)
{
    return *name == '_' || *name == '#' || strncmp(name, "//", 2) == 0 || strcmp(name, "comment") == 0;
}

static tw_status_t walk_object(const walk_t *walk, const char *path, const json_t *object)
{
    const char *name;
    json_t *value;
    tw_status_t status = TW_OK;
    json_object_foreach((json_t *)object, name, value)
    {
        char key[KEY_BYTES];
        int is_old = !*path && strcmp(name, "bfloat16") == 0; /* DeepSpeed's older name for bf16 */
        TW_FAIL_IF(
            snprintf(key, sizeof(key), "%s%s%s", path, *path ? "." : "", is_old ? "bf16" : name) >= KEY_BYTES,
            TW_ERR_CONFIG, "%s: a key under '%s' is longer than %d bytes", walk->source, path, KEY_BYTES - 1);
        status = is_comment(name) ? TW_OK : walk_value(walk, key, value);
        if (status != TW_OK) {
            break;
        }
    }
    return status;
}

/** Read an array: "betas": [0.9, 0.95] sets betas[0] and betas[1]. */
static tw_status_t walk_array(const walk_t *walk, const char *path, const json_t *array)
{
    tw_status_t status = TW_OK;
    for (size_t i = 0; i < json_array_size(array) && status == TW_OK; i++) {
        char key[KEY_BYTES];
        if (snprintf(key, sizeof(key), "%s[%zu]", path, i) >= KEY_BYTES) {
            return config_unknown_key(walk->source, path);
        }
        status = walk_value(walk, key, json_array_get(array, i));
    }
    return status;
}

/** Return 1 if a key is an array, whose elements have keys: with "betas": "auto" all of them get "auto". */
static int is_array(const char *key)
{
    char first[KEY_BYTES + 4];
    snprintf(first, sizeof(first), "%s[0]", key);
    return tw_train_field_of(first) >= 0;
}

/** Return 1 if `key` is in the table, or is an object with keys of the table. */
static int config_is_known(const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        const char *name = tw_train_options_table.fields[i].name;
        if (strncmp(name, key, length) == 0 &&
            strchr(".[", name[length])) { /* strchr finds the 0 at a name's end, too */
            return 1;
        }
    }
    return 0;
}

static tw_status_t walk_auto(const walk_t *walk, const char *path)
{
    tw_status_t status = TW_OK;
    char key[KEY_BYTES + 8];
    for (int i = 0; status == TW_OK; i++) {
        snprintf(key, sizeof(key), "%s[%d]", path, i);
        if (tw_train_field_of(key) < 0) {
            break;
        }
        status = set_key(walk->config, 1, key, "auto");
    }
    return status;
}

static tw_status_t walk_value(const walk_t *walk, const char *name, const json_t *value)
{
    char text[VALUE_BYTES], now[KEY_BYTES];
    const char *key = json_is_object(value) ? name : table_name(name, now);
    const char *reason = tw_train_field_of(key) < 0 ? tw_train_ignored_reason(key) : NULL;
    if (reason && strcmp(key, "fp16") != 0) {
        tw_train_note(walk->config, 1, key, reason);
        return TW_OK;
    }
    if (json_is_object(value)) {
        return walk_object(walk, key, value);
    }
    if (json_is_array(value)) {
        return walk_array(walk, key, value);
    }
    if (json_is_null(value)) { /* null means that the key is not set */
        return config_is_known(key) ? TW_OK : config_unknown_key(walk->source, key);
    }
    if (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0 && is_array(key)) {
        return walk_auto(walk, key);
    }
    tw_status_t status = text_of(walk, key, value, text);
    return status == TW_OK ? set_key(walk->config, 1, key, text) : status;
}

static tw_status_t set_text(tw_train_config_t *config, const char *name, const char *text, size_t bytes)
{
    static const char mark[] =
        "\xef\xbb\xbf"; /* UTF-8's byte order mark, with which some editors begin a file */
    size_t skip = bytes >= strlen(mark) && memcmp(text, mark, strlen(mark)) == 0 ? strlen(mark) : 0;
    json_error_t error;
    json_t *root = json_loadb(text + skip, bytes - skip, JSON_REJECT_DUPLICATES, &error);
    TW_FAIL_IF(!root, TW_ERR_CONFIG, "%s:%d:%d: %s", name, error.line, error.column, error.text);
    const walk_t walk = {.config = config, .source = name};
    tw_status_t status;
    if (json_is_object(root)) {
        status = walk_object(&walk, "", root);
    } else {
        status = tw_fail(TW_ERR_CONFIG, "%s: expected an object", name);
    }
    json_decref(root);
    return status;
}

static tw_status_t read_file(const char *path, char **text, size_t *bytes)
{
    FILE *file;
    TW_TRY(tw_input_open(path, &file));
    tw_status_t status = TW_OK;
    *text = malloc(MAX_FILE_BYTES);
    *bytes = *text ? fread(*text, 1, MAX_FILE_BYTES, file) : 0;
    if (!*text || ferror(file) || *bytes == MAX_FILE_BYTES) {
        tw_error("%s: cannot be read, or is longer than %d bytes", path, MAX_FILE_BYTES - 1);
        free(*text);
        status = TW_ERR_IO;
    }
    fclose(file);
    return status;
}

/* ---- the command line ---------------------------------------------------------------------------------- */

static tw_status_t set_pair(tw_train_config_t *config, const char *pair)
{
    const char *equals = strchr(pair, '=');
    char key[KEY_BYTES];
    TW_FAIL_IF(!equals || equals == pair || equals - pair >= KEY_BYTES, TW_ERR_CONFIG,
               "--set %s: expected key=value", pair);
    snprintf(key, sizeof(key), "%.*s", (int)(equals - pair), pair);
    if (*key != OWN_MARK) {
        return set_key(config, 0, key, equals + 1);
    }
    int is_said = tw_train_is_said(config, key + 1);
    return is_said ? TW_OK : tw_config_set(&tw_train_options_table, &config->options, key + 1, equals + 1);
}

/* ---- public functions ---------------------------------------------------------------------------------- */

/** Set all defaults. Environment variables are not read: a "train_batch_size" may be another program's. */
static tw_status_t set_defaults(tw_train_config_t *config)
{
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        const tw_config_field_t *field = &tw_train_options_table.fields[i];
        TW_TRY(tw_config_set(&tw_train_options_table, &config->options, field->name, field->dflt));
    }
    return TW_OK;
}

tw_status_t tw_train_config_parse(const char *name, const char *text, size_t text_bytes,
                                  const char *const *sets, size_t n_sets, tw_train_config_t **out)
{
    tw_train_config_t *config = calloc(1, sizeof(*config));
    TW_FAIL_IF(!config, TW_ERR_NO_MEMORY, "%s: out of memory", name);
    config->origins = calloc(tw_train_options_table.n_fields, sizeof(*config->origins));
    config->name = strdup(name);
    tw_status_t status = config->origins && config->name ? set_defaults(config) : TW_ERR_NO_MEMORY;
    if (status == TW_OK && text) {
        status = set_text(config, name, text, text_bytes);
    }
    for (size_t i = 0; i < n_sets && status == TW_OK; i++) {
        status = set_pair(config, sets[i]);
    }
    if (status != TW_OK) {
        tw_train_config_destroy(config);
        return status;
    }
    *out = config;
    return TW_OK;
}

tw_status_t tw_train_config_create(const char *path, const char *const *sets, size_t n_sets,
                                   tw_train_config_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    tw_status_t status = path ? read_file(path, &text, &bytes) : TW_OK;
    if (status != TW_OK) {
        return status;
    }
    status = tw_train_config_parse(path ? path : "defaults", text, bytes, sets, n_sets, out);
    free(text);
    return status;
}

void tw_train_config_destroy(tw_train_config_t *config)
{
    if (!config) {
        return;
    }
    tw_config_cleanup(&tw_train_options_table, &config->options);
    tw_train_notes_cleanup(config);
    free(config->name);
    free(config->origins);
    free(config);
}

const tw_train_options_t *tw_train_config_options(const tw_train_config_t *config)
{
    return &config->options;
}

void tw_train_config_print(const tw_train_config_t *config, FILE *out)
{
    static const char *const origins[] = {"default", "auto", "file", "command line", "follows"};
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        const tw_config_field_t *field = &tw_train_options_table.fields[i];
        char value[VALUE_BYTES];
        tw_config_format(field, &config->options, value, sizeof(value));
        fprintf(out, "%-52s %-16s %-13s %s\n", field->name, *value ? value : "-", origins[config->origins[i]],
                field->doc);
    }
}
