/** Thinwire collectives: exact and block-quantized collective operations over a transport.
 *
 *  An operation is posted, tested and waited for; several may be in flight. All ranks of a communicator post the same
 *  operations in the same order with matching arguments. Results do not depend on timing: the same input gives the same
 *  bits, and whatever is gathered is bit-identical on all ranks. */
#ifndef TW_COLLECTIVES_COLLECTIVES_H
#define TW_COLLECTIVES_COLLECTIVES_H

#include "core/core.h"
#include "quant/quant.h"
#include "transport/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_coll tw_coll_t;
typedef struct tw_coll_request tw_coll_request_t;

/** A communicator over `ranks` of the transport (NULL: all). Collective over those ranks: measures the links unless
 *  TW_COLL_MODEL gives them. The transport is borrowed and must outlive it; communicators of one transport need
 *  different ids (0 to 255), the same on all members; id uses the transport's tags from id << 40 on. */
typedef struct tw_coll_params {
    tw_transport_t *transport;
    const int *ranks; /**< [n_ranks] transport ranks in communicator order; NULL: all */
    int n_ranks;
    int id;
} tw_coll_params_t;

tw_status_t tw_coll_create(const tw_coll_params_t *params, tw_coll_t **out);
/** Cancels what is in flight and frees all requests. Accepts NULL. */
void tw_coll_destroy(tw_coll_t *coll);
int tw_coll_rank(const tw_coll_t *coll);
int tw_coll_size(const tw_coll_t *coll);
int tw_coll_n_nodes(const tw_coll_t *coll);

typedef enum tw_coll_op {
    TW_COLL_ALLGATHER,
    TW_COLL_REDUCE_SCATTER,
    TW_COLL_ALLREDUCE,
    TW_COLL_BROADCAST,
    TW_COLL_ALLTOALL,
    TW_COLL_BARRIER,
    TW_COLL_OP_COUNT
} tw_coll_op_t;

/** Exact sums are made in fp32 and rounded to the tensor's type k times on their way: once by "direct" and "exchange", on
 *  every node by "hierarchical", W - 1 times by "ring", log2(W) times, rounded up, by "halving". They are off by at most
 *  ((1 + u)^k - 1) * (|x_0| + ... + |x_(W-1)|), u = 2^-8 in bf16, 2^-11 in fp16, 2^-24 in fp32, besides fp32's own W * 2^-24.
 *  What travels to a mean of fp16 is a mean already, one rounding more: it does not overflow where sums would, unless the
 *  mean is within k roundings of the largest number. */
typedef enum tw_coll_reduction { TW_COLL_SUM, TW_COLL_MEAN } tw_coll_reduction_t;

/** One tensor of an operation. W = communicator size; shard r of a tensor of n_elems is counts[r] elements after those
 *  of the shards before it.
 *  all-gather      src: own shard            dst: whole tensor [n_elems]
 *  reduce-scatter  src: whole tensor         dst: own shard
 *  all-reduce      src: whole tensor         dst: whole tensor
 *  broadcast       src: unused               dst: whole tensor, read on the root, written elsewhere
 *  all-to-all      src: counts[r] elements for each rank r, in order; dst: recv_counts[r] from each rank, in order
 *  In place: src NULL (the shard or tensor is where it belongs inside dst; for reduce-scatter, src is the whole tensor
 *  and dst NULL: the shard is left in its place), or src pointing there. Otherwise they must not overlap. */
typedef struct tw_coll_segment {
    const void *src;
    void *dst;
    size_t n_elems;
    const size_t *counts;      /**< [W], sums to n_elems; NULL: tw_coll_shard_counts's even split */
    const size_t *recv_counts; /**< [W], all-to-all only; NULL: the even split of n_elems */
    uint32_t tensor;           /**< stochastic rounding: which tensor */
    uint64_t
        first_elem; /**< stochastic rounding: where in that tensor the segment begins, if it is a part of one */
    const tw_quant_codec_t *codec; /**< NULL: the operation's, without which there is none here. Copied. */
    int exact;                     /**< 1: not quantized, whatever the operation's codec (norms, biases) */
} tw_coll_segment_t;

