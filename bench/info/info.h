/** The functions of the program tw_info: what it reports, and how it prints. Private to it. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

/* ---- report -------------------------------------------------------------------------------------------- */

/** A printer of records, each of which has a kind and fields, as text for people or as JSON lines. */
typedef struct info_report {
    FILE *out;
    int as_json;
    char kind[32];      /**< kind of the last record */
    int is_named;       /**< 1: the open record has a name, and is one line of text */
    int n_fields;       /**< number of fields of the open record so far */
    tw_json_t *json;    /**< the open record */
    tw_status_t status; /**< the first failure */
} info_report_t;

/** Open a record. With a name, its text is one line: "  NAME: KEY VALUE, KEY VALUE". If the name is NULL, the
 *  record is the only one of its kind, and each field has a line. */
void info_begin(info_report_t *report, const char *kind, const char *name);
void info_text(info_report_t *report, const char *key, const char *value);
void info_int(info_report_t *report, const char *key, int64_t value);
void info_bool(info_report_t *report, const char *key, int value);
void info_end(info_report_t *report);

/* ---- sections ------------------------------------------------------------------------------------------ */

/** Report the version, the compiler, the build's configuration and optional parts, and UCX. */
void info_build(info_report_t *report);
/** Report the CPU, its instruction sets, usable cores, and codec backends. */
void info_cpu(info_report_t *report);
/** Report network interfaces and RDMA devices. */
void info_nics(info_report_t *report);
/** Report TCP's congestion control: a new socket's, and all available ones. info_nics: that of routes. */
void info_tcp(info_report_t *report);
/** Report CUDA's driver and GPUs (libcuda.so.1), or NCCL (libnccl.so.2). A missing library is no error. */
void info_gpus(info_report_t *report);
void info_nccl(info_report_t *report);
/** Report every variable of the tables with its value, default and meaning. TW_ERR_CONFIG (logged): a value
 *  is invalid; its default is shown instead. */
tw_status_t info_variables(info_report_t *report, const tw_config_table_t *const *tables, size_t n_tables);

TW_C_END
