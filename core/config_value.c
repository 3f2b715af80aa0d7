#include "core/config_value.h"

#include <stdlib.h>
#include <string.h>

#include "core/parse.h"

static size_t value_bytes(tw_config_type_t type)
{
    switch (type) {
    case TW_CONFIG_BOOL:
    case TW_CONFIG_ENUM:
    case TW_CONFIG_INT32:
        return sizeof(int);
    case TW_CONFIG_INT:
        return sizeof(int64_t);
    case TW_CONFIG_DOUBLE:
    case TW_CONFIG_COUNT:
    case TW_CONFIG_TIME:
    case TW_CONFIG_RATE:
        return sizeof(double);
    case TW_CONFIG_BYTES:
        return sizeof(size_t);
    case TW_CONFIG_STRING:
    case TW_CONFIG_SECRET:
        return sizeof(char *);
    }
    return 0;
}

void tw_config_value_load(const tw_config_field_t *field, const void *options, tw_config_value_t *value)
{
    memset(value, 0, sizeof(*value));
    memcpy(value, (const char *)options + field->offset, value_bytes(field->type));
}

/** The copy works for all types, because every member of the union starts at its first byte. */
void tw_config_value_store(const tw_config_field_t *field, void *options, const tw_config_value_t *value)
{
    if (tw_config_is_string(field)) {
        tw_config_value_t old;
        tw_config_value_load(field, options, &old);
        free(old.string);
    }
    memcpy((char *)options + field->offset, value, value_bytes(field->type));
}

static tw_status_t parse_int32(const char *text, int *value)
{
    int64_t number;
    TW_TRY(tw_parse_int(text, &number));
    if (number < INT32_MIN || number > INT32_MAX) {
        return TW_ERR_INVALID;
    }
    *value = (int)number;
    return TW_OK;
}

tw_status_t tw_config_value_parse(const tw_config_field_t *field, const char *text, tw_config_value_t *value)
{
    switch (field->type) {
    case TW_CONFIG_BOOL:
        return tw_parse_bool(text, &value->flag);
    case TW_CONFIG_INT:
        return tw_parse_int(text, &value->number);
    case TW_CONFIG_INT32:
        return parse_int32(text, &value->flag);
    case TW_CONFIG_DOUBLE:
        return tw_parse_double(text, &value->real);
    case TW_CONFIG_COUNT:
        return tw_parse_count(text, &value->real);
    case TW_CONFIG_BYTES:
        return tw_parse_bytes(text, &value->bytes);
    case TW_CONFIG_TIME:
        return tw_parse_time(text, &value->real);
    case TW_CONFIG_RATE:
        return tw_parse_rate(text, &value->real);
    case TW_CONFIG_STRING:
    case TW_CONFIG_SECRET:
        value->string = strdup(text ? text : "");
        return value->string ? TW_OK : TW_ERR_NO_MEMORY;
    case TW_CONFIG_ENUM:
        return tw_parse_choice(text, field->choices, &value->flag);
    }
    return TW_ERR_INVALID;
}

int tw_config_is_string(const tw_config_field_t *field)
{
    return field->type == TW_CONFIG_STRING || field->type == TW_CONFIG_SECRET;
}

int tw_config_has_range(const tw_config_field_t *field)
{
    return field->min != 0 || field->max != 0;
}

int tw_config_value_in_range(const tw_config_field_t *field, const tw_config_value_t *value)
{
    double number;
    if (!tw_config_has_range(field)) {
        return 1;
    }
    switch (field->type) {
    case TW_CONFIG_INT:
        number = (double)value->number;
        break;
    case TW_CONFIG_INT32:
        number = value->flag;
        break;
    case TW_CONFIG_BYTES:
        number = (double)value->bytes;
        break;
    case TW_CONFIG_DOUBLE:
    case TW_CONFIG_COUNT:
    case TW_CONFIG_TIME:
    case TW_CONFIG_RATE:
        number = value->real;
        break;
    default:
        return 1;
    }
    return number >= field->min && number <= field->max;
}
