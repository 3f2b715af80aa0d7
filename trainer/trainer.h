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

/** What a step did. The same on all ranks, but for what a rank measures of itself: step_sec to
 *  exchange_processor_sec. */
typedef struct tw_trainer_step {
    uint64_t step;   /**< 1 for the first */
    double loss;     /**< mean over the batch, before the update */
    double val_loss; /**< after the update; NaN where none was measured */
    double lr;
    double grad_norm;                             /**< 2-norm of the mean gradient, before clipping */
    uint64_t tokens;                              /**< tokens of all ranks */
    double step_sec;                              /**< without validation and checkpoint; of it: */
    double forward_sec, backward_sec, update_sec; /**< the rest: last reductions, and the norm */
    /** Processor time of the step: of the thread that computes, and of this process's others, which move what
     *  it asks for. */
    double compute_processor_sec, progress_processor_sec;
    /** Of the former, once the gradients are there: norm and update. Of the latter, in the ranks' exchange of
     *  what they know of the step: an operation with next to no bytes. */
    double update_processor_sec, exchange_processor_sec;
    /* What follows is of the time from the last step's norm to this step's: the new weights that an update
     * sends count with the step that needs them. */
    double wait_sec; /**< the compute thread blocked in communication; mean over the ranks */
    /** Sent by all ranks together: counted, and planned. A lossless delta's plan is made once its lengths
     *  are known. */
    uint64_t inter_node_bytes, in_node_bytes, planned_inter_node_bytes;
    double delta_bits; /**< of the weights' changes, a parameter, everything included; 0 without delta */
    /** Most that a rank's process has held so far, beyond what it held before the engine was made: of the
     *  rank with the most. */
    uint64_t memory_bytes;
    /** Of a sample of what codes that lose something sent in this step (qgZ's gradients, qwZ's weights), of
     *  all ranks: the 2-norm of what they changed, by that of what they were given; and the share of
     *  gradients that were not 0 and became it. NaN in 15 of 16 steps, and where nothing is lost. */
    double gradients_error, gradients_zeroed, weights_error;
    int is_bad; /**< loss or gradient out of bounds: skipped, or rolled back (thinwire.bad_step) */
} tw_trainer_step_t;

/** What a run came to. The same on all ranks. */
typedef struct tw_trainer_result {
    int world, n_nodes, stage;
    uint64_t n_params, steps, tokens; /**< steps of this run; tokens of them all */
    double first_loss, last_loss;
    double val_loss;  /**< at the end; NaN if the data has no validation split */
    double step_sec;  /**< median on rank 0 */
    double total_sec; /**< of all steps, with the wait for what the last ones left in flight; rank 0 */
    /** Of total_sec, that the compute thread was blocked in communication; mean over the ranks. */
    double wait_share;
    double delta_bits; /**< bits a parameter of all changes together */
    /** Over all ranks and training steps, complete. */
    uint64_t inter_node_bytes, planned_inter_node_bytes, in_node_bytes;
    /** In addition: the first weights; validation; full syncs and checks; sampled text. */
    uint64_t load_inter_node_bytes, val_inter_node_bytes, upkeep_inter_node_bytes, sample_inter_node_bytes;
    /** Of the rank that needed most; before: the engine was made; planned: that, and what plan/ says of the
     *  rest. */
    uint64_t peak_rss_bytes, planned_rss_bytes, before_rss_bytes;
    uint64_t file_bytes;   /**< of all ranks together: what is offloaded to files */
    uint64_t device_bytes; /**< largest of a rank: what is not offloaded, as thinwire.device_mem counts it */
    int bytes_as_planned, replicas_equal, losses_finite; /**< 0 or 1 */
    /** With thinwire.lag_bound: blocks whose replica lagged further behind the master, over all deltas and
     *  ranks, and the largest lag of the last deltas. */
    uint64_t lag_blocks;
    double lag_max;
    int is_stopped; /**< it was asked to end before its last step */
} tw_trainer_result_t;

