/** trainer/plan: predicts what a run will need: memory of a rank, bytes and time of a step.
 *
 *  Memory is that of an engine which is made, but never written to. Bytes follow the engine's arithmetic.
 *  Times come from a small simulation of a step. It visits units in the engine's order, posts gathers ahead
 *  and reductions behind as the engine does, with a rank's two threads, one that computes and one that
 *  communicates, on cores that may be too few, over one link a node. Work of the second thread, for messages,
 *  bytes and codecs, delays the first if they share a core.
 *
 *  Files: memory.c; traffic.c bytes and messages; speeds.c what codecs and copies take; timeline.c the
 *  simulated step; machine.c threads and link in simulated time; calibrate.c what a measured run says of a
 *  machine; report.c tables; layout.c tensors over ranks; main.c the program's flags, program.c what
 *  they ask for; program_cases.c, advice.c and case_*.c what others run elsewhere (case.h). */
#pragma once

#include "hpz/hpz.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** What a codec takes: seconds of a core for a parameter. */
typedef struct tw_plan_speed {
    double encode_sec, decode_sec;
} tw_plan_speed_t;

/** Bytes that transport buffers, pages of code and the like take in a process of the cluster in a box. */
#define TW_PLAN_PROCESS_BYTES 1.8e6

/** Bits of a bf16 weight in the lossless codec: a GPT's, in runs of 600 steps. */
#define TW_PLAN_LOSSLESS_WEIGHT_BITS (tw_quant_lossless_usual_bits(TW_TYPE_BF16) + 0.2)
/** Bits of fp8 weights' changes as a share of those of bf16 weights: a GPT's, in runs of 300 steps. */
#define TW_PLAN_FP8_SHARE 0.36
/** The set that has fp8 weights. */
#define TW_PLAN_FP8_SET "fp8"

/** The cluster that a run is planned for. */
typedef struct tw_plan_cluster {
    int n_nodes, ranks_per_node;
    double link_bps;         /**< rate of a node's link, each way; infinite: not the bottleneck */
    double link_burst_bytes; /**< bytes that a shaped link passes at once after it was idle */
    double in_node_bps;      /**< rate between the ranks of a node */
    double device_bytes;     /**< memory of a rank; 0: not known */
    double device_flops;     /**< FLOP/s that training reaches on a rank; 0: not known */
    double delta_bits;       /**< bits of a parameter in the lossless delta */
    double cores;            /**< cores of a node, for its ranks' threads; 0: one per rank */
    tw_plan_speed_t codecs[TW_QUANT_KINDS]; /**< by kind; zeros: free */
    /* Seconds of a core that communication takes; zeros: free. */
    double message_sec;                 /**< for a message sent, or received, however short */
    double inter_byte_sec, in_byte_sec; /**< for a byte sent and received, between nodes and inside one */
    double delay_sec;     /**< time that an operation waits besides, until other ranks' threads get a core */
    double update_sec;    /**< part of a step's computing that norm and update of the rank's shard take */
    double besides_bytes; /**< bytes of a rank's process besides all else, such as TW_PLAN_PROCESS_BYTES */
} tw_plan_cluster_t;
/** Return a cluster for tw_plan_memory_of alone; the caller sets delta_bits. If n_nodes does not divide
 *  world, each rank counts as a node. */
tw_plan_cluster_t tw_plan_cluster_of(int world, int n_nodes);

/* ---- memory -------------------------------------------------------------------------------------------- */

/** Return the bytes of the states of mixed-precision Adam on a rank: a parameter's weight has 2, its gradient
 *  2, the optimizer 12; stage 1 divides the last by the ranks, stage 2 the last two, stage 3 all. Source:
 *  ZeRO (arXiv 1910.02054), figure 1. */
double tw_plan_states_bytes(double n_params, int stage, int world);

/** Bytes that the process of the fullest rank holds. Of what is in files, only what is in use counts. */
typedef struct tw_plan_memory {
    double optimizer;   /**< moments, fp32, and masters beside bf16 weights */
    double weights;     /**< whole or part; hpZ's replicas */
    double gradients;   /**< bf16, whole or part, and fp32 sums */
    double moving;      /**< buffers for what is gathered and reduced, messages of deltas */
    double activations; /**< between and inside units */
    double scratch;     /**< scratch of the model and of Muon, and the memory that sampling takes on rank 0 */
    /** Most chunks that the collectives have on their way: some layers' weights, or half of TW_COLL_SCRATCH.
     *  A run holds fewer if links and ranks keep up with each other. */
    double chunks;
    double besides;    /**< what codecs keep, and besides_bytes */
    double off_device; /**< the share of all the above that is offloaded, to host memory or to files */
    double gpu;        /**< in addition, bytes of a GPU's memory, without what its driver takes */
} tw_plan_memory_t;

