/* Runs this rank's part of the flows, slot by slot, and of the probes of paths between neighbours. Only a
 * node's first rank sends and receives. The other ranks just wait for all ranks in each slot. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "doctor/state.h"

#define PROBE_SEC 0.5
#define TICK_SEC 0.05

/* ---- one slot ------------------------------------------------------------------------------------------ */

typedef struct worker {
    tw_doctor_end_t end;
    void (*run)(tw_doctor_end_t *);
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

static void doctor_start(worker_t *worker, void (*run)(tw_doctor_end_t *), const tw_doctor_end_t *end)
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

/** Wait until both workers end. If the job fails, stop them. */
static tw_status_t watch(const tw_doctor_rank_t *rank, worker_t workers[2], volatile int *stop)
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

/** Do this rank's part in a slot: send one flow, receive one, or neither. */
static tw_status_t run_slot(const tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                            const tw_doctor_schedule_t *s, int slot, double seconds)
{
    worker_t workers[2] = {0};
    volatile int stop = 0;
    for (int i = 0; i < s->n; i++) {
        tw_doctor_flow_t *flow = &s->flows[i];
        const tw_doctor_end_t end = {.rank = rank,
                                     .flow = flow,
                                     .to = tw_doctor_node(result, flow->to)->devices[flow->device].address,
                                     .seconds = seconds,
                                     .stop = &stop};
        if (flow->slot == slot && flow->from == s->node) {
            doctor_start(&workers[0], tw_doctor_send, &end);
        } else if (flow->slot == slot && flow->to == s->node) {
            doctor_start(&workers[1], tw_doctor_receive, &end);
        }
    }
    return watch(rank, workers, &stop);
}

/* ---- paths --------------------------------------------------------------------------------------------- */

/* A node's paths on one device in one direction of the ring: to one neighbour, and from the other. */
typedef struct probed {
    tw_doctor_path_t sent, received;
} probed_t;

/* A node's paths on all devices, in both directions of the ring of nodes. */
typedef struct paths {
    int node, n;
    probed_t list[2 * TW_DOCTOR_DEVICES_MAX];
} paths_t;

static tw_doctor_path_t make_path(const tw_doctor_result_t *result, int from, int to, int device)
{
    const int own = tw_doctor_node(result, from)->devices[device].mtu;
    const int theirs = tw_doctor_node(result, to)->devices[device].mtu;
    return (tw_doctor_path_t){
        .from = from, .to = to, .device = device, .asked_bytes = own < theirs ? own : theirs};
}

/** List the paths of a node to and from its neighbours in the ring of nodes, first one direction of the ring,
 *  then the other. Two nodes have one direction. If node is -1, this rank has no paths. */
static void make_paths(const tw_doctor_result_t *result, int n_devices, int node, paths_t *paths)
{
    const int n_nodes = result->n_nodes, ways = n_nodes == 2 ? 1 : 2;
    *paths = (paths_t){.node = node};
    for (int way = 0; way < ways; way++) {
        const int next = way == 0 ? 1 : n_nodes - 1;
        for (int device = 0; device < n_devices; device++) {
            probed_t *one = &paths->list[paths->n++];
            if (node >= 0) {
                one->sent = make_path(result, node, (node + next) % n_nodes, device);
                one->received = make_path(result, (node + n_nodes - next) % n_nodes, node, device);
            }
        }
    }
}

static void probe_path(const tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                       const tw_doctor_path_t *path)
{
    const tw_doctor_device_t *device = &tw_doctor_node(result, path->to)->devices[path->device];
    struct sockaddr_in6 to = device->address;
    to.sin6_port = device->probe_port;
    tw_doctor_probe_send(rank, path, &to);
}

/** Probe all paths, and note the largest probe that each receiver got. All paths of one direction and device
 *  are probed at the same time, since each node sends on one of them and receives on one. */
static tw_status_t probe_paths(tw_doctor_rank_t *rank, const tw_doctor_result_t *result, paths_t *paths)
{
    for (int i = 0; i < paths->n; i++) {
        probed_t *one = &paths->list[i];
        TW_TRY(tw_doctor_meet(rank));
        if (paths->node >= 0) {
            probe_path(rank, result, &one->sent);
        }
        TW_TRY(tw_doctor_meet(rank)); /* all probes have been sent */
        if (paths->node >= 0) {
            one->received.passed_bytes = tw_doctor_probe_receive(rank, one->received.device, PROBE_SEC);
        }
    }
    return TW_OK;
}

/* ---- flows of all nodes -------------------------------------------------------------------------------- */

/** Send rank 0 the results of the flows that this node has sent. */
static tw_status_t tell_flows(tw_doctor_rank_t *rank, const tw_doctor_schedule_t *s,
                              tw_doctor_result_t *result)
{
    const size_t one = sizeof(tw_doctor_flow_t), most_bytes = (size_t)s->n_sent_most * one;
    tw_doctor_flow_t *sent = malloc(most_bytes);
    size_t n = 0;
    TW_FAIL_IF(!sent, TW_ERR_NO_MEMORY, "rank %d: no memory for %d flows", rank->rank, s->n_sent_most);
    for (int i = 0; i < s->n; i++) {
        if (s->flows[i].from == s->node) {
            sent[n++] = s->flows[i];
        }
    }
    const tw_doctor_words_t words = {sent, n * one, most_bytes, tw_doctor_take_flows, result};
    const tw_status_t status = tw_doctor_collect_nodes(rank, result, &words);
    free(sent);
    return status;
}

/** Send rank 0 the results of the paths on which this node has received. */
static tw_status_t tell_paths(tw_doctor_rank_t *rank, const paths_t *paths, tw_doctor_result_t *result)
{
    tw_doctor_path_t received[2 * TW_DOCTOR_DEVICES_MAX];
    const size_t bytes = (size_t)paths->n * sizeof(received[0]);
    for (int i = 0; i < paths->n; i++) {
        received[i] = paths->list[i].received;
    }
    const tw_doctor_words_t words = {received, bytes, bytes, tw_doctor_take_paths, result};
    return tw_doctor_collect_nodes(rank, result, &words);
}

static int least_devices(const tw_doctor_result_t *result)
{
    int least = TW_DOCTOR_DEVICES_MAX;
    for (int node = 0; node < result->n_nodes; node++) {
        const int n = tw_doctor_node(result, node)->n_devices;
        least = n < least ? n : least;
    }
    return least;
}

/** Mark as skipped all flows of this slot and later ones. */
static void skip(const tw_doctor_schedule_t *s, int slot)
{
    for (int i = 0; i < s->n; i++) {
        s->flows[i].skipped = s->flows[i].slot >= slot;
    }
}

/** Run the flows slot by slot. End early if rank 0's time limit has passed. */
static tw_status_t run_flows(tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                             const tw_doctor_schedule_t *s, const tw_doctor_plan_t *plan)
{
    const double seconds = tw_doctor_slot_seconds(plan, s),
                 until = tw_time_sec() + tw_doctor_limit_seconds(plan, s);
    if (rank->rank == 0) {
        printf("measuring: %d nodes, %d steps of %.1f s\n", result->n_nodes, s->n_slots, seconds);
        fflush(stdout);
    }
    for (int slot = 0; slot < s->n_slots; slot++) {
        TW_TRY(tw_doctor_meet(rank));
        int32_t is_over = slot >= s->n_first && tw_time_sec() > until;
        TW_TRY(tw_doctor_share(rank, &is_over, sizeof(is_over)));
        if (is_over) {
            skip(s, slot);
            break;
        }
        TW_TRY(run_slot(rank, result, s, slot, seconds));
    }
    return TW_OK;
}

/** The node of which this rank is the first rank, or -1. */
static int own_node(const tw_doctor_rank_t *rank, const tw_doctor_result_t *result)
{
    const int node = tw_transport_node_of(rank->transport, rank->rank);
    return result->leader[node] == rank->rank ? node : -1;
}

tw_status_t tw_doctor_measure(tw_doctor_rank_t *rank, const tw_doctor_plan_t *plan,
                              tw_doctor_result_t *result)
{
    tw_doctor_schedule_t s;
    tw_doctor_plan_t first = *plan;
    paths_t paths;
    const int n_devices = least_devices(result), node = own_node(rank, result);
    if (result->n_nodes < 2 || n_devices < 1) {
        return TW_OK;
    }
    /* All ranks use rank 0's plan. A rank with other flags would wait for flows that never come. */
    TW_TRY(tw_doctor_share(rank, &first, sizeof(first)));
    tw_status_t status = tw_doctor_schedule_init(&first, result->n_nodes, n_devices, node, &s);
    if (status != TW_OK) {
        tw_error("rank %d: no memory for the flows of %d nodes", rank->rank, result->n_nodes);
    }
    make_paths(result, n_devices, node, &paths);
    status = status == TW_OK ? probe_paths(rank, result, &paths) : status;
    status = status == TW_OK ? run_flows(rank, result, &s, &first) : status;
    status = status == TW_OK ? tell_flows(rank, &s, result) : status;
    status = status == TW_OK ? tell_paths(rank, &paths, result) : status;
    tw_doctor_schedule_cleanup(&s);
    return status;
}
