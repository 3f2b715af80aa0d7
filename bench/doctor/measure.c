/* Which flows when: every pair of nodes, several streams between neighbours, all nodes at once; and probes of
 * the paths between neighbours. All ranks make the same plan; those that are not a node's first only follow
 * it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench/doctor/doctor.h"

#define SLOT_MIN_SEC 0.3
#define SLOT_MAX_SEC 3.0
#define PROBE_SEC 0.5
#define TICK_SEC 0.05

/* ---- the plan ------------------------------------------------------------------------------------------ */

typedef struct schedule {
    int n, n_slots, room;
    doctor_flow_t *flows;
    int failed;
} schedule_t;

static void add(schedule_t *s, doctor_kind_t kind, int from, int to, int device, int n_streams)
{
    if (s->n == s->room) {
        const int room = s->room ? 2 * s->room : 64;
        doctor_flow_t *flows = realloc(s->flows, (size_t)room * sizeof(*flows));
        if (!flows) {
            s->failed = 1;
            return;
        }
        s->flows = flows;
        s->room = room;
    }
    s->flows[s->n++] = (doctor_flow_t){
        .kind = kind, .from = from, .to = to, .device = device, .n_streams = n_streams, .slot = s->n_slots};
}

/* Each pair alone, one way after the other. */
static void add_pairs_alone(schedule_t *s, int n_nodes, int device)
{
    for (int from = 0; from < n_nodes; from++) {
        for (int to = 0; to < n_nodes; to++) {
            if (from != to) {
                add(s, DOCTOR_PAIR, from, to, device, 1);
                s->n_slots++;
            }
        }
    }
}

/* Many nodes: each sends to the one that is `distance` further, at the same time; so all pairs there are time
 * for. */
static void add_rounds(schedule_t *s, int n_nodes, int device, int n_rounds)
{
    for (int round = 0; round < n_rounds; round++) {
        const int distance = 1 + (int)((int64_t)round * (n_nodes - 1) / n_rounds);
        for (int from = 0; from < n_nodes; from++) {
            add(s, DOCTOR_PAIR, from, (from + distance) % n_nodes, device, 1);
        }
        s->n_slots++;
    }
}

/* Neighbours, so that no node is in two flows at once: even ones, odd ones, and the last of an odd number. */
static void add_neighbours(schedule_t *s, int n_nodes, int device, int n_streams)
{
    for (int part = 0; part < 3; part++) {
        const int before = s->n;
        for (int from = 0; from < n_nodes; from++) {
            const int is_last = n_nodes % 2 == 1 && from == n_nodes - 1;
            if ((is_last ? 2 : from % 2) == part) {
                add(s, DOCTOR_STREAMS, from, (from + 1) % n_nodes, device, n_streams);
            }
        }
        s->n_slots += s->n > before;
    }
}

static void add_all(schedule_t *s, int n_nodes, int device, int n_streams)
{
    for (int from = 0; from < n_nodes; from++) {
        add(s, DOCTOR_ALL, from, (from + 1) % n_nodes, device, n_streams);
    }
    s->n_slots++;
}

static int make_schedule(const doctor_plan_t *plan, int n_nodes, int n_devices, schedule_t *s)
{
    const int64_t most = (int64_t)(plan->seconds / SLOT_MIN_SEC) / n_devices;
    const int alone = (int64_t)n_nodes * (n_nodes - 1) <= most || n_nodes < 4;
    const int n_rounds = most < 1 ? 1 : most < n_nodes - 1 ? (int)most : n_nodes - 1;
    for (int device = 0; device < n_devices; device++) {
        alone ? add_pairs_alone(s, n_nodes, device) : add_rounds(s, n_nodes, device, n_rounds);
        add_neighbours(s, n_nodes, device, plan->n_streams);
        add_all(s, n_nodes, device, plan->n_streams);
    }
    return !s->failed;
}

static double slot_seconds(const doctor_plan_t *plan, const schedule_t *s)
{
    const double seconds = plan->seconds / s->n_slots;
    return seconds < SLOT_MIN_SEC ? SLOT_MIN_SEC : seconds > SLOT_MAX_SEC ? SLOT_MAX_SEC : seconds;
}

