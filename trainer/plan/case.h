/** Private to trainer/plan: cases. A case is a job of some framework on some cluster, described by a file; it
 *  tells what a step takes there today.
 *
 *  The model has equal layers that are gathered two ahead, computed, and reduced as frameworks of sharded
 *  data parallelism do it; operations follow each other on the network. Only the time that a GPU computes for
 *  a token is fitted: to one measured figure, or from the GPU's FLOP/s. */
#pragma once

#include <stdio.h>

#include "trainer/plan/plan.h"

TW_C_BEGIN

/** How the framework's library moves data between nodes. S: bytes of the whole tensor, n: all GPUs, N: nodes,
 *  B: a node's link, each way. */
typedef enum tw_plan_algorithm {
    TW_PLAN_RING, /**< one ring of all GPUs: gather, reduce-scatter S (n-1)/n / B, all-reduce twice that */
    TW_PLAN_TREE, /**< all-reduce 2 S / B; the others as the ring */
    TW_PLAN_HIERARCHICAL, /**< each node once: S (N-1)/N / B, all-reduce twice that */
    TW_PLAN_ALGORITHM_COUNT
} tw_plan_algorithm_t;

typedef enum tw_plan_sharding {
    TW_PLAN_SHARD_FULL, /**< shards over all GPUs: FSDP's FULL_SHARD, ZeRO-3 */
    TW_PLAN_SHARD_NODE, /**< shards inside each node, replicas across: HYBRID_SHARD */
    TW_PLAN_SHARD_NONE, /**< weights everywhere, gradients all-reduced: DDP */
    TW_PLAN_SHARDING_COUNT
} tw_plan_sharding_t;

/** A figure: measured, or to be predicted. */
typedef struct tw_plan_point {
    int n_nodes;
    double micro_batch;    /**< sequences of a GPU */
    int accumulation;      /**< micro-batches of a step */
    double tokens_per_sec; /**< of all GPUs together; 0: not measured */
    double link_Bps;       /**< rate of a node's link, each way */
    const char *why;       /**< why the point cannot be predicted; NULL: it can */
} tw_plan_point_t;

typedef struct tw_plan_case {
    const char *name, *source; /**< borrowed from the file; source may be NULL */
    const char *note;          /**< NULL: none */
    double n_params, n_active; /**< n_active: parameters that a token meets; n_params if it meets all */
    int n_layers;
    int n_nodes, gpus_per_node;   /**< n_nodes 0: each point has its own */
    double link_Bps, in_node_Bps; /**< bytes a second, each way: of a node's link, of a GPU inside its node */
    /** latency of a hop of a ring or tree, between nodes and inside one */
    double link_latency_sec, in_latency_sec;
    int algorithm, sharding; /**< tw_plan_algorithm_t, tw_plan_sharding_t */
    int recompute;           /**< 1: activations are computed again in the backward pass */
    int reshard;             /**< 1: weights are gathered again in the backward pass */
    /** parameters that are gathered a third time, if a unit is smaller than what is computed again */
    double regathered_params;
    double gradient_bytes; /**< bytes of a gradient element as it is reduced */
    double micro_batch, sequence;
    int accumulation;
    double flops, peak_flops, mfu; /**< of a GPU, if no figure is fitted */
    /** rate of a GPU's memory, which limits its codecs; 0: codecs run on processors */
    double codec_memory_Bps;
    /** plain bytes that a core encodes or decodes a second, by tw_quant_kind_t; 0: measured here */
    double codec_Bps[TW_QUANT_KINDS];
    double gpu_memory_bytes; /**< 0: not known */
    tw_plan_point_t fitted;  /**< point that is fitted; n_nodes 0: none */
    tw_plan_point_t *points; /**< [n_points] measured points */
    size_t n_points;
} tw_plan_case_t;

typedef struct tw_plan_cases {
    struct json_t *root; /**< owns the texts */
    tw_plan_case_t *list;
    size_t n;
} tw_plan_cases_t;

/** Read cases from a file: {"cases": [...]}, or a single case (docs/planning.md lists the keys). `usual` has
 *  the values of keys that cases lack; one that is 0 there has no default. TW_ERR_FORMAT (also if the file
 *  cannot be read), TW_ERR_NO_MEMORY (logged with file and key). */
tw_status_t tw_plan_cases_read(const char *path, const tw_plan_case_t *usual, tw_plan_cases_t **out);
/** Accepts NULL. */
void tw_plan_cases_destroy(tw_plan_cases_t *cases);

/** Return the tokens of a step, of all GPUs. */
double tw_plan_point_tokens(const tw_plan_case_t *given, const tw_plan_point_t *point);

typedef struct tw_plan_case_time {
    double step_sec;
    double compute_sec; /**< time of the step in which a GPU computes */
    double network_sec; /**< time that the operations alone would take */
    double link_bytes;  /**< bytes through a node's link, each way */
} tw_plan_case_time_t;

/** Find the seconds of computing that a token takes on a GPU. TW_ERR_CONFIG (logged): the measured figure
 *  to fit is faster than the case's links allow; TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_case_fit(const tw_plan_case_t *given, double *token_sec);
/** Predict a step. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_case_predict(const tw_plan_case_t *given, const tw_plan_point_t *point, double token_sec,
                                 tw_plan_case_time_t *out);

/** Set the codecs' speeds that the case gives, by codec_memory_Bps or codec_Bps, and leave the others alone.
 *  codecs: [TW_QUANT_KINDS]. */
void tw_plan_case_codecs(const tw_plan_case_t *given, double delta_bits, tw_plan_speed_t *codecs);

/** Print predicted beside measured steps as a table of Markdown. Errors of tw_plan_case_fit. */
tw_status_t tw_plan_print_points(const tw_plan_cases_t *cases, FILE *out);

TW_C_END
