/* Prints configuration tables: what a field accepts, what it holds, the manual. */
#include "core/config_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DOC_COLUMNS 96
#define DOC_INDENT 6

static const char *format_time(double seconds, char *buf, size_t buf_bytes)
{
    if (seconds == 0 || seconds >= 1) {
        snprintf(buf, buf_bytes, "%.15gs", seconds);
    } else if (seconds >= 1e-3) {
        snprintf(buf, buf_bytes, "%.12gms", seconds * 1e3);
    } else {
        snprintf(buf, buf_bytes, "%.12gus", seconds * 1e6);
    }
    return buf;
}

static const char *format_rate(double rate, char *buf, size_t buf_bytes)
{
    static const struct {
        double factor;
        const char *unit;
    } units[] = {{1e12, "tbit"}, {1e9, "gbit"}, {1e6, "mbit"}, {1e3, "kbit"}, {0, "bit"}};
    size_t i = 0;

    if (rate == 0) {
        snprintf(buf, buf_bytes, "none");
        return buf;
    }
    while (rate < units[i].factor) {
        i++;
    }
    snprintf(buf, buf_bytes, "%.15g%s", units[i].factor > 0 ? rate / units[i].factor : rate, units[i].unit);
    return buf;
}

/** Write a size with as many digits as it needs to be parsed back exactly. */
static const char *format_exact_bytes(size_t bytes, char *buf, size_t buf_bytes)
{
    size_t parsed;
    tw_format_bytes(bytes, buf, buf_bytes);
    if (tw_parse_bytes(buf, &parsed) != TW_OK || parsed != bytes) {
        snprintf(buf, buf_bytes, "%zu", bytes);
    }
    return buf;
}

/** Write one number of a field as text: its value or a limit of its range. */
static const char *format_number(tw_config_type_t type, double number, char *buf, size_t buf_bytes)
{
    if (type == TW_CONFIG_TIME) {
        return format_time(number, buf, buf_bytes);
    }
    if (type == TW_CONFIG_RATE) {
        return format_rate(number, buf, buf_bytes);
    }
    if (type == TW_CONFIG_BYTES && number < (double)SIZE_MAX) {
        return format_exact_bytes((size_t)number, buf, buf_bytes);
    }
    snprintf(buf, buf_bytes, "%.15g", number);
    return buf;
}

static void format_value(const tw_config_field_t *field, const tw_config_value_t *value, char *buf,
                         size_t buf_bytes)
{
    switch (field->type) {
    case TW_CONFIG_BOOL:
        snprintf(buf, buf_bytes, "%s", value->flag ? "y" : "n");
        break;
    case TW_CONFIG_ENUM:
        snprintf(buf, buf_bytes, "%s", field->choices[value->flag]);
        break;
    case TW_CONFIG_STRING:
        snprintf(buf, buf_bytes, "%s", value->string ? value->string : "");
        break;
    case TW_CONFIG_SECRET:
        snprintf(buf, buf_bytes, "%s", value->string && value->string[0] != '\0' ? "(set)" : "");
        break;
    case TW_CONFIG_INT:
        snprintf(buf, buf_bytes, "%lld", (long long)value->number);
        break;
    case TW_CONFIG_INT32:
        snprintf(buf, buf_bytes, "%d", value->flag);
        break;
    case TW_CONFIG_BYTES:
        format_exact_bytes(value->bytes, buf, buf_bytes);
        break;
    default:
        format_number(field->type, value->real, buf, buf_bytes);
    }
}

static const char *kind_of(const tw_config_field_t *field)
{
    switch (field->type) {
    case TW_CONFIG_BOOL:
        return "y or n";
    case TW_CONFIG_INT:
    case TW_CONFIG_INT32:
        return "a whole number";
    case TW_CONFIG_DOUBLE:
        return "a number";
    case TW_CONFIG_COUNT:
        return "a number such as 500K, 1M or 7.5G";
    case TW_CONFIG_BYTES:
        return "a size such as 65536, 64K or 1M";
    case TW_CONFIG_TIME:
        return "a time such as 10s, 250ms or 50us";
    case TW_CONFIG_RATE:
        return "a rate such as 1gbit or 100mbit, or none";
    case TW_CONFIG_STRING:
    case TW_CONFIG_SECRET:
        return "a text";
    case TW_CONFIG_ENUM:
        return "one of";
    }
    return "?";
}

