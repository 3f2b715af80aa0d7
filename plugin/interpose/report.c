/** Counts what this process does, and prints the lines of the report. */
#include "plugin/interpose/report.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plugin/interpose/lines.h"

#define LINE_BYTES 256

typedef struct tally {
    uint64_t n_replaced, bytes_after, n_timed;
    double bytes_before, sec;
    uint64_t n_left[TW_IP_REASONS];
} tally_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tally_t tallies[TW_IP_KINDS];
static pid_t reporter; /**< the process that reports; 0: none yet */
static int rank_of_job;
static double reported_sec;

static void print_replaced(tw_ip_kind_t kind, const tally_t *tally)
{
    char time[64] = "";
    if (tally->n_replaced == 0) {
        return;
    }
    if (tally->n_timed > 0) {
        snprintf(time, sizeof(time), ", %.3f ms each on the stream (%llu timed)",
                 tally->sec * 1e3 / (double)tally->n_timed, (unsigned long long)tally->n_timed);
    }
    tw_ip_print("rank %d: %s: %llu calls quantized, %.0f bytes between nodes before, %llu after%s",
                rank_of_job, tw_ip_kind_name(kind), (unsigned long long)tally->n_replaced,
                tally->bytes_before, (unsigned long long)tally->bytes_after, time);
}

static void print_left(tw_ip_kind_t kind, const tally_t *tally)
{
    for (int why = TW_IP_REPLACED + 1; why < TW_IP_REASONS; why++) {
        if (tally->n_left[why] > 0) {
            tw_ip_print("rank %d: %s: %llu calls left alone: %s", rank_of_job, tw_ip_kind_name(kind),
                        (unsigned long long)tally->n_left[why], tw_ip_reason_text((tw_ip_reason_t)why));
        }
    }
}

/** Print all lines. The caller holds the lock. */
static void print(void)
{
    for (int kind = 0; kind < TW_IP_KINDS; kind++) {
        print_replaced((tw_ip_kind_t)kind, &tallies[kind]);
        print_left((tw_ip_kind_t)kind, &tallies[kind]);
    }
}

static void print_if_due(void)
{
    double interval = tw_ip_policy_get().report_sec, now = tw_time_sec();
    if (reporter == getpid() && interval > 0 && now - reported_sec >= interval) {
        reported_sec = now;
        print();
    }
}

static pid_t member; /**< the process that n_members counts for; a forked process starts again at 0 */
static int n_members, n_one_node;

/** Print the report if a communicator of this process spans nodes, or may. Comparing process ids keeps a
 *  forked child from printing its parent's report. */
static void __attribute__((destructor)) report_at_exit(void)
{
    static int was_here;
    int is_due = reporter == getpid() || (member == getpid() && n_members > n_one_node);
    if (is_due && !was_here && pthread_mutex_trylock(&lock) == 0) {
        was_here = 1;
        print();
        (void)pthread_mutex_unlock(&lock);
    }
}

static void __attribute__((constructor)) report_begin(void)
{
    tw_ip_lines_last(report_at_exit);
}

void tw_ip_report_member(int rank)
{
    (void)pthread_mutex_lock(&lock);
    if (member != getpid()) {
        member = getpid();
        n_members = n_one_node = 0;
        rank_of_job = reporter == getpid() ? rank_of_job : rank;
    }
    n_members++;
    (void)pthread_mutex_unlock(&lock);
}

void tw_ip_report_one_node(void)
{
    (void)pthread_mutex_lock(&lock);
    n_one_node++;
    (void)pthread_mutex_unlock(&lock);
}

void tw_ip_report_begin(int rank, int world, int n_nodes)
{
    tw_ip_policy_t policy = tw_ip_policy_get();
    const tw_ip_functions_t *real = tw_ip_real();
    char text[LINE_BYTES];
    int version = 0;
    (void)pthread_mutex_lock(&lock);
    if (reporter != getpid()) {
        reporter = getpid();
        rank_of_job = rank;
        reported_sec = tw_time_sec();
        if (real->ncclGetVersion) {
            (void)real->ncclGetVersion(&version);
        }
        tw_ip_print("rank %d of %d on %d nodes, NCCL %d: %s", rank, world, n_nodes, version,
                    tw_ip_policy_format(&policy, text, sizeof(text)));
    }
    (void)pthread_mutex_unlock(&lock);
}

void tw_ip_report_absent(int rank, int world, const char *why)
{
    static char said[LINE_BYTES];
    char line[LINE_BYTES];
    snprintf(line, sizeof(line), "rank %d of %d: nothing is quantized between these ranks: %s", rank, world,
             why);
    (void)pthread_mutex_lock(&lock);
    if (strcmp(said, line) != 0) {
        tw_ip_print("%s", line);
        memcpy(said, line, sizeof(said));
    }
    (void)pthread_mutex_unlock(&lock);
}

void tw_ip_report_no_registry(const char *line)
{
    static int was_said;
    (void)pthread_mutex_lock(&lock);
    if (!was_said) {
        tw_ip_print("%s", line);
    }
    was_said = 1;
    (void)pthread_mutex_unlock(&lock);
}

void tw_ip_report_replaced(tw_ip_kind_t kind, double bytes_before, uint64_t bytes_after)
{
    (void)pthread_mutex_lock(&lock);
    tallies[kind].n_replaced++;
    tallies[kind].bytes_before += bytes_before;
    tallies[kind].bytes_after += bytes_after;
    print_if_due();
    (void)pthread_mutex_unlock(&lock);
}

void tw_ip_report_time(tw_ip_kind_t kind, double sec)
{
    (void)pthread_mutex_lock(&lock);
    tallies[kind].n_timed++;
    tallies[kind].sec += sec;
    (void)pthread_mutex_unlock(&lock);
}

void tw_ip_report_left(tw_ip_kind_t kind, tw_ip_reason_t why)
{
    (void)pthread_mutex_lock(&lock);
    tallies[kind].n_left[why]++;
    print_if_due();
    (void)pthread_mutex_unlock(&lock);
}

static const char *const bypasses[] = {
    [TW_IP_WINDOWS] =
        "the job registers memory windows (ncclCommWindowRegister): collectives on them that are left to "
        "NCCL may go past the net plugin (symmetric memory, copy engines); what is quantized does not",
    [TW_IP_DEVICE_COMM] =
        "kernels of the job communicate by themselves (ncclDevCommCreate): what they move, also between "
        "nodes (GIN), goes past the net plugin, and is neither quantized nor counted",
    [TW_IP_ONE_SIDED] =
        "the job writes into other ranks' memory (ncclPutSignal, ncclSignal, ncclWaitSignal): what that "
        "moves (RMA) goes past the net plugin, and is neither quantized nor counted",
};
_Static_assert(sizeof(bypasses) / sizeof(bypasses[0]) == TW_IP_BYPASSES, "a text for each");

void tw_ip_report_bypass(tw_ip_bypass_t bypass)
{
    static int was_said[TW_IP_BYPASSES];
    (void)pthread_mutex_lock(&lock);
    if (!was_said[bypass]) {
        tw_ip_print("%s", bypasses[bypass]);
    }
    was_said[bypass] = 1;
    (void)pthread_mutex_unlock(&lock);
}
