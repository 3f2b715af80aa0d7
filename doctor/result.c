/* Checks and keeps the results that the ranks send to rank 0. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/state.h"

void tw_doctor_result_cleanup(tw_doctor_result_t *result)
{
    free(result->facts);
    free(result->leader);
    free(result->flows);
    free(result->paths);
    *result = (tw_doctor_result_t){0};
}

const tw_doctor_facts_t *tw_doctor_node(const tw_doctor_result_t *result, int node)
{
    return &result->facts[result->leader[node]];
}

static tw_status_t doctor_refuse(int rank)
{
    return tw_fail(TW_ERR_INVALID, "rank 0: rank %d says what cannot be: is it of another version?", rank);
}

static int is_text(const char *text, size_t bytes)
{
    return memchr(text, '\0', bytes) != NULL;
}

tw_status_t tw_doctor_check_facts(const tw_doctor_result_t *result)
{
    for (int r = 0; r < result->world; r++) {
        const tw_doctor_facts_t *facts = &result->facts[r];
        int fits = facts->rank == r && facts->node >= 0 && facts->node < result->n_nodes &&
                   facts->n_devices >= 0 && facts->n_devices <= TW_DOCTOR_DEVICES_MAX &&
                   is_text(facts->host, sizeof(facts->host)) && is_text(facts->rdma, sizeof(facts->rdma));
        for (int i = 0; i < facts->n_devices && fits; i++) {
            fits = is_text(facts->devices[i].name, sizeof(facts->devices[i].name));
        }
        if (!fits) {
            return doctor_refuse(r);
        }
    }
    return TW_OK;
}

/** Whether these are two different nodes that both have this device. */
static int are_ends(const tw_doctor_result_t *result, int from, int to, int device)
{
    return from >= 0 && from < result->n_nodes && to >= 0 && to < result->n_nodes && from != to &&
           device >= 0 && device < tw_doctor_node(result, from)->n_devices &&
           device < tw_doctor_node(result, to)->n_devices;
}

static int is_flow(const tw_doctor_result_t *result, int node, const tw_doctor_flow_t *flow)
{
    return flow->from == node && are_ends(result, flow->from, flow->to, flow->device) &&
           flow->kind >= TW_DOCTOR_PAIR && flow->kind <= TW_DOCTOR_ALL && flow->n_streams >= 1 &&
           flow->n_streams <= TW_DOCTOR_STREAMS_MAX && isfinite(flow->bps) && isfinite(flow->rtt_us) &&
           is_text(flow->congestion, sizeof(flow->congestion));
}

tw_status_t tw_doctor_take_flows(void *ctx, int node, const void *flows, size_t bytes)
{
    tw_doctor_result_t *result = ctx;
    const size_t n = bytes / sizeof(tw_doctor_flow_t);
    if (n == 0) {
        return TW_OK;
    }
    TW_FAIL_IF(
        !tw_grow(&result->flows, &result->max_flows, (size_t)result->n_flows + n, sizeof(*result->flows)),
        TW_ERR_NO_MEMORY, "rank 0: no memory for %zu more flows", n);
    tw_doctor_flow_t *to = memcpy(result->flows + result->n_flows, flows, n * sizeof(*to));
    int n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_flow(result, node, &to[i])) {
            return doctor_refuse(result->leader[node]);
        }
        to[n_kept] = to[i];
        n_kept += !to[i].skipped;
    }
    result->n_flows += n_kept;
    result->n_skipped += (int)n - n_kept;
    return TW_OK;
}

tw_status_t tw_doctor_take_paths(void *ctx, int node, const void *paths, size_t bytes)
{
    tw_doctor_result_t *result = ctx;
    const size_t n = bytes / sizeof(tw_doctor_path_t);
    if (n == 0) {
        return TW_OK;
    }
    TW_FAIL_IF(
        !tw_grow(&result->paths, &result->max_paths, (size_t)result->n_paths + n, sizeof(*result->paths)),
        TW_ERR_NO_MEMORY, "rank 0: no memory for %zu more paths", n);
    tw_doctor_path_t *to = memcpy(result->paths + result->n_paths, paths, n * sizeof(*to));
    for (size_t i = 0; i < n; i++) {
        if (to[i].to != node || !are_ends(result, to[i].from, to[i].to, to[i].device)) {
            return doctor_refuse(result->leader[node]);
        }
    }
    result->n_paths += (int)n;
    return TW_OK;
}

static int flow_order(const void *a, const void *b)
{
    const tw_doctor_flow_t *x = a, *y = b;
    return x->slot != y->slot ? x->slot - y->slot : x->from - y->from;
}

static int path_order(const void *a, const void *b)
{
    const tw_doctor_path_t *x = a, *y = b;
    return x->device != y->device ? x->device - y->device
           : x->from != y->from   ? x->from - y->from
                                  : x->to - y->to;
}

void tw_doctor_result_sort(tw_doctor_result_t *result)
{
    if (result->flows) {
        qsort(result->flows, (size_t)result->n_flows, sizeof(*result->flows), flow_order);
    }
    if (result->paths) {
        qsort(result->paths, (size_t)result->n_paths, sizeof(*result->paths), path_order);
    }
}
