/** Thinwire trainer: trains a GPT-2, or a model of the Llama family, with ZeRO stages 0 to 3 over the
 *  collectives, from a DeepSpeed configuration file.
 *
 *  One call is one rank's whole run. Its parts: config/ (the configuration), model/ (the network), cuda/
 *  and device/ (the network on a GPU), data/ (tokens), engine/ (the ZeRO stages) and checkpoint/. plan/
 *  predicts what a run will need.
 *
 *  Threads: a run belongs to one thread. A process may have several runs at once, each with its own
 *  communicator. */
#pragma once

#include <signal.h>

#include "collectives/collectives.h"
#include "core/core.h"

TW_C_BEGIN

/** Results of a step. They are the same on all ranks, except for the members step_sec to
 *  exchange_processor_sec, which are this rank's times. */
typedef struct tw_trainer_step {
    uint64_t step;   /**< the first step is 1 */
    double loss;     /**< mean over the batch, before the update */
    double val_loss; /**< after the update; NaN: no validation */
    double lr;
    double grad_norm; /**< 2-norm of the mean gradient, before clipping */
    uint64_t tokens;  /**< tokens of all ranks */
    double step_sec;  /**< seconds of the step without validation and checkpoint */
    /** parts of step_sec; the rest is the last reductions and the norm */
    double forward_sec, backward_sec, update_sec;
    /** Processor seconds of the step: of the threads that compute, and of the process's other threads, which
     *  communicate. */
    double compute_processor_sec, progress_processor_sec;
    /** update: the part of compute_processor_sec after gradients are reduced, for norm and update. exchange:
     *  the part of progress_processor_sec during the small operation that exchanges the step's figures. */
    double update_processor_sec, exchange_processor_sec;
    /* wait_sec to delta_bits cover the time from the end of the previous step's reductions to the end of this
     * step's. New weights that are sent after an update count with the step that needs them. */
    double wait_sec; /**< seconds that the compute thread waited for communication; mean over ranks */
    /** Bytes that all ranks together sent, and how many were planned. A lossless delta's bytes are planned
     *  when its lengths are known. */
    uint64_t inter_node_bytes, in_node_bytes, planned_inter_node_bytes;
    /** bits per parameter that the weights' changes took in messages; 0 without a delta */
    double delta_bits;
    /** Most memory that any rank's process has held so far, minus what it held before the engine was made. */
    uint64_t memory_bytes;
    /** Errors of lossy codecs in this step, on a sample of gradients (qgZ) and weights (qwZ) of all ranks:
     *  the 2-norm of the error over that of the values, and the share of gradients that became 0. NaN with
     *  lossless codecs, and in all but one of 16 steps. */
    double gradients_error, gradients_zeroed, weights_error;
    /** 1: loss or gradient norm is out of bounds; the step is skipped or rolled back (thinwire.bad_step) */
    int is_bad;
} tw_trainer_step_t;

/** Results of a run, the same on all ranks. */
typedef struct tw_trainer_result {
    int world, n_nodes, stage;
    uint64_t n_params, steps, tokens; /**< steps of this run; tokens of all these steps */
    double first_loss, last_loss;
    double val_loss; /**< at the end; NaN without a validation split */
    double step_sec; /**< median on rank 0 */
    /** seconds of all steps, and of waiting for the last operations; on rank 0 */
    double total_sec;
    /** Share of total_sec in which the compute thread waited for communication; mean over the ranks. */
    double wait_share;
    double delta_bits; /**< bits per parameter that all changes together took */
    /** Bytes of all ranks in all training steps. */
    uint64_t inter_node_bytes, planned_inter_node_bytes, in_node_bytes;
    /** Bytes outside training steps: for the first weights; for validation; for full syncs and checks; for
     *  sampling. */
    uint64_t load_inter_node_bytes, val_inter_node_bytes, upkeep_inter_node_bytes, sample_inter_node_bytes;
    /** Memory of the process that took the most after its engine was made: its peak; before_rss_bytes, which
     *  it held before that; and planned, which is before_rss_bytes plus the plan of plan/. */
    uint64_t peak_rss_bytes, planned_rss_bytes, before_rss_bytes;
    uint64_t file_bytes; /**< bytes offloaded to files, of all ranks together */
    /** most bytes of any rank that are not offloaded, counted like thinwire.device_mem */
    uint64_t device_bytes;
    int bytes_as_planned, replicas_equal, losses_finite; /**< 0 or 1 */
    /** With thinwire.lag_bound: the number of blocks of replicas that lagged more than that, over all deltas
     *  and ranks, and the largest lag after the last deltas. */
    uint64_t lag_blocks;
    double lag_max;
    int is_stopped; /**< 1: the run was asked to end before its last step */
} tw_trainer_result_t;

