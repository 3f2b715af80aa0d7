/** Thinwire hpz: who owns which part of the weights, the copy of the weights that stays inside a node, and
 *  how that copy follows the optimizer. Weights are bf16 and masters fp32. Both are in host memory, except
 *  replicas in another memory (params.memory). Replicas that are only filled by gathers may be fp32.
 *
 *  Words:
 *  unit       tensors that are gathered together: a layer
 *  primary    partition over all W = N * L ranks: a rank's part is what its optimizer updates
 *  secondary  partition over the L ranks of a node: a rank's part is its replica. Every node has the
 *             whole model in its replicas; with one rank per node, each rank has it (hpZ in host memory)
 *  rail       the ranks with the same place l on their nodes, one per node. They hold the same secondary
 *             part, and each of them owns one primary part inside it
 *  piece      the elements of one tensor in a part: a run of consecutive elements
 *  slice      a run of elements from each rank's part of a unit. Large units are sent slice by slice, so that
 *             buffers need not grow with the unit
 *  version    of a replica: the optimizer step whose weights it holds, set by the function that wrote it
 *
 *  layout.h says who owns what. memory.h lists the operations that another memory needs to hold replicas.
 *
 *  Inter-node bytes of a step, for M = 2 bytes a parameter and N = 2 (times N - 1 in general). Without
 *  replicas: M for each gather of the weights, one or two a step, and M for the gradients. With replicas,
 *  weights travel only as changes, which each owner sends once along its rail:
 *    8 bits, block 2048       8.008 / 16 M = 0.501 M
 *    4 bits, block 128        4.125 / 16 M = 0.258 M
 *    2 bits, block 64         2.25  / 16 M = 0.141 M
 *    lossless, b bits a weight  b     / 16 M, b about 1 to 4
 *  With gradients of 4 bits (0.258 M), a step sends 0.516 M with 4-bit changes, which is 0.172 of ZeRO-3's 3
 *  M, and 0.133 of it with 2 bits. Unquantized tensors (0.9 % of a GPT of width 128) add 0.005.
 *
 *  Threads: one thread at a time may use an hpz and its communicators. If params.coll has a progress thread,
 *  other threads may use the communicators meanwhile, but not the hpz. All ranks call in the same order.
 *  Source: ZeRO++ (arXiv 2306.10209), section 3.2, for the secondary partition. The quantized delta is error
 *  feedback as in EF21-P. */
#ifndef TW_HPZ_HPZ_H
#define TW_HPZ_HPZ_H

#include "collectives/collectives.h"
#include "hpz/layout.h"
#include "hpz/memory.h"

TW_C_BEGIN

/* ---- on a communicator --------------------------------------------------------------------------------- */

typedef struct tw_hpz tw_hpz_t;

/** A rank's place in a job that is only planned, not run. Ranks are numbered node by node. */
typedef struct tw_hpz_place {
    int rank, n_nodes, ranks_per_node;
} tw_hpz_place_t;

typedef struct tw_hpz_params {
    /** All ranks; borrowed, must outlive the hpz. NULL: the hpz is for planning, and only counts bytes. */
    tw_coll_t *coll;
    /** this rank's place if coll is NULL, otherwise unused; TW_ERR_INVALID if no such place exists */
    tw_hpz_place_t place;
    const tw_hpz_tensor_t *tensors; /**< [n_tensors], the same on all ranks, copied */
    size_t n_tensors;
    /** [n_tensors] names of the tensors in logs, borrowed for the hpz's life; NULL: logs print numbers */
    const char *const *names;
    int replicas;       /**< 0: no replicas, only the layout and the operations over all ranks */
    int fp32_replicas;  /**< 1: replicas are fp32 and cannot be synced; 0: they are bf16 */
    int lossless_delta; /**< 1: keep each weight's previous change, one byte, which lossless deltas need */
    /** codec of TW_HPZ_QUANTIZED syncs, if it has blocks; TW_QUANT_CHANGE: same as lossless_delta = 1 */
    tw_quant_codec_t delta;
    uint64_t seed; /**< seed of the stochastic rounding of quantized deltas */
    /** > 0: after each delta, count the blocks with a larger lag than this. A block's lag is max
     *  |bf16(master) - replica| over max |last update of the master|. Measuring lags keeps a copy of the
     *  masters of the last sync, 4 bytes for each weight of the primary part. */
    double lag_bound;
    int lag_plain; /**< 1: the next delta sends blocks beyond lag_bound unquantized, as bf16 */
    /** Most weights that all ranks of a rail together may have in unfinished syncs; 0: any number. This
     *  bounds the memory of syncs, for any number and size of units: 2 bytes a weight. Lossless deltas and
     *  lags take 2 more for each weight of the rank's own part. A larger unit is sent in slices of half as
     *  many weights, but of at least one step at each rank. One slice may always be under way. */
    size_t sync_elems;
    size_t slice_elems; /**< step of slices (see layout.h); 0: TW_HPZ_SLICE_ELEMS */
    /** Allocator of memory for replicas and previous changes. It returns zeroed memory, or NULL (logged). The
     *  memory remains the caller's, must outlive the hpz, and does not count in tw_hpz_memory_bytes. NULL:
     *  the hpz allocates host memory itself. */
    void *(*take)(void *ctx, size_t n_bytes);
    void *take_ctx;
    /** Operations on the memory that `take` returns; its ctx is borrowed for the hpz's life. NULL: host
     *  memory. In other memory, replicas support lossless deltas, but not quantized ones or lags. Without
     *  lossless_delta they support no syncs at all. */
    const tw_hpz_memory_t *memory;
} tw_hpz_params_t;

