/** Private to trainer/plan: the tables. */
#pragma once

#include "trainer/plan/plan.h"

TW_C_BEGIN

/** A feature set, planned. */
typedef struct tw_plan_row {
    const char *name, *torch; /**< torch: the set's */
    int stage;
    int is_lossless; /**< its losses are zero3's */
    tw_plan_memory_t memory;
    double inter_node_bytes, in_node_bytes; /**< of a step */
    tw_plan_time_t time;
} tw_plan_row_t;

/** What of a row's memory is on the device; whether that is there. */
double tw_plan_row_device_bytes(const tw_plan_row_t *row);
int tw_plan_row_fits(const tw_plan_row_t *row, const tw_plan_cluster_t *cluster);
/** The fastest that fits, of those that lose nothing or of all; NULL: none fits. */
const tw_plan_row_t *tw_plan_row_fastest(const tw_plan_row_t *rows, size_t n_rows,
                                         const tw_plan_cluster_t *cluster, int lossless_only);
/** Print the bytes of states in all stages, of n_params. */
void tw_plan_print_states(double n_params, int world, FILE *out);
/** rows [n_rows]: one of them is "zero3". */
void tw_plan_print_memory(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out);
/** Write a JSON line for each row. TW_ERR_IO. */
tw_status_t tw_plan_write_json(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                               FILE *out);
void tw_plan_print_steps(const tw_plan_row_t *rows, size_t n_rows, FILE *out);
/** What a PyTorch job sets for the same, of two rows, which may be one; nothing if none of it is there. */
void tw_plan_print_torch(const tw_plan_row_t *any, const tw_plan_row_t *lossless, FILE *out);
/** Print which features to switch on, or that none will help. */
void tw_plan_print_advice(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out);

TW_C_END
