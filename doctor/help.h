/** Estimates whether Thinwire would help: how long a step of sharded training uses the links, plain and
 *  coded. Private to the folder. */
#pragma once

#include <jansson.h>

#include "doctor/state.h"

TW_C_BEGIN

/* Number of models in the table if the caller names no model. */
#define TW_DOCTOR_STEPS 4

/** Links and codecs of a job. Each rate is the slowest node's or rank's, which sets the pace of a step. */
typedef struct tw_doctor_links {
    int n_nodes, ranks_per_node;
    /** bytes a second of one node, each way, while all send; 0: nothing arrives */
    double link_Bps;
    double encode_Bps[TW_DOCTOR_CODECS]; /**< bytes of plain bf16 that a core encodes in a second */
} tw_doctor_links_t;

/** Seconds for which a step of a model moves weights and gradients between nodes. */
typedef struct tw_doctor_step {
    double n_params;
    double plain_sec;
    /** lossless: with TW_FSDP=1; ecdq and int4: with TW_GRADS=ecdq:step=0.5 or int4, too */
    double lossless_sec, ecdq_sec, int4_sec;
} tw_doctor_step_t;

tw_doctor_links_t tw_doctor_links_of(const tw_doctor_result_t *result);
/** Estimate a step. There must be at least two nodes, and a rate above 0. */
tw_doctor_step_t tw_doctor_step_of(const tw_doctor_links_t *links, double n_params);
/** Estimate a step of a model of n_params parameters, or, if n_params is 0, of models of four sizes. Returns
 *  the number of estimates. Returns 0 if there is one node only, or if a link carries nothing. */
int tw_doctor_steps(const tw_doctor_links_t *links, double n_params, tw_doctor_step_t steps[TW_DOCTOR_STEPS]);

/** Print the estimates of tw_doctor_steps as a table. */
void tw_doctor_print_steps(const tw_doctor_links_t *links, double n_params);
/** Print the report's last line: what Thinwire would save. */
void tw_doctor_print_help(const tw_doctor_links_t *links, double n_params);
/** Estimate i of tw_doctor_steps as JSON. */
json_t *tw_doctor_step_json(const tw_doctor_result_t *result, int i);
/** The measured cluster as a case for the planner (plan --cluster), whose flags add the model. i is 0. */
json_t *tw_doctor_case_json(const tw_doctor_result_t *result, int i);

TW_C_END