/** Make an hpz. Collective over params.coll: makes communicators of the same kind for the node and the rail.
 *  TW_ERR_UNSUPPORTED (logged): replicas where nodes have unequal numbers of ranks; deltas of fp32 replicas;
 *  params.memory without `take`, or an option that this memory does not support. TW_ERR_INVALID;
 *  TW_ERR_CONFIG (TW_HPZ_ variables); TW_ERR_NO_MEMORY; errors of tw_coll_group_create, reserve and group. */
tw_status_t tw_hpz_create(const tw_hpz_params_t *params, tw_hpz_t **out);
/** Destroy an hpz before its params.coll. Accepts NULL. */
void tw_hpz_destroy(tw_hpz_t *hpz);

const tw_hpz_layout_t *tw_hpz_layout(const tw_hpz_t *hpz);
/** Return the index of this rank's node, and this rank's index on its node. */
int tw_hpz_node(const tw_hpz_t *hpz);
int tw_hpz_local(const tw_hpz_t *hpz);

/** Return the piece of a tensor in a rank's primary part. */
tw_hpz_piece_t tw_hpz_piece_of_rank(const tw_hpz_t *hpz, size_t tensor, int rank);

/** Fill in the arguments of an all-gather of a unit over all ranks, from primary parts to the whole unit, or
 *  of a reduce-scatter in the other direction. `part`: this rank's primary part, [tw_hpz_primary_elems] of
 *  `type`; `full`: [tw_hpz_full_elems]. The caller adds codec, reduction, factor, seed and step, and runs,
 *  posts or plans it on params.coll. args->segments belongs to the hpz and is valid until the next call that
 *  uses the hpz. */
void tw_hpz_gather_args(tw_hpz_t *hpz, int unit, tw_type_t type, const void *part, void *full,
                        tw_coll_args_t *args);
void tw_hpz_reduce_args(tw_hpz_t *hpz, int unit, tw_type_t type, const void *full, void *part,
                        tw_coll_args_t *args);
/** Fill in the arguments of the reduce-scatter of one slice. `staged` holds only the slice's elements,
 *  segment after segment. Segment s holds consecutive elements of tensor s.tensor, from element s.first_elem
 *  on. `part` is the whole primary part. */
void tw_hpz_reduce_slice_args(tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_type_t type,
                              const void *staged, void *part, tw_coll_args_t *args);

/* ---- replicas ------------------------------------------------------------------------------------------ */

/** Return this rank's replica of a unit, [tw_hpz_secondary_elems] of bf16 or fp32, in params.memory.
 *  Borrowed; the functions below write it. */
const void *tw_hpz_replica(const tw_hpz_t *hpz, int unit);
/** Return the replica's previous changes, which a sync reads and writes: [tw_hpz_secondary_elems], borrowed.
 *  NULL without lossless_delta. */
const uint8_t *tw_hpz_states(const tw_hpz_t *hpz, int unit);
/** Return the replica's version; 0 if it was never written, is being synced, or its last sync failed. */
uint64_t tw_hpz_version(const tw_hpz_t *hpz, int unit);

/** Copy this rank's part of a whole unit into the replica, and set its version to `version` (> 0), as
 *  ZeRO++'s hpZ does. `full` is the whole unit, gathered over all ranks, in host memory or in params.memory.
 *  If params.memory reports an error, the version becomes 0. */
tw_status_t tw_hpz_store(tw_hpz_t *hpz, int unit, const void *full, uint64_t version);

/** Gather a whole unit from the replicas of the node: no byte leaves the node. `full`, [tw_hpz_full_elems] in
 *  params.memory, is the caller's and borrowed until the request is done. TW_ERR_STALE (logged with both
 *  versions): the replica holds another version, or a sync of the unit is under way. The node's communicator
 *  is then aborted, so that no other rank waits for this one. */
tw_status_t tw_hpz_gather_post(tw_hpz_t *hpz, int unit, uint64_t version, void *full,
                               tw_coll_request_t **request);

/** Declare which weights are fp8, before the first sync. exponents [n_tensors]: TW_HPZ_BF16 for a bf16
 *  tensor. With any other exponent the tensor's replica is e4m3(master / 2^exponent) * 2^exponent, stored as
 *  bf16, and lossless deltas send changes of the e4m3 codes. Borrowed for the hpz's life and the same on all
 *  ranks; changed only while no sync is under way. TW_ERR_UNSUPPORTED (logged): replicas that are fp32, not
 *  in host memory, or synced by quantized deltas; TW_ERR_NO_MEMORY. */
