/* Keeps the list of findings, and finds the value that most nodes of a cluster have. */
#include <stdarg.h>
#include <string.h>

#include "doctor/findings.h"

tw_doctor_finding_t *tw_doctor_finding_add(tw_doctor_judge_t *judge, double weight)
{
    tw_doctor_findings_t *out = judge->out;
    tw_doctor_finding_t *finding = out->n < TW_DOCTOR_FINDINGS_MAX ? &out->list[out->n++] : NULL;
    for (int i = 0; !finding && i < out->n; i++) { /* the list is full: replace a finding of less weight */
        finding = out->list[i].weight < weight ? &out->list[i] : NULL;
    }
    finding = finding ? finding : &out->beyond;
    *finding = (tw_doctor_finding_t){.weight = weight};
    return finding;
}

void tw_doctor_say(char text[TW_DOCTOR_TEXT_BYTES], const char *format, ...)
{
    const size_t have = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + have, TW_DOCTOR_TEXT_BYTES - have, format, args);
    va_end(args);
}

void tw_doctor_say_node(const tw_doctor_judge_t *judge, char text[TW_DOCTOR_TEXT_BYTES], int node)
{
    tw_doctor_say(text, "node %d (%s)", node, tw_doctor_node(judge->result, node)->host);
}

const char *tw_doctor_device_name(const tw_doctor_judge_t *judge, int node, int device)
{
    return tw_doctor_node(judge->result, node)->devices[device].name;
}

int tw_doctor_most_streams(const tw_doctor_result_t *result)
{
    int most = 1;
    for (int i = 0; i < result->n_flows; i++) {
        most = result->flows[i].n_streams > most ? result->flows[i].n_streams : most;
    }
    return most;
}

int tw_doctor_measured_devices(const tw_doctor_result_t *result)
{
    int most = 0;
    for (int i = 0; i < result->n_flows; i++) {
        most = result->flows[i].device + 1 > most ? result->flows[i].device + 1 : most;
    }
    return most;
}

int tw_doctor_usual_mtu(const tw_doctor_result_t *result, int device)
{
    int best = 0, most = 0;
    for (int a = 0; a < result->n_nodes; a++) {
        const int mtu = tw_doctor_node(result, a)->devices[device].mtu;
        int n = 0;
        for (int b = 0; b < result->n_nodes; b++) {
            n += tw_doctor_node(result, b)->devices[device].mtu == mtu;
        }
        if (n > most || (n == most && mtu > best)) {
            most = n;
            best = mtu;
        }
    }
    return best;
}
