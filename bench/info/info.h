/** Private to //bench:tw_info: what there is to say, and how it is said. */
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
    char kind[32];      /**< of the last record */
    int is_named;       /**< the record under construction has a name: one line of text */
    int n_fields;       /**< of the record under construction */
    tw_json_t *json;    /**< the record under construction */
    tw_status_t status; /**< the first failure */
} info_report_t;

/** Begin a record. With a name it is one of several of its kind: "  NAME: KEY VALUE, KEY VALUE"; NULL: the
 *  only one, a line per field. */
void info_begin(info_report_t *report, const char *kind, const char *name);
void info_text(info_report_t *report, const char *key, const char *value);
void info_int(info_report_t *report, const char *key, int64_t value);
void info_bool(info_report_t *report, const char *key, int value);
void info_end(info_report_t *report);

/* ---- sections ------------------------------------------------------------------------------------------ */

/** Version, compiler, configuration, what is built in; UCX. */
void info_build(info_report_t *report);
/** CPU, its instruction sets, usable cores; codec backends. */
void info_cpu(info_report_t *report);
/** Network interfaces, RDMA devices. */
void info_nics(info_report_t *report);
/** Congestion control of TCP: in effect, as a connection of this machine to itself has it (a route may name
 *  another: its interface says so then), and what
 *  the system has. */
void info_tcp(info_report_t *report);
/** CUDA driver and GPUs, through libcuda.so.1; NCCL, through libnccl.so.2. Neither is needed to run. */
void info_gpus(info_report_t *report);
void info_nccl(info_report_t *report);
/** Every variable of the tables with its value, default and meaning. TW_ERR_CONFIG (logged) if a value is
 *  bad; the default is shown then. */
tw_status_t info_variables(info_report_t *report, const tw_config_table_t *const *tables, size_t n_tables);

TW_C_END
