/* Reports every TW_ variable, from the modules' tables. */
#include "bench/info/info.h"

#include <stdlib.h>

static void one_variable(info_report_t *report, const char *module, const tw_config_field_t *field,
                         const void *options)
{
    char text[4096];
    info_begin(report, "variable", field->name);
    info_text(report, "module", module);
    info_text(report, "value", tw_config_format(field, options, text, sizeof(text)));
    info_text(report, "default", tw_config_format(field, NULL, text, sizeof(text)));
    info_text(report, "unit", field->unit ? field->unit : "");
    info_text(report, "allowed", tw_config_describe(field, text, sizeof(text)));
    info_text(report, "doc", field->doc);
    info_end(report);
}

static tw_status_t one_table(info_report_t *report, const tw_config_table_t *table)
{
    void *options = malloc(table->options_bytes);
    tw_status_t status = options ? tw_config_init(table, options) : TW_ERR_NO_MEMORY;
    const void *values = status == TW_OK ? options : NULL;
    if (!report->as_json) {
        fprintf(report->out, "\nvariables of ");
        tw_config_print(table, values, report->out);
    }
    for (size_t i = 0; report->as_json && i < table->n_fields; i++) {
        one_variable(report, table->module, &table->fields[i], values);
    }
    if (status == TW_OK) {
        tw_config_cleanup(table, options);
    }
    free(options);
    return status;
}

tw_status_t info_variables(info_report_t *report, const tw_config_table_t *const *tables, size_t n_tables)
{
    tw_status_t first = TW_OK;
    for (size_t i = 0; i < n_tables; i++) {
        tw_status_t status = one_table(report, tables[i]);
        if (first == TW_OK) {
            first = status;
        }
    }
    return first;
}
