/** The fault campaign: real jobs in the cluster in a box, of which one or two ranks or links fail at a random
 *  moment.
 *
 *  To be read in this order: plan.c (what fails, from a seed), main.c (the command line), campaign.c (a run
 *  from start to end), rank.c (what the ranks of the job do), inject.c (how a rank fails), judge.c (whether
 *  the other ranks reacted rightly), report.c. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_FAULTS_MAX_RANKS 64
#define TW_FAULTS_MAX 2
#define TW_FAULTS_TEXT_BYTES 160

/* ---- what fails ---------------------------------------------------------------------------------------- */

typedef enum tw_fault_kind {
    TW_FAULT_KILL, /**< the rank is killed */
    TW_FAULT_STOP, /**< the rank is stopped and stays so */
    TW_FAULT_EXIT, /**< the rank exits early, with code 0 and without a word */
    TW_FAULT_DOWN, /**< its node's link goes down, and stays so */
    TW_FAULT_FLAP, /**< its node's link is down for a while */
    TW_FAULT_LOSS, /**< its node's link loses some or all of what it sends */
    TW_FAULT_KIND_COUNT
} tw_fault_kind_t;

/** The phase of the job in which a rank or link fails. */
typedef enum tw_fault_phase {
    TW_FAULT_RENDEZVOUS,
    TW_FAULT_CREATION,    /**< while the communicator is made */
    TW_FAULT_OPERATION,   /**< during an operation */
    TW_FAULT_BETWEEN,     /**< before an operation that the other ranks have begun */
    TW_FAULT_DESTROY,     /**< while the rank leaves, after its operations */
    TW_FAULT_AFTER_FIRST, /**< during or between operations, after rank 0 has left */
    TW_FAULT_PHASE_COUNT
} tw_fault_phase_t;

typedef struct tw_fault {
    tw_fault_kind_t kind;
    int rank;
    double delay_sec; /**< time from the phase's begin on that rank */
    double down_sec;  /**< flap: how long the link is down */
    double loss;      /**< share of packets that are lost */
} tw_fault_t;

/** What fails in a run. It depends on the seed, the index and the job's shape alone. */
typedef struct tw_fault_plan {
    uint64_t seed, index;
    int n_nodes, ranks_per_node;
    tw_fault_phase_t phase;
    int n_faults;
    tw_fault_t faults[TW_FAULTS_MAX];
    int at_op; /**< operation in or before which the fault comes, or after which rank 0 leaves */
    /** 1: ranks that see the failure exit at once; 0: they destroy their objects first */
    int exits_at_once;
} tw_fault_plan_t;

#define TW_FAULTS_OPS 8

void tw_fault_plan_make(tw_fault_plan_t *plan, uint64_t seed, uint64_t index, int n_nodes,
                        int ranks_per_node);
const char *tw_fault_kind_name(tw_fault_kind_t kind);
const char *tw_fault_phase_name(tw_fault_phase_t phase);
/** Return 1 if the fault ends the rank's process, 0 if it changes its node's link. */
int tw_fault_ends_rank(const tw_fault_t *fault);
int tw_fault_node_of(const tw_fault_plan_t *plan, int rank);

/* ---- what happened ------------------------------------------------------------------------------------- */

/** What ranks write into the campaign's pipe. */
typedef struct tw_fault_record {
    int rank;
    int fault;          /**< >= 0: this fault happens now; -1: the rank has ended */
    double at_sec;      /**< by tw_time_sec, which all processes share */
    tw_status_t status; /**< at the end: the first error, or TW_OK */
    uint64_t named;     /**< at the end: bit r: rank r is named as failed */
    uint64_t n_wrong;   /**< at the end: elements of results that are not as expected */
    char where[32];     /**< at the end: step of the job in which the error came */
} tw_fault_record_t;

/** What is known of a run at its end. */
typedef struct tw_fault_story {
    double start_sec, limit_sec; /**< when the run began; how long after the last fault all must have ended */
    double fault_sec;            /**< when the last fault happened; 0: there was none */
    int is_lost[TW_FAULTS_MAX_RANKS];   /**< the rank was killed, stopped or has exited early */
    int has_ended[TW_FAULTS_MAX_RANKS]; /**< its last record is in `ends` */
    tw_fault_record_t ends[TW_FAULTS_MAX_RANKS];
    int n_left_over; /**< processes of the run that outlive it */
} tw_fault_story_t;

void tw_fault_story_add(tw_fault_story_t *story, const tw_fault_plan_t *plan,
                        const tw_fault_record_t *record);
/** Count the ranks that should still come to their end. */
int tw_fault_story_open(const tw_fault_story_t *story, const tw_fault_plan_t *plan);

/** Counts of what went wrong in a run; it is ok if all are 0. */
typedef struct tw_fault_verdict {
    int n_hangs; /**< ranks that did not end in time */
    /** ranks that named no rank, one that had not failed, or another one than the rest did */
    int n_wrong_names;
    int n_wrong_results;
    int n_left_over;
    double hang_sec;                /**< from the last fault to the last rank's end */
    char why[TW_FAULTS_TEXT_BYTES]; /**< the first thing that is wrong, or "" */
} tw_fault_verdict_t;

int tw_fault_verdict_ok(const tw_fault_verdict_t *verdict);
void tw_fault_judge(const tw_fault_plan_t *plan, const tw_fault_story_t *story, tw_fault_verdict_t *verdict);

/* ---- a rank -------------------------------------------------------------------------------------------- */

/** Makes the faults of this rank happen in time. */
typedef struct tw_fault_injector tw_fault_injector_t;
/** `fd` is the campaign's pipe. NULL: no memory (logged). */
tw_fault_injector_t *tw_fault_injector_create(const tw_fault_plan_t *plan, int rank, int fd);
/** Say that a phase begins. In the plan's phase, this rank's faults then happen after their delays, from a
 *  thread of their own; in_line: before this returns. Further calls do nothing. */
void tw_fault_injector_begin(tw_fault_injector_t *injector, tw_fault_phase_t phase, int in_line);
/** Wait until the faults that began have happened. Accepts NULL. */
void tw_fault_injector_destroy(tw_fault_injector_t *injector);

/** Run a rank of the job from start to end. Returns the exit code. */
int tw_fault_rank_main(const tw_fault_plan_t *plan, int fd);

/* ---- the campaign -------------------------------------------------------------------------------------- */

typedef struct tw_fault_options {
    uint64_t n_runs, first, seed;
    int n_nodes, ranks_per_node;
    const char *json; /**< path; NULL: none */
    int rank_fd;      /**< >= 0: this process is a rank of run `first` */
} tw_fault_options_t;

/** Sums of the runs' verdicts. */
typedef struct tw_fault_totals {
    uint64_t n_runs, n_bad, n_hangs, n_wrong_names, n_wrong_results, n_left_over;
} tw_fault_totals_t;

/** Make a run and judge it; if it is not ok, its ranks' log goes to stderr. An error means that the run could
 *  not be made (logged). */
tw_status_t tw_fault_run(const tw_fault_plan_t *plan, tw_fault_story_t *story, tw_fault_verdict_t *verdict);

/** Print what the campaign is, and the table's head. */
void tw_fault_report_head(const tw_fault_options_t *options);
/** Write a line of the table and one of JSON. TW_ERR_IO (logged): the file cannot be written. */
tw_status_t tw_fault_report_run(FILE *json, const tw_fault_plan_t *plan, const tw_fault_story_t *story,
                                const tw_fault_verdict_t *verdict);
void tw_fault_report_totals(const tw_fault_totals_t *totals);

TW_C_END
