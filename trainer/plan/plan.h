/** trainer/plan: what a run will need and take, before it runs: memory of a rank, bytes of a step, time of a
 *  step.
 *
 *  Memory is that of an engine which is made, but never written to. Bytes follow the engine's arithmetic.
 *  Times come from a small simulation of a step: the units in the order in which the engine visits them,
 *  gathers asked for ahead and reductions left behind as the engine does it, by a rank's two threads, one
 *  that computes and one that moves, on cores that may be too few, over one link a node. What the second
 *  costs, messages, bytes and codecs, delays the first where they share a core.
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

/** What the transport's buffers, pages of code and the like take in a process of the cluster in a box. */
#define TW_PLAN_PROCESS_BYTES 1.8e6

/** What the lossless codec takes of a bf16 weight: of a GPT's, in runs of 600 steps. */
#define TW_PLAN_LOSSLESS_WEIGHT_BITS (tw_quant_lossless_usual_bits(TW_TYPE_BF16) + 0.2)

/** What a run is planned for. */
typedef struct tw_plan_cluster {
    int n_nodes, ranks_per_node;
    double link_bps;                        /**< of a node, each way; infinite: not the bottleneck */
    double link_burst_bytes;                /**< that a shaped link passes at once after it was idle */
    double in_node_bps;                     /**< between the ranks of a node */
    double device_bytes;                    /**< memory of a rank; 0: not known */
    double device_flops;                    /**< FLOP/s that training reaches on a rank; 0: not known */
    double delta_bits;                      /**< what the lossless delta takes, per parameter */
    double cores;                           /**< of a node, for its ranks' threads; 0: one per rank */
    tw_plan_speed_t codecs[TW_QUANT_KINDS]; /**< by kind; zeros: free */
    /* Seconds of a core that moving takes; zeros: free. */
    double message_sec;                 /**< for a message sent, or received, however short */
    double inter_byte_sec, in_byte_sec; /**< for a byte sent and received, between nodes and inside one */
    double delay_sec;     /**< that an operation waits besides, until other ranks' threads get a core */
    double update_sec;    /**< of a step's computing, the norm and the update of the own part */
    double besides_bytes; /**< memory of a rank's process besides all else: TW_PLAN_PROCESS_BYTES */
} tw_plan_cluster_t;
/** A cluster for tw_plan_memory_of alone; the caller sets delta_bits. If n_nodes does not divide world, each
 *  rank counts as a node. */
tw_plan_cluster_t tw_plan_cluster_of(int world, int n_nodes);

/* ---- memory -------------------------------------------------------------------------------------------- */

/** Bytes of the states of mixed-precision Adam on a rank: weights 2, gradients 2, optimizer 12 a parameter,
 *  of which stage 1 divides the last by the ranks, stage 2 the last two, stage 3 all. Source: ZeRO (arXiv
 *  1910.02054), figure 1. */
double tw_plan_states_bytes(double n_params, int stage, int world);

/** Bytes that the process of the fullest rank holds; of what is offloaded to files only what is in use. */
typedef struct tw_plan_memory {
    double optimizer;   /**< moments, fp32, and masters beside bf16 weights */
    double weights;     /**< whole or part; hpZ's replicas */
    double gradients;   /**< bf16, whole or part, and fp32 sums */
    double moving;      /**< places for what is gathered and reduced, messages of deltas */
    double activations; /**< between and inside units */
    double scratch;     /**< the model's, Muon's, and what sampling takes of rank 0 */
    /** Chunks that the collectives have on their way, at most: some layers' weights, or half of
     *  TW_COLL_SCRATCH. Held are fewer where links and ranks keep up with each other. */
    double chunks;
    double besides;    /**< what codecs keep, and besides_bytes */
    double off_device; /**< the share of all the above that is offloaded, to host memory or to files */
    double gpu;        /**< in addition: in a GPU's memory, without what its driver takes */
} tw_plan_memory_t;

