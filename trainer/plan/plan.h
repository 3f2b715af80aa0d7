/** trainer/plan: what a run will need and take, before it runs: memory of a rank, bytes of a step, time of a step.
 *
 *  Memory and bytes follow the engine's own arithmetic. Times come from a small simulation of a step: the units in the order in
 *  which the engine visits them, one processor and one link per rank, gathers asked for ahead and reductions left behind as the
 *  engine does it; codecs, and what else moving costs a processor, take their time on that processor.
 *
 *  Files: memory.c; traffic.c bytes; codecs.c their speeds; timeline.c the simulation; calibrate.c what a measured run says of
 *  a machine; report.c tables; main.c the program. */
#ifndef TW_TRAINER_PLAN_PLAN_H
#define TW_TRAINER_PLAN_PLAN_H

#include "hpz/hpz.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef enum tw_plan_codec {
    TW_PLAN_INT8,
    TW_PLAN_INT4,
    TW_PLAN_INT2,
    TW_PLAN_EXACT, /**< the exact delta's */
    TW_PLAN_CODEC_COUNT
} tw_plan_codec_t;

/** Of a rank's thread, seconds a parameter. */
typedef struct tw_plan_speed {
    double encode_sec, decode_sec;
} tw_plan_speed_t;

/** What the transport's buffers, pages of code and the like take in a process of the cluster in a box. */
#define TW_PLAN_PROCESS_BYTES 1.8e6

/** What a run is planned for. */
typedef struct tw_plan_cluster {
    int n_nodes, ranks_per_node;
    double link_bps;                             /**< of a node, each way; infinite: not the bottleneck */
    double in_node_bps;                          /**< between the ranks of a node */
    double device_bytes;                         /**< memory of a rank; 0: not said */
    double device_flops;                         /**< of a rank, that training reaches; 0: not said */
    double delta_bits;                           /**< the exact delta's, a parameter */
    tw_plan_speed_t codecs[TW_PLAN_CODEC_COUNT]; /**< zeros: free */
    double
        handling_sec; /**< that a rank's processor spends on moving a parameter once: gathered, or reduced */
    double besides_bytes; /**< that a rank's process takes of its own: TW_PLAN_PROCESS_BYTES */
} tw_plan_cluster_t;

/* ---- memory ------------------------------------------------------------------------------------------------ */

/** Bytes of the states of mixed-precision Adam on a rank: weights 2, gradients 2, optimizer 12 a parameter, of which stage 1
 *  divides the last by the ranks, stage 2 the last two, stage 3 all. Source: ZeRO (arXiv 1910.02054), figure 1. */
double tw_plan_states_bytes(double n_params, int stage, int n_ranks);

/** What this trainer's fullest rank holds, bytes. */
typedef struct tw_plan_memory {
    double optimizer;   /**< masters and moments, fp32 */
    double weights;     /**< whole or part, bf16; hpZ's replicas */
    double gradients;   /**< bf16, whole or part, and fp32 sums */
    double moving;      /**< places for what is gathered and reduced, messages of deltas */
    double activations; /**< between and inside units */
    double scratch;     /**< the model's */
    /** Chunks that the collectives have on their way (some layers' weights, depending on how ranks meet; at most
     *  TW_COLL_SCRATCH), and besides_bytes. */
    double besides;
} tw_plan_memory_t;

/** options: resolved. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_memory_of(const tw_train_options_t *options, const tw_model_t *model,
                              const tw_plan_cluster_t *cluster, tw_plan_memory_t *out);
double tw_plan_memory_sum(const tw_plan_memory_t *memory);

/* ---- bytes ------------------------------------------------------------------------------------------------- */

/** What moves for one unit each time, inter-node bytes of all ranks together. */
typedef struct tw_plan_unit {
    double gather,
        gather_again; /**< for the forward and for the backward pass (stages 1, 2: after the update, 0) */
    double reduce;
    double sync; /**< deltas, after the update */
} tw_plan_unit_t;

typedef struct tw_plan_traffic {
    tw_plan_unit_t *units; /**< [n_units], allocated */
    size_t n_units;
    double report;              /**< what ranks tell each other at the end of a step */
    double inter_node, in_node; /**< of a step, all together */
} tw_plan_traffic_t;

/** Without quantization, the exact delta at cluster->delta_bits; otherwise to the byte. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_traffic_of(const tw_train_options_t *options, const tw_model_t *model,
                               const tw_plan_cluster_t *cluster, tw_plan_traffic_t *out);
void tw_plan_traffic_cleanup(tw_plan_traffic_t *traffic);

/* ---- time -------------------------------------------------------------------------------------------------- */

/** Measure the codecs on this machine, on messages of so many parameters, a thread having a share of a core (1: all of it).
 *  A tenth of a second. TW_ERR_NO_MEMORY and errors of quant. */
tw_status_t tw_plan_measure_codecs(size_t message_elems, double core_share,
                                   tw_plan_speed_t codecs[TW_PLAN_CODEC_COUNT]);

typedef struct tw_plan_time {
    double step_sec, wait_sec; /**< wait: the processor idle for the link */
} tw_plan_time_t;

/** compute_sec: of a step, without waiting. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_time_of(const tw_train_options_t *options, const tw_model_t *model,
                            const tw_plan_cluster_t *cluster, double compute_sec, tw_plan_time_t *out);

/** From --metrics of a plain stage 3 run with these options on this cluster, the trainer's or //bench:zero's: the median
 *  compute time; what makes the simulation take the run's median step time: the handling of what moves or, where the link
 *  explains more than there is, a faster link; and besides_bytes. TW_ERR_IO, TW_ERR_FORMAT (logged with the file). */
tw_status_t tw_plan_calibrate(const char *metrics, const tw_train_options_t *options, const tw_model_t *model,
                              tw_plan_cluster_t *cluster, double *compute_sec);

TW_C_END

#endif
