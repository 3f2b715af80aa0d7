/** trainer/plan: predicts what a run will need: memory of a rank, bytes and time of a step.
 *
 *  Memory is measured on an engine that is made for this only, and never written to. Bytes follow the
 *  engine's arithmetic. Times come from a small simulation of a step. It visits units in the engine's order,
 *  and posts gathers ahead and reductions behind as the engine does. A rank has two threads there, one that
 *  computes and one that communicates, maybe on too few cores, and a node has one link. Messages, bytes and
 *  codecs take time of the second thread, which delays the first one if the two share a core.
 *
 *  Files: memory.c; traffic.c bytes and messages; speeds.c speeds of codecs and copies; timeline.c the
 *  simulated step; machine.c threads and link in simulated time; calibrate.c figures from a measured run;
 *  report.c tables; layout.c tensors over ranks; main.c flags of the program; program.c the program's work;
 *  program_cases.c, advice.c, case_*.c jobs of other frameworks (case.h). */
#pragma once

#include "hpz/hpz.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Speed of a codec: seconds of a core for each parameter. */
typedef struct tw_plan_speed {
    double encode_sec, decode_sec;
} tw_plan_speed_t;

/** Bytes of transport buffers, pages of code and the like in a process of the cluster in a box. */
#define TW_PLAN_PROCESS_BYTES 1.8e6

/** Bits of a bf16 weight in the lossless codec, measured on a GPT in runs of 600 steps. */
#define TW_PLAN_LOSSLESS_WEIGHT_BITS (tw_quant_lossless_usual_bits(TW_TYPE_BF16) + 0.2)
/** Bits of fp8 weights' changes as a share of bf16 weights'. Measured on a GPT in runs of 300 steps. */
#define TW_PLAN_FP8_SHARE 0.36
/** Name of the feature set with fp8 weights. */
#define TW_PLAN_FP8_SET "fp8"

/** The cluster that a run is planned for. */
typedef struct tw_plan_cluster {
    int n_nodes, ranks_per_node;
    double link_bps;         /**< bits a second each way of a node's link; infinite: not the bottleneck */
    double link_burst_bytes; /**< bytes that a shaped link sends at full speed after idling */
    double in_node_bps;      /**< bits a second between the ranks of a node */
    double device_bytes;     /**< memory of a rank; 0: not known */
    double device_flops;     /**< FLOP/s that training reaches on a rank; 0: not known */
    double delta_bits;       /**< bits that the lossless delta takes per parameter */
    double cores;            /**< cores of a node, shared by its ranks' threads; 0: one per rank */
    tw_plan_speed_t codecs[TW_QUANT_KINDS]; /**< by tw_quant_kind_t; zeros: no time */
    /* Seconds of a core that communication takes; 0: none. */
    double message_sec;                 /**< for each message sent or received, of any length */
    double inter_byte_sec, in_byte_sec; /**< for each byte sent and received, between nodes and inside one */
    double delay_sec;     /**< how long an operation waits until other ranks' threads get a core */
    double update_sec;    /**< the part of a step's computing for norm and update of a rank's shard */
    double besides_bytes; /**< other memory of a rank's process, such as TW_PLAN_PROCESS_BYTES */
} tw_plan_cluster_t;
/** Return a cluster for tw_plan_memory_of only. The caller sets delta_bits. If world is not a multiple of
 *  n_nodes, each rank counts as a node. */
tw_plan_cluster_t tw_plan_cluster_of(int world, int n_nodes);

/* ---- memory -------------------------------------------------------------------------------------------- */

/** Return the bytes of the states of mixed-precision Adam on a rank. For each parameter the weight has 2, the
 *  gradient 2 and the optimizer 12. Stage 1 divides the optimizer's by the number of ranks, stage 2 also the
 *  gradients', stage 3 all. Source: ZeRO (arXiv 1910.02054), figure 1. */
double tw_plan_states_bytes(double n_params, int stage, int world);

/** Bytes that the process of the fullest rank holds. If data are in files, only the part in use counts. */
typedef struct tw_plan_memory {
    double optimizer;   /**< moments, fp32 masters of bf16 weights */
    double weights;     /**< whole or a shard, and hpZ's replicas */
    double gradients;   /**< bf16, whole or a shard, and fp32 sums */
    double moving;      /**< buffers of gathers and reductions, and messages of deltas */
    double activations; /**< between units and inside them */
    double scratch;     /**< of the model, of Muon, and of sampling on rank 0 */
    /** Most bytes of chunks that wait in the collectives: those of some layers, or half of TW_COLL_SCRATCH. A
     *  run holds fewer if links and ranks keep up with each other. */
    double chunks;
    double besides;    /**< what codecs hold, and besides_bytes */
    double off_device; /**< the part of all the above that is offloaded to host memory or files */
    double gpu;        /**< in addition: GPU memory, without the driver's */
} tw_plan_memory_t;