/** options: resolved. TW_ERR_NO_MEMORY, TW_ERR_CONFIG, TW_ERR_INVALID (logged). */
tw_status_t tw_plan_memory_of(const tw_train_options_t *options, const tw_model_t *model,
                              const tw_plan_cluster_t *cluster, tw_plan_memory_t *out);
double tw_plan_memory_sum(const tw_plan_memory_t *memory);
/** Of rank 0 alone, while it samples text (thinwire.sample_steps): whole weights in stage 3, and a model of
 *  its own to compute with. */
double tw_plan_sampling_bytes(const tw_train_options_t *options, const tw_model_t *model);

/* ---- bytes --------------------------------------------------------------------------------------------- */

/** An operation. */
typedef struct tw_plan_flow {
    double inter_node, in_node; /**< bytes of all ranks together */
    double messages; /**< sent and received by each rank, signatures included; a chunk of each piece */
} tw_plan_flow_t;

/** The operations of one unit. */
typedef struct tw_plan_unit {
    tw_plan_flow_t gather;       /**< the step's first one: stages 1 and 2: after the update */
    tw_plan_flow_t gather_again; /**< each other gather of the step */
    tw_plan_flow_t reduce;
    tw_plan_flow_t muon; /**< momenta of matrices, in the update: from stage 1 on to owners, and back */
    /** changes, after the update; those of the lossless delta: their lengths first */
    tw_plan_flow_t lengths, sync;
} tw_plan_unit_t;

typedef struct tw_plan_traffic {
    tw_plan_unit_t *units; /**< [n_units], allocated */
    size_t n_units;
    tw_plan_flow_t report; /**< what ranks tell each other at the end of a step */
    tw_plan_flow_t step;   /**< all of it */
} tw_plan_traffic_t;

/** Without quantization, the lossless delta at cluster->delta_bits; otherwise to the byte. TW_ERR_NO_MEMORY;
 *  TW_ERR_INVALID: blocks that the codecs do not have; logged. */
tw_status_t tw_plan_traffic_of(const tw_train_options_t *options, const tw_model_t *model,
                               const tw_plan_cluster_t *cluster, tw_plan_traffic_t *out);
void tw_plan_traffic_cleanup(tw_plan_traffic_t *traffic);

/* ---- time ---------------------------------------------------------------------------------------------- */

/** Measure the codecs on this machine, on messages of such pieces of tensors (of larger ones, on smaller ones
 *  in proportion), as a step does it: caches hold nothing of them. Half a second. TW_ERR_NO_MEMORY and errors
 *  of quant. */
tw_status_t tw_plan_measure_codecs(const size_t *piece_elems, size_t n_pieces,
                                   tw_plan_speed_t codecs[TW_QUANT_KINDS]);
/** Seconds of a core a byte of such a message takes that is read from another process's memory, as ranks of a
 *  node do it. TW_ERR_NO_MEMORY and the system's errors (logged). */
tw_status_t tw_plan_measure_copies(size_t message_elems, double *byte_sec);

typedef struct tw_plan_time {
    double step_sec, wait_sec; /**< wait: the compute thread, for operations */
    double codec_sec;          /**< of a core, that a rank encodes and decodes in a step */
} tw_plan_time_t;

/** compute_sec: of a core, for a step. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_time_of(const tw_train_options_t *options, const tw_model_t *model,
                            const tw_plan_cluster_t *cluster, double compute_sec, tw_plan_time_t *out);

/** From --metrics of a plain stage 3 run with these options on this cluster, the trainer's or //bench:zero's.
 *  What computing, the norm and the update, and what moving takes is its processor time: a message from the
 *  smallest operation there is, a byte inside a node from in_byte_sec as measured, one between nodes from
 *  what is left. The link is what makes the simulated step take as long as the measured one, where that
 *  mostly waits; else what headers leave of it, and cores, where they are given, are what makes it so, down
 *  to half of them: other things run there, too. And besides_bytes. TW_ERR_IO, TW_ERR_FORMAT (logged with the
 *  file). */
tw_status_t tw_plan_calibrate(const char *metrics, const tw_train_options_t *options, const tw_model_t *model,
                              tw_plan_cluster_t *cluster, double *compute_sec);

TW_C_END
