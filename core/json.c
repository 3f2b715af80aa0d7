#include "core/core.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* With 17 digits every double is read back as the same number. */
#define JSON_FLAGS (JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17))

struct tw_json {
    json_t *object;
    tw_status_t status; /* the first failure */
};

tw_json_t *tw_json_create(void)
{
    tw_json_t *json = calloc(1, sizeof(*json));
    if (!json) {
        return NULL;
    }
    json->object = json_object();
    if (!json->object) {
        free(json);
        return NULL;
    }
    return json;
}

void tw_json_destroy(tw_json_t *json)
{
    if (!json) {
        return;
    }
    json_decref(json->object);
    free(json);
}

/** Add `value`, which this call takes over. If it is NULL, `failure` is the error. */
static void add_value(tw_json_t *json, const char *key, json_t *value, tw_status_t failure)
{
    if (!json) {
        json_decref(value);
        return;
    }
    if (json_object_set_new(json->object, key, value) != 0 && json->status == TW_OK) {
        json->status = failure;
    }
}

void tw_json_add_int(tw_json_t *json, const char *key, int64_t value)
{
    add_value(json, key, json_integer(value), TW_ERR_NO_MEMORY);
}

void tw_json_add_double(tw_json_t *json, const char *key, double value)
{
    add_value(json, key, isfinite(value) ? json_real(value) : json_null(), TW_ERR_NO_MEMORY);
}

void tw_json_add_string(tw_json_t *json, const char *key, const char *value)
{
    /* Out of memory is unlikely here, so if Jansson refuses a text, it is not UTF-8. */
    add_value(json, key, value ? json_string(value) : json_null(), TW_ERR_INVALID);
}

void tw_json_add_bool(tw_json_t *json, const char *key, int value)
{
    add_value(json, key, json_boolean(value), TW_ERR_NO_MEMORY);
}

void tw_json_add_value(tw_json_t *json, const char *key, json_t *value)
{
    add_value(json, key, value, TW_ERR_NO_MEMORY);
}

tw_status_t tw_json_write_line(const tw_json_t *json, FILE *out)
{
    if (!json) {
        return TW_ERR_NO_MEMORY;
    }
    TW_FAIL_IF(json->status != TW_OK, json->status, "json: cannot write a line: %s",
               tw_status_string(json->status));
    char *text = json_dumps(json->object, JSON_FLAGS);
    if (!text) {
        return TW_ERR_NO_MEMORY;
    }
    /* One call writes the whole line, so that processes that write to one file do not mix their lines. */
    errno = 0;
    int failed = fprintf(out, "%s\n", text) < 0 || fflush(out) != 0;
    free(text);
    return failed ? tw_fail(TW_ERR_IO, "json: cannot write a line: %s", strerror(errno)) : TW_OK;
}
