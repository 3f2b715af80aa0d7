/* Prints records with fields, as text or as JSON lines. */
#include "bench/info/info.h"

#include <inttypes.h>
#include <string.h>

void info_begin(info_report_t *report, const char *kind, const char *name)
{
    report->is_named = name != NULL;
    report->n_fields = 0;
    if (report->as_json) {
        report->json = tw_json_create();
        tw_json_add_string(report->json, "kind", kind);
        if (name) {
            tw_json_add_string(report->json, "name", name);
        }
        return;
    }
    if (strcmp(report->kind, kind) != 0) {
        fprintf(report->out, "%s%s:\n", report->kind[0] != '\0' ? "\n" : "", kind);
        snprintf(report->kind, sizeof(report->kind), "%s", kind);
    }
    if (name) {
        fprintf(report->out, "  %s:", name);
    }
}

/** Print the text before a value: the key, after a comma if the record is one line. */
static void begin_field(info_report_t *report, const char *key)
{
    if (report->is_named) {
        fprintf(report->out, "%s %s ", report->n_fields > 0 ? "," : "", key);
    } else {
        fprintf(report->out, "  %-20s ", key);
    }
    report->n_fields++;
}

static void end_field(info_report_t *report)
{
    if (!report->is_named) {
        fputc('\n', report->out);
    }
}

void info_text(info_report_t *report, const char *key, const char *value)
{
    if (report->as_json) {
        tw_json_add_string(report->json, key, value);
        return;
    }
    begin_field(report, key);
    fputs(value[0] != '\0' ? value : "none", report->out);
    end_field(report);
}

void info_int(info_report_t *report, const char *key, int64_t value)
{
    if (report->as_json) {
        tw_json_add_int(report->json, key, value);
        return;
    }
    begin_field(report, key);
    fprintf(report->out, "%" PRId64, value);
    end_field(report);
}

void info_bool(info_report_t *report, const char *key, int value)
{
    if (report->as_json) {
        tw_json_add_bool(report->json, key, value);
    } else {
        info_text(report, key, value ? "yes" : "no");
    }
}

void info_end(info_report_t *report)
{
    tw_status_t status = TW_OK;
    if (report->as_json) {
        status = tw_json_write_line(report->json, report->out);
        tw_json_destroy(report->json);
        report->json = NULL;
    } else if (report->is_named) {
        fputc('\n', report->out);
    }
    if (report->status == TW_OK) {
        report->status = status;
    }
}
