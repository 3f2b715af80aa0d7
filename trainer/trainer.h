/** Thinwire trainer: trains a GPT-2, or a model of the Llama family, with ZeRO stages 0 to 3 over the
 *  collectives, from a DeepSpeed configuration file.
 *
 *  One call is one rank's whole run. Behind it are config/ (what was asked for), model/ (the network), cuda/
 *  and device/ (the same on a GPU), data/ (tokens), engine/ (the ZeRO stages) and checkpoint/. plan/ says
 *  before a run what it will need.
 *
 *  Threads: a run belongs to one thread; several may go on in one process, each with a communicator of its
 *  own. */
#pragma once

#include <signal.h>

#include "collectives/collectives.h"
#include "core/core.h"

TW_C_BEGIN

/** Results of a step, the same on all ranks, except for what a rank measures of itself: step_sec to
 *  exchange_processor_sec. */
typedef struct tw_trainer_step {
    uint64_t step;   /**< 1 for the first */
    double loss;     /**< mean over the batch, before the update */
    double val_loss; /**< after the update; NaN: not measured */
    double lr;
    double grad_norm; /**< 2-norm of the mean gradient, before clipping */
    uint64_t tokens;  /**< tokens of all ranks */
    double step_sec;  /**< time of the step without validation and checkpoint; it consists of: */
    double forward_sec, backward_sec, update_sec; /**< and, for the rest, the last reductions and the norm */
    /** Processor time of the step: of threads that compute, and of the process's others, which
     *  communicate. */
    double compute_processor_sec, progress_processor_sec;
    /** Parts of these: compute time after the gradients are reduced, for norm and update; progress time in
     *  the ranks' exchange of the step's figures, an operation of few bytes. */
    double update_processor_sec, exchange_processor_sec;
    /* The fields below cover the time from the last step's norm to this step's: new weights that an update
     * sends count with the step that needs them. */
    double wait_sec; /**< time that communication blocked the compute thread; mean over the ranks */
    /** Bytes sent by all ranks together, counted and planned. A lossless delta is planned once its lengths
     *  are known. */
    uint64_t inter_node_bytes, in_node_bytes, planned_inter_node_bytes;
    /** bits a parameter of the weights' changes, everything included; 0 without a delta */
    double delta_bits;
    /** Most memory of any rank's process so far, beyond what it held before the engine was made. */
    uint64_t memory_bytes;
    /** What lossy codecs did in this step to a sample of gradients (qgZ) and weights (qwZ) on all ranks: the
     *  2-norm of the error over that of the values, and the share of gradients that became 0. NaN in 15 of 16
     *  steps, and with lossless codecs. */
    double gradients_error, gradients_zeroed, weights_error;
    /** 1: loss or gradient is out of bounds; the step was skipped, or is rolled back (thinwire.bad_step) */
    int is_bad;
} tw_trainer_step_t;

/** Results of a run, the same on all ranks. */
typedef struct tw_trainer_result {
    int world, n_nodes, stage;
    uint64_t n_params, steps, tokens; /**< steps of this run; tokens of them all */
    double first_loss, last_loss;
    double val_loss; /**< at the end; NaN if the data has no validation split */
    double step_sec; /**< median on rank 0 */
    /** time of all steps, and of waiting for what the last ones left in flight; on rank 0 */
    double total_sec;
    /** Share of total_sec in which communication blocked the compute thread; mean over the ranks. */
    double wait_share;
    double delta_bits; /**< bits that all changes together took of a parameter */
    /** Bytes over all ranks and training steps. */
    uint64_t inter_node_bytes, planned_inter_node_bytes, in_node_bytes;
    /** Bytes besides training steps': for the first weights; validation; full syncs and checks; sampled
     *  text. */
    uint64_t load_inter_node_bytes, val_inter_node_bytes, upkeep_inter_node_bytes, sample_inter_node_bytes;
    /** Memory of the process that held most: its peak; before the engine was made; and planned, which is
     *  the latter and what plan/ gives for the rest. */
    uint64_t peak_rss_bytes, planned_rss_bytes, before_rss_bytes;
    uint64_t file_bytes; /**< bytes offloaded to files, on all ranks together */
    /** most bytes of a rank that are not offloaded, as thinwire.device_mem counts them */
    uint64_t device_bytes;
    int bytes_as_planned, replicas_equal, losses_finite; /**< 0 or 1 */
    /** With thinwire.lag_bound: how many blocks' replicas lagged further behind the master, over all deltas
     *  and ranks, and the largest lag of the last deltas. */
    uint64_t lag_blocks;
    double lag_max;
    int is_stopped; /**< 1: the run was asked to end before its last step */
} tw_trainer_result_t;