/** Plan the memory of resolved options. TW_ERR_NO_MEMORY, TW_ERR_CONFIG, TW_ERR_INVALID (logged). */
tw_status_t tw_plan_memory_of(const tw_train_options_t *options, const tw_model_t *model,
                              const tw_plan_cluster_t *cluster, tw_plan_memory_t *out);
double tw_plan_memory_sum(const tw_plan_memory_t *memory);
/** Return the bytes that rank 0 holds in addition while it samples text (thinwire.sample_steps): whole
 *  weights in stage 3, and a second model to compute with. */
double tw_plan_sampling_bytes(const tw_train_options_t *options, const tw_model_t *model);

/* ---- bytes --------------------------------------------------------------------------------------------- */

/** The bytes and messages of an operation. */
typedef struct tw_plan_flow {
    double inter_node, in_node; /**< bytes of all ranks together */
    /** messages that each rank sends and receives, signatures included; a piece counts as one message */
    double messages;
} tw_plan_flow_t;

/** The operations of one unit. */
typedef struct tw_plan_unit {
    tw_plan_flow_t gather;       /**< the step's first gather; in stages 1 and 2 the one after the update */
    tw_plan_flow_t gather_again; /**< each other gather of the step */
    tw_plan_flow_t reduce;
    /** Muon's momenta in the update: to the matrices' owners (from stage 1 on), and back */
    tw_plan_flow_t muon;
    /** weights' changes after the update; the lengths of lossless ones are sent first */
    tw_plan_flow_t lengths, sync;
} tw_plan_unit_t;

typedef struct tw_plan_traffic {
    tw_plan_unit_t *units; /**< [n_units], allocated */
    size_t n_units;
    tw_plan_flow_t report; /**< the figures that ranks exchange at the end of a step */
    tw_plan_flow_t step;   /**< sum of all operations of a step */
} tw_plan_traffic_t;

/** Compute the bytes of a step. They are exact, except for lossless messages (their usual bits) and the
 *  lossless delta (cluster->delta_bits). TW_ERR_NO_MEMORY; TW_ERR_INVALID (logged): unsupported blocks. */
tw_status_t tw_plan_traffic_of(const tw_train_options_t *options, const tw_model_t *model,
                               const tw_plan_cluster_t *cluster, tw_plan_traffic_t *out);
void tw_plan_traffic_cleanup(tw_plan_traffic_t *traffic);

/* ---- time ---------------------------------------------------------------------------------------------- */

/** Measure the codecs on this machine, on messages of these pieces of tensors. Large pieces are all made
 *  smaller in proportion. Caches are cold, as in a step. Takes half a second. TW_ERR_NO_MEMORY and errors of
 *  quant. */
tw_status_t tw_plan_measure_codecs(const size_t *piece_elems, size_t n_pieces,
                                   tw_plan_speed_t codecs[TW_QUANT_KINDS]);
/** Measure the seconds of a core per byte when a message of message_elems bf16 numbers is read from another
 *  process's memory, as between ranks of a node. TW_ERR_NO_MEMORY and the system's errors (logged). */
tw_status_t tw_plan_measure_copies(size_t message_elems, double *byte_sec);

typedef struct tw_plan_time {
    double step_sec, wait_sec; /**< wait_sec: how long the compute thread waits for operations */
    double codec_sec;          /**< seconds of a core for a rank's codecs in a step */
} tw_plan_time_t;

/** Simulate a step. compute_sec: seconds of one core that a step computes. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_time_of(const tw_train_options_t *options, const tw_model_t *model,
                            const tw_plan_cluster_t *cluster, double compute_sec, tw_plan_time_t *out);

/** Set the cluster's figures from the --metrics of a plain stage 3 run with these options on this cluster, by
 *  the trainer or //bench:zero. Computing, norm and update take their processor time. Communication's
 *  processor time is divided: the operation with the fewest bytes gives the time of a message, a byte inside
 *  a node takes the measured in_byte_sec, and bytes between nodes take the rest. If the run mostly waited,
 *  the link's rate is fitted until the simulated step takes as long as the measured one. Otherwise the link
 *  keeps its rate less headers, and the cores, if given, are fitted, since other programs may use them.
 *  besides_bytes is set, too. TW_ERR_IO, TW_ERR_FORMAT (logged with the file). */
tw_status_t tw_plan_calibrate(const char *metrics, const tw_train_options_t *options, const tw_model_t *model,
                              tw_plan_cluster_t *cluster, double *compute_sec);

TW_C_END