/** What a configuration asks of a program's output. */
typedef struct tw_trainer_output {
    uint64_t n_steps, steps_per_print;
    int breakdown;         /**< wall_clock_breakdown */
    uint64_t run_id;       /**< a run that goes on from its checkpoint keeps it */
    uint64_t resumed_step; /**< of that checkpoint; 0: a new run */
    int world, n_nodes;
    int n_threads, least_threads, most_threads; /**< that compute: of this rank, and of any */
    double flops_per_token; /**< of a step, that the model asks for: what is computed again does not count */
    double peak_flops;      /**< of a rank; 0: not known */
    double link_bps;        /**< of a node, each way; 0: not known */
} tw_trainer_output_t;

/** Borrowed during the run. */
typedef struct tw_trainer_params {
    const char *config;      /**< path of a JSON file; NULL: the defaults */
    const char *const *sets; /**< [n_sets] "zero_optimization.stage=3", stronger than the file */
    size_t n_sets;
    /** Deterministic, with a progress thread, on host memory. NULL: joins the launcher's job, and leaves
     *  it. */
    tw_coll_t *coll;
    /** Or NULL; on rank 0, with what it does before it needs the others: where it fails (it logs why), no
     *  rank begins. */
    tw_status_t (*prepare)(void *ctx);
    void (*on_step)(void *ctx, const tw_trainer_step_t *step); /**< or NULL; on every rank, after each step */
    /** Or NULL; on rank 0, for each text of thinwire.sample_steps, after on_step of that step: prompt and
     *  what was sampled, valid UTF-8 (of token files without a vocabulary: tokens' numbers). */
    void (*on_sample)(void *ctx, uint64_t step, const char *text);
    void *ctx;
    tw_trainer_output_t *output; /**< or NULL; filled in before the first step */
    /** Or NULL. Once it is not 0 on any rank, as a handler of SIGTERM makes it, all ranks end after the step
     *  they are in, with a checkpoint if thinwire.checkpoint is given. */
    const volatile sig_atomic_t *stop;
} tw_trainer_params_t;

/** What the trainer has, in the combinations that are worth a name. */
typedef struct tw_trainer_set {
    const char *name; /**< "zero3-qwz" */
    /** for `sets`, NULL-terminated: what is on, and what is off whatever a configuration says */
    const char *keys[12];
    /** Variables that make a PyTorch job with TW_FSDP=1 send the same; NULL: plain, or not there */
    const char *torch;
} tw_trainer_set_t;
/** Plain data parallelism first. NULL past the last one. */
const tw_trainer_set_t *tw_trainer_set_get(size_t index);
/** NULL: there is none of that name. */
const tw_trainer_set_t *tw_trainer_set_find(const char *name);

/** Run as one rank, collective over the ranks. TW_ERR_CONFIG: the file or a key (logged), or a machine has
 *  less memory than its ranks need (logged); TW_ERR_MISMATCH: an alarm, or the ranks were given different
 *  configurations, data, checkpoints or weights (rank 0 logs what, with rank and values); TW_ERR_IO,
 *  TW_ERR_FORMAT: data or checkpoint (logged with the file); TW_ERR_TIMEOUT: a rank that lives has not come
 *  for TW_COLL_TIMEOUT (logged with the operation and the rank); TW_ERR_PEER and others of the communicator.
 *  What is wrong with the configuration, data or model is logged by rank 0, and by each other rank with which
 *  something else is wrong; a rank that is fine returns the status of the first that is not. */
tw_status_t tw_trainer_run(const tw_trainer_params_t *params, tw_trainer_result_t *result);

/** Look at what a job of so many ranks, all on this machine, would be given, before it is started:
 *  configuration, data, model, memory. What is wrong is logged once; errors as in tw_trainer_run. */
tw_status_t tw_trainer_check(const tw_trainer_params_t *params, int world, int n_nodes);

/** Print every key in force in a job of so many ranks, and where its value comes from. TW_ERR_CONFIG as
 *  above. */
tw_status_t tw_trainer_print_config(const tw_trainer_params_t *params, int world, int n_nodes, FILE *out);

TW_C_END