/** What a program needs to print a run's progress. */
typedef struct tw_trainer_output {
    uint64_t n_steps, steps_per_print;
    int breakdown;         /**< wall_clock_breakdown */
    uint64_t run_id;       /**< id of the run, which it keeps when it goes on from a checkpoint */
    uint64_t resumed_step; /**< step of the checkpoint from which the run went on; 0: a new run */
    int world, n_nodes;
    /** threads that compute: on this rank; the fewest and most on any */
    int n_threads, least_threads, most_threads;
    double flops_per_token; /**< operations of a training step for a token; recomputation does not count */
    double peak_flops;      /**< peak of a rank; 0: not known */
    double link_bps;        /**< rate of a node's link, each way; 0: not known */
} tw_trainer_output_t;

/** Arguments of a run; borrowed during it. */
typedef struct tw_trainer_params {
    const char *config;      /**< path of a JSON file; NULL: the defaults */
    const char *const *sets; /**< [n_sets] "zero_optimization.stage=3"; they override the file */
    size_t n_sets;
    /** A deterministic communicator on host memory, with a progress thread. NULL: the run joins the
     *  launcher's job, and leaves it at the end. */
    tw_coll_t *coll;
    /** Called on rank 0 before it needs others; may be NULL. If it fails (it logs why), no rank begins. */
    tw_status_t (*prepare)(void *ctx);
    /** called on every rank after each step; may be NULL */
    void (*on_step)(void *ctx, const tw_trainer_step_t *step);
    /** Called on rank 0 for each text of thinwire.sample_steps, after the step's on_step; may be NULL. `text`
     *  is prompt and sampled text in valid UTF-8; without a vocabulary, tokens' numbers. */
    void (*on_sample)(void *ctx, uint64_t step, const char *text);
    void *ctx;
    tw_trainer_output_t *output; /**< filled in before the first step; may be NULL */
    /** A flag that a handler of SIGTERM may set; may be NULL. Once it is not 0 on any rank, all ranks end
     *  after the current step, with a checkpoint if thinwire.checkpoint is given. */
    const volatile sig_atomic_t *stop;
} tw_trainer_params_t;

/** A combination of the trainer's features that has a name. */
typedef struct tw_trainer_set {
    const char *name; /**< "zero3-qwz" */
    /** for `sets`, NULL-terminated: what is on, and what is off whatever a configuration says */
    const char *keys[13];
    /** Variables that make a PyTorch job with TW_FSDP=1 send the same; NULL: plain, or not there */
    const char *torch;
} tw_trainer_set_t;
/** Return set `index`, plain data parallelism first; NULL past the last one. */
const tw_trainer_set_t *tw_trainer_set_get(size_t index);
/** Return the set of this name; NULL if there is none. */
const tw_trainer_set_t *tw_trainer_set_find(const char *name);

/** Do a run as one rank; collective over the ranks. TW_ERR_CONFIG: the file or a key (logged), or a machine
 *  has less memory than its ranks need (logged); TW_ERR_MISMATCH: an alarm, or the ranks were given different
 *  configurations, data, checkpoints or weights (rank 0 logs what, with rank and values); TW_ERR_IO,
 *  TW_ERR_FORMAT: data or checkpoint (logged with the file); TW_ERR_TIMEOUT: a live rank has not joined an
 *  operation for TW_COLL_TIMEOUT (logged with the operation and the rank); TW_ERR_PEER and others of the
 *  communicator. Errors of configuration, data or model are logged by rank 0, and by each other rank that has
 *  different ones; a rank without errors returns the status of the first that has one. */
tw_status_t tw_trainer_run(const tw_trainer_params_t *params, tw_trainer_result_t *result);

/** Check what a job of `world` ranks, all on this machine, would be given, before it is started:
 *  configuration, data, model, memory. Errors are logged once, and are those of tw_trainer_run. */
tw_status_t tw_trainer_check(const tw_trainer_params_t *params, int world, int n_nodes);

/** Print every key in force in a job of `world` ranks, and where its value comes from. TW_ERR_CONFIG as
 *  above. */
tw_status_t tw_trainer_print_config(const tw_trainer_params_t *params, int world, int n_nodes, FILE *out);

TW_C_END