#define TW_HPZ_BF16 INT8_MIN
tw_status_t tw_hpz_exponents_set(tw_hpz_t *hpz, const int8_t *exponents);

typedef enum tw_hpz_sync {
    TW_HPZ_FULL,      /**< bf16(master) itself, after a load or on demand; clears the previous changes */
    TW_HPZ_QUANTIZED, /**< master - replica, quantized by params.delta; unquantized tensors as bf16 */
    TW_HPZ_LOSSLESS,  /**< bf16(master) - replica by tw_quant_delta_encode: lengths first, then deltas */
    TW_HPZ_SYNC_COUNT
} tw_hpz_sync_t;
const char *tw_hpz_sync_name(tw_hpz_sync_t kind);

/** Bring the replicas of a unit from their version to `version`, > 0, on all nodes, the owner's included.
 *  Deltas need a replica that was written before (TW_ERR_STALE).
 *  begin encodes and posts. master [tw_hpz_primary_elems] is this rank's own, in host memory or in
 *  params.memory. It is borrowed and must not change until finish, which waits, applies the changes and sets
 *  the version. Syncs under way take memory for sent and received messages, up to params.sync_elems weights.
 *  After TW_HPZ_FULL and TW_HPZ_LOSSLESS the replica is bf16(master), bit for bit, or for fp8 weights its fp8
 *  rounding.
 *  begin returns TW_IN_PROGRESS and does nothing if there is no room or the previous unit still has slices to
 *  begin. The caller must then finish another unit first.
 *  test is like finish, but returns TW_IN_PROGRESS instead of waiting for changes of other nodes.
 *  TW_ERR_FORMAT (logged with rank and unit): a change does not fit the replica. Its version becomes 0, which
 *  tw_hpz_check reports to the other ranks. Errors of collectives. */
tw_status_t tw_hpz_sync_begin(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, const float *master,
                              uint64_t version);
tw_status_t tw_hpz_sync_finish(tw_hpz_t *hpz, int unit);
tw_status_t tw_hpz_sync_test(tw_hpz_t *hpz, int unit);
/** Post the messages for which all ranks' lengths have arrived. Optional: begin and finish do so, too. */
tw_status_t tw_hpz_progress(tw_hpz_t *hpz);

/** Return the inter-node bytes that this rank sends in a sync of a unit. `bits`: bits a weight, if lossless.
 *  Needs params.coll and replicas. */
uint64_t tw_hpz_planned_sync_bytes(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, double bits);

/** Check that all replicas have this version and equal those of their rail. Collective over params.coll. If
 *  not, all ranks return TW_ERR_MISMATCH (logged with rank, unit and tensor), and a full sync repairs the
 *  replicas. Each rank sends 16 bytes a tensor. */
tw_status_t tw_hpz_check(tw_hpz_t *hpz, uint64_t version);
/** Return 1 if TW_HPZ_CHECK_STEPS asks for a check at this version, also of replicas outside the hpz. */
int tw_hpz_check_due(const tw_hpz_t *hpz, uint64_t version);

/* ---- what can be asked --------------------------------------------------------------------------------- */

/** What this rank has done since its hpz was made. */
typedef struct tw_hpz_counters {
    uint64_t inter_node_bytes, in_node_bytes; /**< bytes sent on the rail's and on the node's communicators */
    /** Expected value of inter_node_bytes, computed from the sizes of the messages. The size of a lossless
     *  delta is known only after the lengths have been exchanged. */
    uint64_t planned_inter_node_bytes;
    /** Size of all deltas that this rank has sent; 8 * delta_bytes / delta_elems is bits a weight. */
    uint64_t delta_bytes, delta_elems;
    uint64_t syncs[TW_HPZ_SYNC_COUNT]; /**< number of units synced, by kind */
    uint64_t lag_blocks;               /**< number of blocks beyond lag_bound, summed over all deltas */
    double lag_max;                    /**< largest lag, over the last delta of each unit */
    size_t lag_tensor;                 /**< tensor that had lag_max */
} tw_hpz_counters_t;
void tw_hpz_counters_get(tw_hpz_t *hpz, tw_hpz_counters_t *out);
/** Return the most bytes that syncs of this kind hold at a time, if a lossless change takes `bits` bits a
 *  weight. Buffers are allocated for the worst case, but only bytes that are written count. kind
 *  TW_HPZ_SYNC_COUNT: the most of any kind, counting whole buffers. */
size_t tw_hpz_sync_bytes(const tw_hpz_t *hpz, tw_hpz_sync_t kind, double bits);
/** Return the bytes of memory held for replicas, states and syncs under way. */
size_t tw_hpz_memory_bytes(const tw_hpz_t *hpz);

extern const tw_config_table_t tw_hpz_config_table;

TW_C_END

#endif