/* Between neighbours, one way and then the other. */
static int make_paths(doctor_result_t *result, int n_devices)
{
    const int n_nodes = result->n_nodes;
    result->paths = calloc((size_t)(2 * n_nodes * n_devices), sizeof(*result->paths));
    for (int way = 0; way < 2 && result->paths; way++) {
        for (int k = 0; k < n_nodes * n_devices && !(n_nodes == 2 && way == 1); k++) {
            const int from = k % n_nodes, device = k / n_nodes;
            const int to = (from + (way ? n_nodes - 1 : 1)) % n_nodes;
            const int own = doctor_node(result, from)->devices[device].mtu;
            const int theirs = doctor_node(result, to)->devices[device].mtu;
            result->paths[result->n_paths++] = (doctor_path_t){
                .from = from, .to = to, .device = device, .asked_bytes = own < theirs ? own : theirs};
        }
    }
    return result->paths != NULL;
}

/* ---- one slot ------------------------------------------------------------------------------------------ */

typedef struct worker {
    doctor_end_t end;
    void (*run)(doctor_end_t *);
    pthread_t thread;
    int is_started;
    volatile int is_done;
} worker_t;

static void *run_worker(void *arg)
{
    worker_t *worker = arg;
    worker->run(&worker->end);
    __atomic_store_n(&worker->is_done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void start(worker_t *worker, void (*run)(doctor_end_t *), const doctor_end_t *end)
{
    worker->run = run;
    worker->end = *end;
    worker->is_started = pthread_create(&worker->thread, NULL, run_worker, worker) == 0;
    if (!worker->is_started) {
        end->flow->error = EAGAIN;
    }
}

static int is_busy(const worker_t *worker)
{
    return worker->is_started && !__atomic_load_n(&worker->is_done, __ATOMIC_ACQUIRE);
}

/* While they work, see whether the job is well. */
static tw_status_t watch(const doctor_rank_t *rank, worker_t workers[2], volatile int *stop)
{
    tw_status_t status = TW_OK;
    while (is_busy(&workers[0]) || is_busy(&workers[1])) {
        if (status == TW_OK) {
            status = tw_transport_progress(rank->transport);
            status = status == TW_IN_PROGRESS ? tw_transport_sleep(rank->transport, TICK_SEC) : status;
            status = status == TW_IN_PROGRESS ? TW_OK : status;
        }
        __atomic_store_n(stop, status != TW_OK, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < 2; i++) {
        if (workers[i].is_started) {
            pthread_join(workers[i].thread, NULL);
        }
    }
    return status;
}

/* This rank's part in a slot: it sends one flow, receives one, or neither. */
static tw_status_t run_slot(const doctor_rank_t *rank, const doctor_result_t *result, const schedule_t *s,
                            int slot, double seconds)
{
    worker_t workers[2] = {0};
    volatile int stop = 0;
    for (int i = 0; i < s->n; i++) {
        doctor_flow_t *flow = &s->flows[i];
        const doctor_end_t end = {.rank = rank,
                                  .flow = flow,
                                  .to = doctor_node(result, flow->to)->devices[flow->device].address,
                                  .seconds = seconds,
                                  .stop = &stop};
        if (flow->slot == slot && result->leader[flow->from] == rank->rank) {
            start(&workers[0], doctor_send, &end);
        } else if (flow->slot == slot && result->leader[flow->to] == rank->rank) {
            start(&workers[1], doctor_receive, &end);
        }
    }
    return watch(rank, workers, &stop);
}

/* ---- paths --------------------------------------------------------------------------------------------- */

static void probe_path(const doctor_rank_t *rank, const doctor_result_t *result, doctor_path_t *path)
{
    if (result->leader[path->from] == rank->rank) {
        doctor_probe_send(rank, path, &doctor_node(result, path->to)->devices[path->device].address);
    }
}

/* The sender knows whom to, the receiver what has come: paths of one way and device are probed together, as
 * each node is the end of one of them. */
static tw_status_t probe_paths(doctor_rank_t *rank, doctor_result_t *result)
{
    const int n_nodes = result->n_nodes;
    for (int first = 0; first < result->n_paths; first += n_nodes) {
        TW_TRY(doctor_meet(rank));
        for (int i = first; i < first + n_nodes; i++) {
            probe_path(rank, result, &result->paths[i]);
        }
        TW_TRY(doctor_meet(rank)); /* all has been sent */
        for (int i = first; i < first + n_nodes; i++) {
            doctor_path_t *path = &result->paths[i];
            if (result->leader[path->to] == rank->rank) {
                path->passed_bytes = doctor_probe_receive(rank, path->device, PROBE_SEC);
            }
        }
    }
    return TW_OK;
}

/* ---- together ------------------------------------------------------------------------------------------ */

typedef struct merge {
    doctor_result_t *result;
    const schedule_t *s;
} merge_t;

/* Of each node what it knows: of a path its receiver, of a flow its sender. */
static void take_node(void *ctx, int node, const void *data)
{
    const merge_t *merge = ctx;
    const size_t n_paths = (size_t)merge->result->n_paths;
    const doctor_flow_t *flows = data;
    const doctor_path_t *paths = (const void *)(flows + merge->s->n);
    for (size_t i = 0; i < n_paths; i++) {
        if (merge->result->paths[i].to == node) {
            merge->result->paths[i] = paths[i];
        }
    }
    for (int i = 0; i < merge->s->n; i++) {
        if (merge->s->flows[i].from == node) {
            merge->s->flows[i] = flows[i];
        }
    }
}

static tw_status_t gather(doctor_rank_t *rank, doctor_result_t *result, const schedule_t *s)
{
    const size_t path_bytes = (size_t)result->n_paths * sizeof(doctor_path_t);
    const size_t flow_bytes = (size_t)s->n * sizeof(doctor_flow_t);
    merge_t merge = {result, s};
    char *own = malloc(path_bytes + flow_bytes);
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (!own) {
        tw_error("rank %d: no memory for %d flows", rank->rank, s->n);
    } else {
        memcpy(own, s->flows, flow_bytes);
        memcpy(own + flow_bytes, result->paths, path_bytes);
        status = doctor_collect_nodes(rank, result, own, path_bytes + flow_bytes, take_node, &merge);
    }
    free(own);
    return status;
}

static int least_devices(const doctor_result_t *result)
{
    int least = DOCTOR_DEVICES_MAX;
    for (int node = 0; node < result->n_nodes; node++) {
        const int n = doctor_node(result, node)->n_devices;
        least = n < least ? n : least;
    }
    return least;
}

static tw_status_t run_flows(doctor_rank_t *rank, const doctor_plan_t *plan, doctor_result_t *result,
                             const schedule_t *s)
{
    const double seconds = slot_seconds(plan, s);
    if (rank->rank == 0) {
        printf("measuring: %d nodes, %d steps of %.1f s\n", result->n_nodes, s->n_slots, seconds);
        fflush(stdout);
    }
    tw_status_t status = probe_paths(rank, result);
    for (int slot = 0; slot < s->n_slots && status == TW_OK; slot++) {
        status = doctor_meet(rank);
        if (status == TW_OK) {
            status = run_slot(rank, result, s, slot, seconds);
        }
    }
    return status == TW_OK ? gather(rank, result, s) : status;
}

tw_status_t doctor_measure(doctor_rank_t *rank, const doctor_plan_t *plan, doctor_result_t *result)
{
    schedule_t s = {0};
    doctor_plan_t first = *plan;
    const int n_devices = least_devices(result);
    if (result->n_nodes < 2 || n_devices < 1) {
        return TW_OK;
    }
    /* A rank with other flags would wait for other flows. */
    TW_TRY(doctor_share(rank, &first, sizeof(first)));
    if (!make_schedule(&first, result->n_nodes, n_devices, &s) || !make_paths(result, n_devices)) {
        free(s.flows);
        tw_error("rank %d: no memory for %d nodes", rank->rank, result->n_nodes);
        return TW_ERR_NO_MEMORY;
    }
    const tw_status_t status = run_flows(rank, &first, result, &s);
    result->flows = s.flows;
    result->n_flows = s.n;
    return status;
}
