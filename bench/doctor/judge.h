/** What judge.c and settings.c share. Private to the folder. */
#ifndef TW_BENCH_DOCTOR_JUDGE_H
#define TW_BENCH_DOCTOR_JUDGE_H

#include "bench/doctor/doctor.h"

TW_C_BEGIN

typedef struct judge {
    const doctor_result_t *result;
    doctor_findings_t *out;
} judge_t;

/** A new finding, to be filled; what is beyond the most that are kept is forgotten. */
doctor_finding_t *judge_add(judge_t *judge, double weight);
/** Append to a text. */
__attribute__((format(printf, 2, 3))) void judge_say(char text[DOCTOR_TEXT_BYTES], const char *format, ...);
/** "node 1 (host)" */
void judge_say_node(const judge_t *judge, char text[DOCTOR_TEXT_BYTES], int node);
/** Name of a node's device. */
const char *judge_device(const judge_t *judge, int node, int device);
/** The most streams that a flow had. */
int judge_n_streams(const doctor_result_t *result);
/** What most nodes' devices have. */
int judge_usual_mtu(const doctor_result_t *result, int device);

void judge_mtu(judge_t *judge, int device);
/** All else in settings.c. */
void judge_settings(judge_t *judge);

TW_C_END

#endif
