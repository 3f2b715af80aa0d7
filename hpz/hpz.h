/** Thinwire hpz: who owns which part of the weights, the copy of the weights that stays inside a node, and
 *  how that copy follows the optimizer. Weights are bf16, masters fp32, in host memory unless replicas are
 *  elsewhere; replicas that gathers alone fill may be fp32.
 *
 *  Words:
 *  unit       tensors that are gathered together: a layer
 *  primary    partition over all W = N * L ranks: the part of a rank is what its optimizer updates
 *  secondary  partition over the L ranks of a node: the part of a rank is its replica. Every node has the
 *             whole model in its replicas; with one rank per node, each rank has it (hpZ in host memory)
 *  rail       the ranks with the same place l on their nodes, one per node. They hold the same secondary
 *             part, and each is the owner of a primary one inside it
 *  piece      the run of one tensor's elements in a part
 *  slice      of a unit: a run of each of its parts, so that buffers need not grow with the unit
 *  version    of a replica: the optimizer step whose weights it holds, stamped by whoever wrote it
 *
 *  layout.h says who owns what, memory.h what other memory than the host's must do to hold replicas.
 *
 *  Inter-node bytes of a step, for M = 2 bytes a parameter and N = 2 (times N - 1 in general). Without
 *  replicas: M for each gather of the weights, one or two a step, and M for the gradients. With them weights
 *  travel only as changes, sent once by their owners along the rail:
 *    8 bits, block 2048       8.008 / 16 M = 0.501 M
 *    4 bits, block 128        4.125 / 16 M = 0.258 M
 *    2 bits, block 64         2.25  / 16 M = 0.141 M
 *    lossless, b bits a weight  b     / 16 M, b about 1 to 4
 *  With gradients of 4 bits (0.258 M) that is 0.516 M, 0.172 of ZeRO-3's 3 M, for 4 bits and 0.133 for 2;
 *  what is quantized in neither (norms and biases, 0.9 % of a GPT of width 128) adds 0.005.
 *
 *  Threads: one at a time for an hpz and its communicators, or any where params.coll has a progress thread,
 *  but never two calls of one hpz at the same time. All ranks call in the same order.
 *
 *  Source: ZeRO++ (arXiv 2306.10209), section 3.2, for the secondary partition; the delta is error feedback
 *  as of EF21-P. */
#ifndef TW_HPZ_HPZ_H
#define TW_HPZ_HPZ_H

#include "collectives/collectives.h"
#include "hpz/layout.h"
#include "hpz/memory.h"

TW_C_BEGIN

/* ---- on a communicator --------------------------------------------------------------------------------- */

typedef struct tw_hpz tw_hpz_t;

/** Place of a rank in a job that is only planned. Ranks are numbered node by node. */
typedef struct tw_hpz_place {
    int rank, n_nodes, ranks_per_node;
} tw_hpz_place_t;

typedef struct tw_hpz_params {
    /** All ranks; borrowed, must outlive the hpz. NULL: the hpz is for planning, and only counts bytes. */
    tw_coll_t *coll;
    /** this rank's place, if coll is NULL; TW_ERR_INVALID if it is impossible */
    tw_hpz_place_t place;
    const tw_hpz_tensor_t *tensors; /**< [n_tensors], the same on all ranks, copied */
    size_t n_tensors;
    /** [n_tensors] what logs call them, borrowed for the hpz's life; NULL: numbers */
    const char *const *names;
    int replicas;       /**< 0: no replicas, only the layout and the operations over all ranks */
    int fp32_replicas;  /**< 1: replicas are fp32, and have no syncs; 0: they are bf16 */
    int lossless_delta; /**< 1: keep each replicated weight's last change, a byte: lossless deltas need it */
    /** codec of TW_HPZ_QUANTIZED, if it has blocks; TW_QUANT_CHANGE: as lossless_delta */
    tw_quant_codec_t delta;
    uint64_t seed; /**< seed of delta's stochastic rounding */
    /** > 0: count the blocks whose lag is larger after a delta. A block's lag is max |bf16(master) - replica|
     *  over max |last update of the master|. This keeps the masters of the last sync: 4 bytes for each weight
     *  of the primary part. */
    double lag_bound;
    int lag_plain; /**< 1: the next delta sends those blocks plain, as bf16 */
    /** Most weights of a rail, all its ranks' together, whose syncs are under way at a time; 0: any number.
     *  It bounds the memory of syncs, whatever the number and the size of units: 2 bytes a weight; lossless
     *  deltas and lags take 2 more for each weight of the own part. A larger unit goes in slices of half as
     *  many weights, but of at least one step at each rank. One slice may always be under way. */
    size_t sync_elems;
    size_t slice_elems; /**< step of slices (layout.h); 0: the usual one */
    /** Returns zeroed memory for replicas and the previous changes, NULL (logged) if there is none. The
     *  memory stays the caller's, outlives the hpz, and does not count in tw_hpz_memory_bytes. take NULL: the
     *  hpz allocates its own. */
    void *(*take)(void *ctx, size_t n_bytes);
    void *take_ctx;
    /** Operations of the memory that `take` returns; its ctx is borrowed for the hpz's life. NULL: the
     *  host's. Other memory supports lossless deltas, but neither quantized ones nor lags, and without
     *  lossless_delta no syncs at all. */
    const tw_hpz_memory_t *memory;
} tw_hpz_params_t;

