/** Private to trainer/plan: cases. A case is a job of some framework on some cluster, as a file describes it,
 *  and says how long a step takes there today.
 *
 *  The model has equal layers. They are gathered two ahead, computed, and reduced, as frameworks of sharded
 *  data parallelism do. The network runs one operation after the other. The only fitted value is the time
 *  that a GPU computes for a token: it comes from one measured figure, or from the GPU's FLOP/s. */
#pragma once

#include <stdio.h>

#include "trainer/plan/plan.h"

TW_C_BEGIN

/** How the framework's library moves data between nodes. The formulas give seconds. S: bytes of the whole
 *  tensor; n: number of GPUs; N: number of nodes; B: bytes a second of a node's link in each direction. */
typedef enum tw_plan_algorithm {
    TW_PLAN_RING, /**< one ring of all GPUs: gather, reduce-scatter S (n-1)/n / B, all-reduce twice that */
    TW_PLAN_TREE, /**< all-reduce 2 S / B; other operations as in the ring */
    TW_PLAN_HIERARCHICAL, /**< each node once: S (N-1)/N / B, all-reduce twice that */
    TW_PLAN_ALGORITHM_COUNT
} tw_plan_algorithm_t;

typedef enum tw_plan_sharding {
    TW_PLAN_SHARD_FULL, /**< shards over all GPUs: FSDP's FULL_SHARD, ZeRO-3 */
    TW_PLAN_SHARD_NODE, /**< shards inside each node, a replica on each node: HYBRID_SHARD */
    TW_PLAN_SHARD_NONE, /**< whole weights on each GPU, gradients all-reduced: DDP */
    TW_PLAN_SHARDING_COUNT
} tw_plan_sharding_t;

/** One size of the job, and its measured rate, if it was measured. */
typedef struct tw_plan_point {
    int n_nodes;
    double micro_batch;    /**< sequences of a GPU in a micro-batch */
    int accumulation;      /**< micro-batches of a GPU in a step */
    double tokens_per_sec; /**< of all GPUs together; 0: not measured */
    double link_Bps;       /**< bytes a second of a node's link in each direction */
    const char *why;       /**< why this point is not predicted; NULL: it is */
} tw_plan_point_t;

typedef struct tw_plan_case {
    const char *name, *source; /**< borrowed from the file; source may be NULL */
    const char *note;          /**< NULL: none */
    double n_params, n_active; /**< n_active: parameters that a token uses, n_params if all */
    int n_layers;
    int n_nodes, gpus_per_node;   /**< n_nodes 0: each point has its own number */
    double link_Bps, in_node_Bps; /**< bytes a second each way: a node's link, a GPU's in the node */
    /** latency of one hop of a ring or tree, between nodes and inside a node */
    double link_latency_sec, in_latency_sec;
    int algorithm, sharding; /**< tw_plan_algorithm_t, tw_plan_sharding_t */
    int recompute;           /**< 1: activations are computed again in the backward pass */
    int reshard;             /**< 1: weights are gathered again in the backward pass */
    /** parameters that are gathered a third time, if units are smaller than the recomputed parts */
    double regathered_params;
    double gradient_bytes; /**< bytes of a gradient element as it is reduced */
    double micro_batch, sequence;
    int accumulation;
    double flops, peak_flops, mfu; /**< of a GPU; used if no point is fitted */
    /** bytes a second of a GPU's memory, which limits its codecs; 0: codecs run on processor cores */
    double codec_memory_Bps;
    /** plain bytes that a core encodes, or decodes, in a second, by tw_quant_kind_t; 0: measured here */
    double codec_Bps[TW_QUANT_KINDS];
    double gpu_memory_bytes; /**< 0: not known */
    tw_plan_point_t fitted;  /**< the point that token_sec is fitted to; n_nodes 0: none */
    tw_plan_point_t *points; /**< [n_points] measured points */
    size_t n_points;
} tw_plan_case_t;

typedef struct tw_plan_cases {
    struct json_t *root; /**< owns the texts */
    tw_plan_case_t *list;
    size_t n;
} tw_plan_cases_t;

/** Read cases from a file: {"cases": [...]}, or a single case (docs/planning.md lists the keys). `usual` has
 *  the values of keys that a case lacks; a value of 0 there is no default. Errors, logged with file and key:
 *  TW_ERR_FORMAT, also if the file cannot be read; TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_cases_read(const char *path, const tw_plan_case_t *usual, tw_plan_cases_t **out);
void tw_plan_cases_destroy(tw_plan_cases_t *cases);

/** Return the number of tokens of a step, of all GPUs together. */
double tw_plan_point_tokens(const tw_plan_case_t *given, const tw_plan_point_t *point);

typedef struct tw_plan_case_time {
    double step_sec;
    double compute_sec; /**< how long a GPU computes in the step */
    double network_sec; /**< how long the network's operations take without computing */
    double link_bytes;  /**< bytes through a node's link in each direction */
} tw_plan_case_time_t;

/** Find the seconds that a GPU computes for a token. TW_ERR_CONFIG (logged): the measured point is faster
 *  than the case's links allow; TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_case_fit(const tw_plan_case_t *given, double *token_sec);
/** Predict a step. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_case_predict(const tw_plan_case_t *given, const tw_plan_point_t *point, double token_sec,
                                 tw_plan_case_time_t *out);

/** Set the speeds in codecs [TW_QUANT_KINDS] that the case gives by codec_memory_Bps or codec_Bps. */
void tw_plan_case_codecs(const tw_plan_case_t *given, double delta_bits, tw_plan_speed_t *codecs);

/** Print predicted and measured steps side by side, as a Markdown table. Errors of tw_plan_case_fit. */
tw_status_t tw_plan_print_points(const tw_plan_cases_t *cases, FILE *out);

TW_C_END
