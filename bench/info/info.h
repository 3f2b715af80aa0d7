/** Private to //bench:tw_info: what it reports, and how it is printed. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

/* ---- report -------------------------------------------------------------------------------------------- */

/** Records of a kind with fields, as text for people or as JSON lines. */
typedef struct info_report {
    FILE *out;
    int as_json;
    char kind[32];      /**< kind of the last record */
    int is_named;       /**< 1: the record under construction has a name, and is one line of text */
    int n_fields;       /**< fields of the record under construction */
    tw_json_t *json;    /**< the record under construction */
    tw_status_t status; /**< the first failure */
} info_report_t;

/** Begin a record. A record with a name is a line of text, "  NAME: KEY VALUE, KEY VALUE"; NULL: the record
 *  is the only one of its kind, and has a line for each field. */
void info_begin(info_report_t *report, const char *kind, const char *name);
void info_text(info_report_t *report, const char *key, const char *value);
void info_int(info_report_t *report, const char *key, int64_t value);
void info_bool(info_report_t *report, const char *key, int value);
void info_end(info_report_t *report);

/* ---- sections ------------------------------------------------------------------------------------------ */

/** Report version, compiler, configuration, what is built in, and UCX. */
void info_build(info_report_t *report);
/** Report the CPU, its instruction sets, usable cores, and codec backends. */
void info_cpu(info_report_t *report);
/** Report network interfaces and RDMA devices. */
void info_nics(info_report_t *report);
/** Report TCP's congestion control: the one that a new socket has, and those the system has. A route may set
 *  another: it is reported with its interface. */
void info_tcp(info_report_t *report);
/** Report CUDA's driver and GPUs, through libcuda.so.1, and NCCL, through libnccl.so.2. Neither is needed. */
void info_gpus(info_report_t *report);
void info_nccl(info_report_t *report);
/** Report every variable of the tables with its value, default and meaning. TW_ERR_CONFIG (logged): a value
 *  is bad; the default is shown instead. */
tw_status_t info_variables(info_report_t *report, const tw_config_table_t *const *tables, size_t n_tables);

TW_C_END