/** What a program needs to print a run's progress. */
typedef struct tw_trainer_output {
    uint64_t n_steps, steps_per_print;
    int breakdown;         /**< wall_clock_breakdown */
    uint64_t run_id;       /**< id of the run; a resumed run has the id of its checkpoint */
    uint64_t resumed_step; /**< step of the resumed checkpoint; 0: a new run */
    int world, n_nodes;
    /** threads that compute: on this rank, the fewest and the most on any rank */
    int n_threads, least_threads, most_threads;
    double flops_per_token; /**< of a training step, without recomputation */
    double peak_flops;      /**< peak FLOP/s of a rank; 0: not known */
    double link_bps;        /**< bits a second each way of a node's link; 0: not known */
} tw_trainer_output_t;

/** Arguments of a run. All pointers are borrowed until it ends. */
typedef struct tw_trainer_params {
    const char *config; /**< path of a JSON file; NULL: the defaults */
    /** [n_sets] such as "zero_optimization.stage=3"; they replace the file's values */
    const char *const *sets;
    size_t n_sets;
    /** A deterministic communicator for host memory, with a progress thread. NULL: the run joins the
     *  launcher's job, and leaves it at the end. */
    tw_coll_t *coll;
    /** Called on rank 0 before the other ranks are needed; may be NULL. It logs its errors. If it returns
     *  one, no rank begins. */
    tw_status_t (*prepare)(void *ctx);
    /** called on every rank after each step; may be NULL */
    void (*on_step)(void *ctx, const tw_trainer_step_t *step);
    /** Called on rank 0 for each text of thinwire.sample_steps, after the step's on_step; may be NULL. `text`
     *  is the prompt and the sampled text as valid UTF-8, or, without a vocabulary, the tokens' numbers. */
    void (*on_sample)(void *ctx, uint64_t step, const char *text);
    void *ctx;
    tw_trainer_output_t *output; /**< filled in before the first step; may be NULL */
    /** A flag that a handler of SIGTERM may set; may be NULL. After it is set on any rank, all ranks end
     *  after the current step. They save a checkpoint first if thinwire.checkpoint is set. */
    const volatile sig_atomic_t *stop;
} tw_trainer_params_t;

/** A named combination of the trainer's features. */
typedef struct tw_trainer_set {
    const char *name; /**< "zero3-qwz" */
    /** NULL-terminated, for tw_trainer_params_t.sets; they turn the set's features on and all others off */
    const char *keys[13];
    /** Variables that make a PyTorch job with TW_FSDP=1 send the same; NULL: there are none */
    const char *torch;
} tw_trainer_set_t;
/** Return set number `index`; 0 is plain data parallelism. NULL: there are not so many. */
const tw_trainer_set_t *tw_trainer_set_get(size_t index);
/** Return the set with this name, or NULL. */
const tw_trainer_set_t *tw_trainer_set_find(const char *name);

/** Do one rank's whole run. Collective over the ranks. Errors: TW_ERR_CONFIG (logged), the file or a key is
 *  wrong, or a machine has less memory than its ranks need; TW_ERR_MISMATCH, an alarm, or ranks have
 *  different configurations, data, checkpoints or weights (rank 0 logs rank and values); TW_ERR_IO,
 *  TW_ERR_FORMAT, data or a checkpoint (logged with the file); TW_ERR_TIMEOUT, a live rank has not joined an
 *  operation for TW_COLL_TIMEOUT (logged with operation and rank); TW_ERR_PEER and others of the
 *  communicator. Errors of configuration, data or model are logged by rank 0, and by other ranks only if
 *  theirs differ. A rank without an error returns the status of the first rank that has one. */
tw_status_t tw_trainer_run(const tw_trainer_params_t *params, tw_trainer_result_t *result);

/** Check configuration, data, model and memory of a job of `world` ranks, all on this machine, before it is
 *  started. Errors are those of tw_trainer_run, logged once. */
tw_status_t tw_trainer_check(const tw_trainer_params_t *params, int world, int n_nodes);

/** Print every key in force in a job of `world` ranks, and the source of its value. Errors are those of
 *  tw_trainer_run. */
tw_status_t tw_trainer_print_config(const tw_trainer_params_t *params, int world, int n_nodes, FILE *out);

TW_C_END
