/* How a rank fails: by itself, at the moment that its plan says. */
#include "tests/faults/faults.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cluster/cluster.h"

#define COMMAND_BYTES 512

/* A packet filter that drops %llu packets of 2^32: it draws a random number, lets the packet pass if that is
 * not below %llu, and drops it otherwise. */
#define DROP_FILTER "4,32 0 0 4294963256,53 1 0 %llu,6 0 0 2,6 0 0 0"

struct tw_fault_injector {
    const tw_fault_plan_t *plan;
    int rank, fd, has_begun;
    pthread_t threads[TW_FAULTS_MAX];
    int is_started[TW_FAULTS_MAX];
};

typedef struct task {
    tw_fault_injector_t *injector;
    int fault;
} task_t;

static void pause_sec(double sec)
{
    const struct timespec time = {(time_t)sec, (long)((sec - (double)(time_t)sec) * 1e9)};
    nanosleep(&time, NULL);
}

static void run_shell(const tw_fault_injector_t *injector, const char *command)
{
    char with_path[COMMAND_BYTES];
    snprintf(with_path, sizeof(with_path), "PATH=$PATH:/usr/sbin:/sbin; %s", command);
    int status = system(with_path);
    if (status != 0) {
        tw_error("rank %d: cannot make the fault: %s: exit status %d", injector->rank, command, status);
    }
}

static void spoil_link(const tw_fault_injector_t *injector, const tw_fault_t *fault)
{
    char command[COMMAND_BYTES];
    if (fault->kind == TW_FAULT_LOSS) {
        unsigned long long limit =
            fault->loss >= 1 ? 0xffffffffu : (unsigned long long)(fault->loss * 0x1p32);
        snprintf(command, sizeof(command),
                 "tc qdisc add dev " TW_CLUSTER_DEVICE " clsact && tc filter add dev " TW_CLUSTER_DEVICE
                 " egress bpf da bytecode \"" DROP_FILTER "\"",
                 limit);
        run_shell(injector, command);
        return;
    }
    run_shell(injector, "ip link set " TW_CLUSTER_DEVICE " down");
    if (fault->kind == TW_FAULT_FLAP) {
        pause_sec(fault->down_sec);
        run_shell(injector, "ip link set " TW_CLUSTER_DEVICE " up");
    }
}

/** Make a fault happen. The record is written first, while this rank can still write. */
static void faults_fail(const tw_fault_injector_t *injector, int index)
{
    const tw_fault_t *fault = &injector->plan->faults[index];
    pause_sec(fault->delay_sec);
    tw_fault_record_t record = {.rank = injector->rank, .fault = index, .at_sec = tw_time_sec()};
    if (write(injector->fd, &record, sizeof(record)) != (ssize_t)sizeof(record)) {
        tw_error("rank %d: cannot reach the campaign: %s", injector->rank, strerror(errno));
    }
    tw_warn("rank %d: now: %s", injector->rank, tw_fault_kind_name(fault->kind));
    switch (fault->kind) {
    case TW_FAULT_KILL:
        kill(getpid(), SIGKILL);
        break;
    case TW_FAULT_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case TW_FAULT_EXIT:
        _exit(0);
    default:
        spoil_link(injector, fault);
    }
}

static void *thread_main(void *arg)
{
    task_t task = *(task_t *)arg;
    free(arg);
    faults_fail(task.injector, task.fault);
    return NULL;
}

static void faults_inject_start(tw_fault_injector_t *injector, int index)
{
    task_t *task = malloc(sizeof(*task));
    if (!task) {
        tw_error("rank %d: out of memory for a fault", injector->rank);
        return;
    }
    *task = (task_t){.injector = injector, .fault = index};
    int error = pthread_create(&injector->threads[index], NULL, thread_main, task);
    if (error != 0) {
        tw_error("rank %d: no thread for a fault: %s", injector->rank, strerror(error));
        free(task);
        return;
    }
    injector->is_started[index] = 1;
}

tw_fault_injector_t *tw_fault_injector_create(const tw_fault_plan_t *plan, int rank, int fd)
{
    tw_fault_injector_t *injector = calloc(1, sizeof(*injector));
    TW_FAIL_IF(!injector, NULL, "rank %d: out of memory for faults", rank);
    injector->plan = plan;
    injector->rank = rank;
    injector->fd = fd;
    return injector;
}

void tw_fault_injector_begin(tw_fault_injector_t *injector, tw_fault_phase_t phase, int in_line)
{
    const tw_fault_plan_t *plan = injector->plan;
    if (plan->phase != phase || injector->has_begun) {
        return;
    }
    injector->has_begun = 1;
    for (int i = 0; i < plan->n_faults; i++) {
        if (plan->faults[i].rank == injector->rank && in_line) {
            faults_fail(injector, i);
        } else if (plan->faults[i].rank == injector->rank) {
            faults_inject_start(injector, i);
        }
    }
}

void tw_fault_injector_destroy(tw_fault_injector_t *injector)
{
    for (int i = 0; injector && i < TW_FAULTS_MAX; i++) {
        if (injector->is_started[i]) {
            pthread_join(injector->threads[i], NULL);
        }
    }
    free(injector);
}