/** Collective over params.coll: makes communicators like it for the node and for the rail.
 *  TW_ERR_UNSUPPORTED (logged): replicas where nodes have unequal numbers of ranks; deltas of fp32 replicas;
 *  params.memory without `take`, or with what that memory cannot do; errors of its reserve and group;
 *  TW_ERR_INVALID, TW_ERR_CONFIG (TW_HPZ_ variables), TW_ERR_NO_MEMORY, errors of tw_coll_group_create. */
tw_status_t tw_hpz_create(const tw_hpz_params_t *params, tw_hpz_t **out);
/** Call it before params.coll is destroyed. Accepts NULL. */
void tw_hpz_destroy(tw_hpz_t *hpz);

const tw_hpz_layout_t *tw_hpz_layout(const tw_hpz_t *hpz);
/** Return this rank's node, and its place on the node. */
int tw_hpz_node(const tw_hpz_t *hpz);
int tw_hpz_local(const tw_hpz_t *hpz);

/** Return the piece of a tensor in a rank's primary part. */
tw_hpz_piece_t tw_hpz_piece_of_rank(const tw_hpz_t *hpz, size_t tensor, int rank);

/** Fill in the arguments of an all-gather of a unit over all ranks, from primary parts to the whole unit, or
 *  of a reduce-scatter back. `part` is this rank's, [tw_hpz_primary_elems] of `type`; full:
 *  [tw_hpz_full_elems]. The caller adds codec, reduction, factor, seed and step, and runs, posts or plans it
 *  on params.coll. args->segments belongs to the hpz, and is valid until the next of these calls. */
void tw_hpz_gather_args(tw_hpz_t *hpz, int unit, tw_type_t type, const void *part, void *full,
                        tw_coll_args_t *args);
void tw_hpz_reduce_args(tw_hpz_t *hpz, int unit, tw_type_t type, const void *full, void *part,
                        tw_coll_args_t *args);
/** Fill in the arguments of the reduce-scatter of one slice. `staged` has the slice's elements alone, segment
 *  after segment; segment s is the run of tensor s.tensor that begins at element s.first_elem. `part` is the
 *  whole primary part. */
void tw_hpz_reduce_slice_args(tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_type_t type,
                              const void *staged, void *part, tw_coll_args_t *args);

/* ---- replicas ------------------------------------------------------------------------------------------ */

/** Return this rank's replica of a unit, [tw_hpz_secondary_elems] of bf16 or fp32, in params.memory:
 *  borrowed, written by the calls below. */
const void *tw_hpz_replica(const tw_hpz_t *hpz, int unit);
/** Return the replica's previous changes, which a sync reads and writes: [tw_hpz_secondary_elems], borrowed.
 *  NULL without lossless_delta. */
const uint8_t *tw_hpz_states(const tw_hpz_t *hpz, int unit);
/** Return the replica's version; 0 if it was never written, or its last sync failed. */
uint64_t tw_hpz_version(const tw_hpz_t *hpz, int unit);

/** Copy this rank's part out of a whole unit into the replica, and stamp it with `version` (> 0), as ZeRO++'s
 *  hpZ does. `full` is the unit as gathered over all ranks, in host memory or in params.memory. After an
 *  error of params.memory the version is 0. */
tw_status_t tw_hpz_store(tw_hpz_t *hpz, int unit, const void *full, uint64_t version);

/** Gather a whole unit from the replicas of the node: no byte leaves the node. `full`, [tw_hpz_full_elems],
 *  is in params.memory, the caller's, and lent until the request is done. TW_ERR_STALE (logged with both
 *  versions): the replica holds another version, or a sync of the unit is under way; then the node's
 *  communicator is given up, so that no rank waits for this one. */
tw_status_t tw_hpz_gather_post(tw_hpz_t *hpz, int unit, uint64_t version, void *full,
                               tw_coll_request_t **request);

/** fp8 weights, before the first sync. exponents [n_tensors]: TW_HPZ_BF16, or the tensor's replica is
 *  e4m3(master / 2^exponent) * 2^exponent as bf16, and lossless deltas are changes of such codes. Borrowed
 *  for the hpz's life; the same on all ranks, and changed only while no sync is under way. TW_ERR_UNSUPPORTED
 *  (logged): replicas of fp32, in memory elsewhere, or with quantized deltas; TW_ERR_NO_MEMORY. */
