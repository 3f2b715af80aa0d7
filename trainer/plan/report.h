/** Private to trainer/plan: prints the planner's tables. */
#pragma once

#include "trainer/plan/plan.h"

TW_C_BEGIN

/** The plan of one feature set. */
typedef struct tw_plan_row {
    const char *name, *torch; /**< torch: as in tw_trainer_set_t */
    int stage;
    int is_lossless; /**< 1: has the same losses as zero3 */
    tw_plan_memory_t memory;
    double inter_node_bytes, in_node_bytes; /**< bytes of a step */
    tw_plan_time_t time;
} tw_plan_row_t;

/** The bytes of a row's memory on the device; whether the device has that many. */
double tw_plan_row_device_bytes(const tw_plan_row_t *row);
int tw_plan_row_fits(const tw_plan_row_t *row, const tw_plan_cluster_t *cluster);
/** Return the fastest row that fits, of all rows or of lossless ones only. NULL: none fits. */
const tw_plan_row_t *tw_plan_row_fastest(const tw_plan_row_t *rows, size_t n_rows,
                                         const tw_plan_cluster_t *cluster, int lossless_only);
/** Print the bytes of the states of n_params parameters, for each ZeRO stage. */
void tw_plan_print_states(double n_params, int world, FILE *out);
void tw_plan_print_memory(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out);
/** Write a JSON line for each of rows [n_rows], one of which must be "zero3". TW_ERR_IO. */
tw_status_t tw_plan_write_json(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                               FILE *out);
/** Print the table of steps. One of rows [n_rows] must be "zero3". */
void tw_plan_print_steps(const tw_plan_row_t *rows, size_t n_rows, FILE *out);
/** Print the variables with which a PyTorch job does what the two rows do. A row may have none. */
void tw_plan_print_torch(const tw_plan_row_t *any, const tw_plan_row_t *lossless, FILE *out);
/** Print which features to turn on, or that none helps. One of rows [n_rows] must be "zero3". */
void tw_plan_print_advice(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out);

TW_C_END
