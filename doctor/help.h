/** Estimates whether Thinwire would help: what a step of sharded training takes on the links, plain and
 *  coded. Private to the folder. */
#pragma once

#include <jansson.h>

#include "doctor/state.h"

TW_C_BEGIN

/* Number of models that are shown where none is asked about. */
#define TW_DOCTOR_STEPS 4

/** Links and codecs of a job: those of its slowest node and rank, which set the pace of a step. */
typedef struct tw_doctor_links {
    int n_nodes, ranks_per_node;
    double link_Bps;                     /**< rate of a node, each way, while all send; 0: nothing comes */
    double encode_Bps[TW_DOCTOR_CODECS]; /**< plain bytes that a core encodes */
} tw_doctor_links_t;

/** Seconds for which a step moves the weights and gradients of so many parameters between nodes. */
typedef struct tw_doctor_step {
    double n_params;
    double plain_sec;
    /** lossless: with TW_FSDP=1; ecdq: with TW_GRADS=ecdq:step=0.5, too; int4: likewise */
    double lossless_sec, ecdq_sec, int4_sec;
} tw_doctor_step_t;

tw_doctor_links_t tw_doctor_links_of(const tw_doctor_result_t *result);
/** Estimate a step. links: they join at least two nodes, and carry something. */
tw_doctor_step_t tw_doctor_step_of(const tw_doctor_links_t *links, double n_params);
/** Estimate a step of a model of so many parameters, or for 0 of models of four sizes. Returns how many; 0:
 *  there is one node, or a link carries nothing. */
int tw_doctor_steps(const tw_doctor_links_t *links, double n_params, tw_doctor_step_t steps[TW_DOCTOR_STEPS]);

/** Print all these steps as a table. */
void tw_doctor_print_steps(const tw_doctor_links_t *links, double n_params);
/** Print the report's last line. */
void tw_doctor_print_help(const tw_doctor_links_t *links, double n_params);
/** Step i as JSON. */
json_t *tw_doctor_step_json(const tw_doctor_result_t *result, int i);
/** The cluster as a case of the planner's (plan --cluster); the planner's flags say the rest. i is 0. */
json_t *tw_doctor_case_json(const tw_doctor_result_t *result, int i);

TW_C_END