static void print_append(char *buf, size_t buf_bytes, const char *before, const char *text)
{
    size_t used = strlen(buf);
    snprintf(buf + used, buf_bytes - used, "%s%s", before, text);
}

static void append_range(const tw_config_field_t *field, char *buf, size_t buf_bytes)
{
    char end[64];
    if (!tw_config_has_range(field)) {
        return;
    }
    if (isfinite(field->min)) {
        print_append(buf, buf_bytes, isfinite(field->max) ? ", from " : ", at least ",
                     format_number(field->type, field->min, end, sizeof(end)));
    }
    if (isfinite(field->max)) {
        print_append(buf, buf_bytes, isfinite(field->min) ? " to " : ", at most ",
                     format_number(field->type, field->max, end, sizeof(end)));
    }
}

const char *tw_config_describe(const tw_config_field_t *field, char *buf, size_t buf_bytes)
{
    snprintf(buf, buf_bytes, "%s", kind_of(field));
    if (field->type == TW_CONFIG_ENUM) {
        for (int i = 0; field->choices[i]; i++) {
            print_append(buf, buf_bytes, i == 0 ? " " : ", ", field->choices[i]);
        }
    }
    append_range(field, buf, buf_bytes);
    return buf;
}

/** If the value is the default, write it as the table spells it, even if the user wrote it in another way. */
const char *tw_config_format(const tw_config_field_t *field, const void *options, char *buf, size_t buf_bytes)
{
    char dflt_text[1024];
    tw_config_value_t value, dflt;
    snprintf(buf, buf_bytes, "%s", field->dflt ? field->dflt : "");
    if (!options || tw_config_value_parse(field, field->dflt, &dflt) != TW_OK) {
        return buf;
    }
    tw_config_value_load(field, options, &value);
    format_value(field, &dflt, dflt_text, sizeof(dflt_text));
    if (tw_config_is_string(field)) {
        free(dflt.string);
    }
    format_value(field, &value, buf, buf_bytes);
    if (strcmp(buf, dflt_text) == 0) {
        snprintf(buf, buf_bytes, "%s", field->dflt ? field->dflt : "");
    }
    return buf;
}

/** Print prose, indented and broken between words. */
static void print_wrapped(const char *text, FILE *out)
{
    size_t column = 0;
    while (*(text += strspn(text, " \n")) != '\0') {
        size_t word = strcspn(text, " \n");

        if (column == 0 || column + 1 + word > DOC_COLUMNS) {
            fprintf(out, "%s%*s", column == 0 ? "" : "\n", DOC_INDENT, "");
            column = DOC_INDENT;
        } else {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, word, out);
        column += word;
        text += word;
    }
    fputc('\n', out);
}

void tw_config_print(const tw_config_table_t *table, const void *options, FILE *out)
{
    char value[1024], allowed[512];
    fprintf(out, "%s:\n", table->module);
    for (size_t i = 0; i < table->n_fields; i++) {
        const tw_config_field_t *field = &table->fields[i];
        const char *dflt = field->dflt ? field->dflt : "";

        fprintf(out, "  %s=%s\n", field->name, tw_config_format(field, options, value, sizeof(value)));
        fprintf(out, "%*sdefault: %s", DOC_INDENT, "", dflt[0] != '\0' ? dflt : "(empty)");
        if (field->unit && field->unit[0] != '\0') {
            fprintf(out, "; unit: %s", field->unit);
        }
        fprintf(out, "; %s\n", tw_config_describe(field, allowed, sizeof(allowed)));
        print_wrapped(field->doc, out);
    }
}