/** The even split: n / W each, the first n % W shards one more. */
size_t tw_coll_shard_elems(size_t n_elems, int world, int rank);
size_t tw_coll_shard_offset(size_t n_elems, int world, int rank);

typedef struct tw_coll_args {
    tw_coll_op_t op;
    tw_type_t type;                    /**< of all segments; reductions need a float type */
    const tw_coll_segment_t *segments; /**< [n_segments], copied; counts are copied too */
    size_t n_segments;
    tw_coll_reduction_t reduction;
    float factor; /**< of a reduction: multiplies the sum or mean before it is rounded; 0: 1 */
    int root;     /**< broadcast */
    const tw_quant_codec_t *codec; /**< NULL: exact. All-gather, reduce-scatter, all-reduce only. Copied. */
    const tw_quant_codec_t
        *inner_codec; /**< two-hop reduce-scatter: codec inside the node; NULL: exact there */
    uint64_t seed;    /**< stochastic rounding: key */
    uint32_t step;    /**< stochastic rounding: training step */
    const char *algo; /**< NULL or "auto", or a name of tw_coll_algo_get */
    int force_codec;  /**< 1: never decline to exact, even where it is slower */
} tw_coll_args_t;

/** Validates, plans and starts. TW_ERR_INVALID (logged: which argument), TW_ERR_UNSUPPORTED (algorithm does not fit the
 *  topology; logged), TW_ERR_NO_MEMORY. The buffers are borrowed until the request is done. A post that fails counts as an
 *  operation: unless it fails on all ranks, the others get an error (logged with the rank), and the job is given up. */
tw_status_t tw_coll_post(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request);
/** Progress and look. TW_OK: done, request freed; TW_IN_PROGRESS; an error (TW_ERR_PEER, ...): freed too. */
tw_status_t tw_coll_test(tw_coll_request_t *request);
/** Progress until done; sleeps on the transport when nothing moves. Frees the request. All operations of all communicators of
 *  the transport progress meanwhile, so that ranks may wait for theirs in any order. TW_ERR_MISMATCH: the ranks' arguments
 *  differ (logged with the rank; the job is given up); TW_ERR_TIMEOUT: nothing has moved for TW_COLL_TIMEOUT (logged with what is awaited). */
tw_status_t tw_coll_wait(tw_coll_request_t *request);
/** post and wait. */
tw_status_t tw_coll_run(tw_coll_t *coll, const tw_coll_args_t *args);
/** Progress all operations in flight on the transport, of all its communicators, without looking at one of them. */
tw_status_t tw_coll_progress(tw_coll_t *coll);

/** What the last posted operation became: for benches and logs. */
typedef struct tw_coll_plan {
    const char *algo; /**< static storage */
    int quantized;    /**< 0: exact, also when a codec was given but declined */
    double model_sec; /**< the cost model's estimate */
    size_t chunk_bytes;
    const char *reason; /**< why quantizing was declined, or ""; valid until the next operation is posted */
} tw_coll_plan_t;
void tw_coll_last_plan(const tw_coll_t *coll, tw_coll_plan_t *plan);
/** NaN or Inf blocks met by this communicator's encoders. */
uint64_t tw_coll_nonfinite_blocks(const tw_coll_t *coll);

/** Rows of the algorithm table. */
typedef struct tw_coll_algo_info {
    tw_coll_op_t op;
    const char *name;
    const char *doc;
    int quantized; /**< 1: needs a codec; 0: exact */
} tw_coll_algo_info_t;
/** Row `index` of the table, static storage; NULL past its end. */
const tw_coll_algo_info_t *tw_coll_algo_get(size_t index);
const char *tw_coll_op_name(tw_coll_op_t op);

/** Bytes that this rank sends to other nodes in an operation, as planned: what the counters must show. */
tw_status_t tw_coll_planned_inter_node_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);

extern const tw_config_table_t tw_coll_config_table;

#ifdef __cplusplus
}
#endif

#endif
