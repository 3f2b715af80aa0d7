/** Findings: texts that each describe one problem. Private to the folder. */
#pragma once

#include "doctor/state.h"

TW_C_BEGIN

typedef struct tw_doctor_judge {
    const tw_doctor_result_t *result;
    tw_doctor_findings_t *out;
} tw_doctor_judge_t;

/** Add a finding with empty texts, to be filled in. In a full list it replaces a lighter one, or is lost. */
tw_doctor_finding_t *tw_doctor_finding_add(tw_doctor_judge_t *judge, double weight);
/** Append to a text, formatted as by printf. */
__attribute__((format(printf, 2, 3))) void tw_doctor_say(char text[TW_DOCTOR_TEXT_BYTES], const char *format,
                                                         ...);
/** Append "node 1 (host)" to a text. */
void tw_doctor_say_node(const tw_doctor_judge_t *judge, char text[TW_DOCTOR_TEXT_BYTES], int node);
/** The name of a node's device, for example "eth0". */
const char *tw_doctor_device_name(const tw_doctor_judge_t *judge, int node, int device);
/** The largest number of streams of any flow. */
int tw_doctor_most_streams(const tw_doctor_result_t *result);
/** Number of devices that flows were measured on. */
int tw_doctor_measured_devices(const tw_doctor_result_t *result);
/** The MTU that most nodes' devices have. */
int tw_doctor_usual_mtu(const tw_doctor_result_t *result, int device);

/* Each function below adds one finding for each problem. */

/** links.c: judge the rates of links, and retransmitted packets. */
void tw_doctor_judge_links(tw_doctor_judge_t *judge);
/** settings.c: judge the settings of hosts and ranks. */
void tw_doctor_judge_settings(tw_doctor_judge_t *judge);

TW_C_END
