/** Private to trainer/plan: prints the tables. */
#pragma once

#include "trainer/plan/plan.h"

TW_C_BEGIN

/** A feature set, planned. */
typedef struct tw_plan_row {
    const char *name, *torch; /**< torch: as in tw_trainer_set_t */
    int stage;
    int is_lossless; /**< 1: the losses are those of zero3 */
    tw_plan_memory_t memory;
    double inter_node_bytes, in_node_bytes; /**< bytes of a step */
    tw_plan_time_t time;
} tw_plan_row_t;

/** Return the bytes of a row's memory on the device; and 1 if the device has them. */
double tw_plan_row_device_bytes(const tw_plan_row_t *row);
int tw_plan_row_fits(const tw_plan_row_t *row, const tw_plan_cluster_t *cluster);
/** Return the fastest row that fits, of lossless ones or of all; NULL if none fits. */
const tw_plan_row_t *tw_plan_row_fastest(const tw_plan_row_t *rows, size_t n_rows,
                                         const tw_plan_cluster_t *cluster, int lossless_only);
/** Print the bytes of the states of n_params parameters, in all stages. */
void tw_plan_print_states(double n_params, int world, FILE *out);
/** Print the table; one of rows [n_rows] is "zero3". */
void tw_plan_print_memory(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out);
/** Write a JSON line for each row. TW_ERR_IO. */
tw_status_t tw_plan_write_json(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                               FILE *out);
void tw_plan_print_steps(const tw_plan_row_t *rows, size_t n_rows, FILE *out);
/** Print what a PyTorch job sets to get the same as two rows, or one; nothing if it has neither. */
void tw_plan_print_torch(const tw_plan_row_t *any, const tw_plan_row_t *lossless, FILE *out);
/** Print which features to switch on, or that none will help. */
void tw_plan_print_advice(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out);

TW_C_END