#define TW_HPZ_BF16 INT8_MIN
tw_status_t tw_hpz_exponents_set(tw_hpz_t *hpz, const int8_t *exponents);

typedef enum tw_hpz_sync {
    TW_HPZ_FULL, /**< bf16(master) itself: after a load, on resume, on demand; lossless deltas begin anew */
    TW_HPZ_QUANTIZED, /**< master - replica through params.delta; unquantized tensors plain */
    TW_HPZ_LOSSLESS,  /**< bf16(master) - replica by tw_quant_delta_encode: lengths first, then the changes */
    TW_HPZ_SYNC_COUNT
} tw_hpz_sync_t;
const char *tw_hpz_sync_name(tw_hpz_sync_t kind);

/** Bring the replicas of a unit from their version to `version`, > 0, on all nodes, the owner's included.
 *  Deltas need a replica (TW_ERR_STALE).
 *  begin encodes and posts; master [tw_hpz_primary_elems], own, in host memory or where params.memory is, is
 *  borrowed, unchanged, until finish, which waits, applies and stamps. As many weights may be under way as
 *  params.sync_elems allows; they take memory for what is sent and received. After TW_HPZ_FULL and
 *  TW_HPZ_LOSSLESS the replica is bf16(master), bit for bit; of fp8 weights what they are rounded to.
 *  begin: TW_IN_PROGRESS: no room, or not all slices of the unit before are under way yet; nothing was done:
 *  finish another one first.
 *  test is finish that does not wait: TW_IN_PROGRESS as long as changes of other nodes are not there.
 *  TW_ERR_FORMAT (logged with the rank and the unit): a change does not fit the replica; version is 0 then,
 *  and tw_hpz_check tells the other ranks. Errors of collectives. */
tw_status_t tw_hpz_sync_begin(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, const float *master,
                              uint64_t version);
tw_status_t tw_hpz_sync_finish(tw_hpz_t *hpz, int unit);
tw_status_t tw_hpz_sync_test(tw_hpz_t *hpz, int unit);
/** Post the messages whose lengths have come from all ranks. Optional: begin and finish do it, too. */
tw_status_t tw_hpz_progress(tw_hpz_t *hpz);

/** Return the inter-node bytes that this rank sends in a sync of a unit; lossless: `bits` a weight. */
uint64_t tw_hpz_planned_sync_bytes(tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, double bits);

/** Check that all replicas are at `version`, and equal to those of their rail. Collective over params.coll.
 *  TW_ERR_MISMATCH on all ranks if not (logged with the rank, the unit and the tensor): a full sync mends it.
 *  It sends 16 bytes a tensor and rank. */
tw_status_t tw_hpz_check(tw_hpz_t *hpz, uint64_t version);
/** Return 1 if TW_HPZ_CHECK_STEPS asks for a check at this version, of these replicas or others. */
int tw_hpz_check_due(const tw_hpz_t *hpz, uint64_t version);

/* ---- what can be asked --------------------------------------------------------------------------------- */

/** What this rank has done since its hpz was made. */
typedef struct tw_hpz_counters {
    uint64_t inter_node_bytes, in_node_bytes; /**< bytes sent on the communicators of node and rail */
    /** What inter_node_bytes must be, computed from the sizes of the messages. A lossless delta's size is
     *  known once the lengths have been exchanged. */
    uint64_t planned_inter_node_bytes;
    /** Size of this rank's deltas, quantized and lossless: 8 * bytes / elems is bits a weight. */
    uint64_t delta_bytes, delta_elems;
    uint64_t syncs[TW_HPZ_SYNC_COUNT]; /**< how many units were synced */
    uint64_t lag_blocks;               /**< blocks beyond lag_bound, after all deltas together */
    double lag_max;                    /**< largest lag of the last delta of each unit */
    size_t lag_tensor;                 /**< tensor that had lag_max */
} tw_hpz_counters_t;
void tw_hpz_counters_get(tw_hpz_t *hpz, tw_hpz_counters_t *out);
/** Return the most bytes that syncs of this kind hold at a time, if a lossless change takes `bits` bits a
 *  weight. Buffers are made for the worst case; only the bytes written to them count. TW_HPZ_SYNC_COUNT: the
 *  most of any kind, with whole buffers counted. */
size_t tw_hpz_sync_bytes(const tw_hpz_t *hpz, tw_hpz_sync_t kind, double bits);
/** Return the bytes of memory held for replicas, states and syncs under way. */
size_t tw_hpz_memory_bytes(const tw_hpz_t *hpz);

extern const tw_config_table_t tw_hpz_config_table;

TW_C_END

#endif