/** Plan the memory of resolved options. TW_ERR_NO_MEMORY, TW_ERR_CONFIG, TW_ERR_INVALID (logged). */
tw_status_t tw_plan_memory_of(const tw_train_options_t *options, const tw_model_t *model,
                              const tw_plan_cluster_t *cluster, tw_plan_memory_t *out);
double tw_plan_memory_sum(const tw_plan_memory_t *memory);
/** Return the bytes that rank 0 alone holds while it samples text (thinwire.sample_steps): whole weights in
 *  stage 3, and a model of its own to compute with. */
double tw_plan_sampling_bytes(const tw_train_options_t *options, const tw_model_t *model);

/* ---- bytes --------------------------------------------------------------------------------------------- */

/** What an operation sends. */
typedef struct tw_plan_flow {
    double inter_node, in_node; /**< bytes of all ranks together */
    /** messages that each rank sends and receives, signatures included; a piece counts as one chunk */
    double messages;
} tw_plan_flow_t;

/** The operations of one unit. */
typedef struct tw_plan_unit {
    tw_plan_flow_t gather;       /**< the step's first gather; in stages 1 and 2 it follows the update */
    tw_plan_flow_t gather_again; /**< each other gather of the step */
    tw_plan_flow_t reduce;
    /** momenta of matrices in the update: to their owners (from stage 1 on), and back */
    tw_plan_flow_t muon;
    /** Changes, after the update; a lossless delta's lengths come first. */
    tw_plan_flow_t lengths, sync;
} tw_plan_unit_t;

typedef struct tw_plan_traffic {
    tw_plan_unit_t *units; /**< [n_units], allocated */
    size_t n_units;
    tw_plan_flow_t report; /**< what ranks exchange at the end of a step */
    tw_plan_flow_t step;   /**< sum of all */
} tw_plan_traffic_t;

/** Compute the bytes of a step, to the byte; but lossless messages by their usual bits, and the lossless
 *  delta at cluster->delta_bits. TW_ERR_NO_MEMORY; TW_ERR_INVALID (logged): blocks that no codec has. */
tw_status_t tw_plan_traffic_of(const tw_train_options_t *options, const tw_model_t *model,
                               const tw_plan_cluster_t *cluster, tw_plan_traffic_t *out);
void tw_plan_traffic_cleanup(tw_plan_traffic_t *traffic);

/* ---- time ---------------------------------------------------------------------------------------------- */

/** Measure the codecs on this machine, on messages of these pieces of tensors (if they are large, of smaller
 *  pieces in proportion), with cold caches as in a step. It takes half a second. TW_ERR_NO_MEMORY and errors
 *  of quant. */
tw_status_t tw_plan_measure_codecs(const size_t *piece_elems, size_t n_pieces,
                                   tw_plan_speed_t codecs[TW_QUANT_KINDS]);
/** Measure the seconds of a core that a byte of such a message takes, if it is read from another process's
 *  memory, as ranks of a node do. TW_ERR_NO_MEMORY and the system's errors (logged). */
tw_status_t tw_plan_measure_copies(size_t message_elems, double *byte_sec);

typedef struct tw_plan_time {
    double step_sec, wait_sec; /**< wait_sec: time that the compute thread waits for operations */
    double codec_sec;          /**< seconds of a core that a rank's codecs take in a step */
} tw_plan_time_t;

/** Simulate a step; compute_sec is the computing of a step on a core. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_time_of(const tw_train_options_t *options, const tw_model_t *model,
                            const tw_plan_cluster_t *cluster, double compute_sec, tw_plan_time_t *out);

/** Set the cluster's figures from the --metrics of a plain stage 3 run with these options on this cluster, by
 *  the trainer or //bench:zero. Computing, norm and update, and communication take their processor time: a
 *  message that of the smallest operation, a byte inside a node in_byte_sec as measured, a byte between nodes
 *  what is left. If the run mostly waited, the link's rate is set so that the simulated step takes as long as
 *  the measured one. Otherwise the link keeps its rate less headers, and cores, if given, are fitted instead,
 *  as other programs run there, too. besides_bytes is set as well. TW_ERR_IO, TW_ERR_FORMAT (logged with the
 *  file). */
tw_status_t tw_plan_calibrate(const char *metrics, const tw_train_options_t *options, const tw_model_t *model,
                              tw_plan_cluster_t *cluster, double *compute_sec);

TW_C_END
