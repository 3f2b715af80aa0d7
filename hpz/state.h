/** Structs of an hpz, its units, and syncs under way. Private to the folder and its white-box tests.
 *
 *  Read layout.c (who owns what), hpz.c (makes and destroys an hpz), place.c (where the ranks are), room.c
 *  (its memory), whole.c (operations over all ranks) and replica.c (store and gather). Then sync.c (the
 *  exchange along the rail), message.c (a rank's message in it), lag.c (which blocks lag behind), bytes.c
 *  (memory in use, and its maximum), check.c and host.c (host memory as a table of operations). */
#pragma once

#include <sys/queue.h>

#include "hpz/hpz.h"

TW_C_BEGIN

typedef struct tw_hpz_options {
    int64_t check_steps;
} tw_hpz_options_t;

#define TW_HPZ_NO_UNIT (-1)

/** A block of this rank's piece of a tensor, with a lag beyond lag_bound. */
typedef struct tw_hpz_late {
    uint32_t tensor; /**< index in the unit */
    uint32_t block;  /**< index in the piece, in blocks of the delta's codec */
} tw_hpz_late_t;

/** The blocks beyond lag_bound after a delta, and the largest lag of any block. */
typedef struct tw_hpz_lag {
    tw_hpz_late_t *late;
    size_t n_late;
    double max;
    size_t tensor; /**< tensor that had the largest lag */
} tw_hpz_lag_t;

/** A transfer: a slice of a unit on its way along the rail, from its encoding until it is applied. */
typedef struct tw_hpz_transfer {
    int unit;
    tw_hpz_slice_t slice;
    size_t own_first, n_own; /**< the slice's elements in this rank's primary part: first, number */
    size_t n_elems;          /**< elements of the slice at all nodes of the rail */
    uint16_t *fresh;         /**< [n_own] bf16(master); NULL once encoded, unless tw_hpz_keeps_fresh */
    uint8_t *message;        /**< this rank's message */
    uint64_t *bytes;         /**< [N] lengths of all nodes' messages */
    size_t *counts;          /**< [N][N] the same lengths, in the form that the exchange needs */
    uint8_t *others;         /**< received messages of the other nodes, one after the other, each aligned */
    tw_coll_request_t *lengths, *payload;
    STAILQ_ENTRY(tw_hpz_transfer) in_unit, in_queue;
} tw_hpz_transfer_t;
typedef STAILQ_HEAD(tw_hpz_transfers, tw_hpz_transfer) tw_hpz_transfers_t;

/** A sync of a unit, from begin to finish. */
typedef struct tw_hpz_under_way {
    int active;
    tw_hpz_sync_t kind;
    uint64_t version;
    const float *master;
    size_t begun;                 /**< first element of the next slice; earlier ones have begun */
    tw_hpz_transfers_t transfers; /**< slices that have begun and not ended, in order */
    tw_status_t spoilt; /**< error of a change that did not fit the replica; finish returns it in the end */
    tw_status_t failed; /**< error of an exchange; the communicator has failed, too */
} tw_hpz_under_way_t;

typedef struct tw_hpz_unit {
    uint64_t version;
    uint16_t *replica;     /**< [secondary elems]; with fp32_replicas an element takes two entries */
    uint8_t *states;       /**< [secondary elems] previous changes, or NULL */
    float *last;           /**< [primary elems] the master at the last sync, or NULL */
    tw_hpz_lag_t lag, now; /**< lag: of the last sync; now: of the sync under way, slices so far */
    tw_hpz_under_way_t sync;
} tw_hpz_unit_t;

struct tw_hpz {
    tw_hpz_params_t params; /**< the caller's parameters; `tensors` points to the hpz's copy */
    tw_hpz_options_t options;
    tw_hpz_layout_t *layout;
    int rank, world, n_nodes, ranks_per_node, node, local, n_units;
    int is_flat; /* 1: nodes have unequal numbers of ranks, so the layout takes each rank for a node */
    tw_coll_t *in_node, *rail;
    /** Lengths only: they arrive in any order, but messages must be posted in one order on all ranks. */
    tw_coll_t *rail_lengths;
    tw_quant_t *quant;       /**< codec of quantized deltas, or NULL */
    tw_quant_delta_t *delta; /**< codec of lossless deltas in host memory, or NULL */
    tw_hpz_memory_t memory;  /**< memory that replicas lie in */
    int is_elsewhere;        /**< 1: `memory` is not the host's */
    tw_stream_t stream;      /**< stream of gathers in the node */
    void *replicas, *states; /**< blocks for all units, if the hpz has allocated them */
    tw_hpz_unit_t *units;
    /** slices with messages not yet posted, in the order in which they began */
    tw_hpz_transfers_t queue;
    int partial;      /**< unit that still has slices to begin; TW_HPZ_NO_UNIT if none */
    size_t under_way; /**< weights in all slices under way */
    /** Scratch arrays for one call at a time, long enough for the largest unit. */
    tw_coll_segment_t *segments;
    size_t *counts;
    tw_quant_segment_t *pieces;
    tw_quant_delta_segment_t *delta_pieces;
    /** [n_tensors] exponents of fp8 tensors, TW_HPZ_BF16 for other tensors; NULL: no tensor is fp8 */
    const int8_t *exponents;
    uint8_t *codes;             /**< codes of a slice's fp8 tensors, old and new; NULL if no tensor is fp8 */
    tw_hpz_counters_t counters; /**< without the counts that communicators keep */
};

/* ---- place.c ------------------------------------------------------------------------------------------- */

/** Find this rank's place and the shape of the cluster, from the communicator or the planned place.
 *  TW_ERR_UNSUPPORTED (logged): replicas where nodes have unequal numbers of ranks. */
tw_status_t tw_hpz_places_find(tw_hpz_t *hpz);
/** Return a rank's node, and its place on the node, in the layout. */
int tw_hpz_node_of(const tw_hpz_t *hpz, int rank);
int tw_hpz_local_of(const tw_hpz_t *hpz, int rank);
/** Make the communicators of the node and of the rail. Collective; params.memory must have been reserved. */
tw_status_t tw_hpz_groups_make(tw_hpz_t *hpz);

/* ---- room.c -------------------------------------------------------------------------------------------- */

/** Allocate the units and the scratch arrays; the layout must exist. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_hpz_rooms_make(tw_hpz_t *hpz);
/** Reserve the replicas' memory, make codecs, and allocate replicas, states and last masters. */
tw_status_t tw_hpz_replicas_make(tw_hpz_t *hpz);

/* ---- bytes.c ------------------------------------------------------------------------------------------- */

/** Return the most elements of a slice at a rank, in a sync of any unit. */
size_t tw_hpz_slice_elems_max(const tw_hpz_t *hpz);
/** Return the bytes of hpz->codes, which has room for the largest slice. */
size_t tw_hpz_codes_bytes(const tw_hpz_t *hpz);

/* ---- host.c -------------------------------------------------------------------------------------------- */

tw_hpz_memory_t tw_hpz_host_memory(tw_hpz_t *hpz);

/* ---- replica.c ----------------------------------------------------------------------------------------- */

size_t tw_hpz_replica_elem_bytes(const tw_hpz_t *hpz);
/** Return the address of element `offset` of this rank's replica. */
void *tw_hpz_replica_at(const tw_hpz_t *hpz, int unit, size_t offset);
/** Return the offset, in elements, of a node's piece of a tensor in this rank's replica. */
size_t tw_hpz_replica_offset(const tw_hpz_t *hpz, size_t tensor, tw_hpz_piece_t piece);
/** Wait until all enqueued operations on replicas are done. `status` is the result of enqueuing; if it is an
 *  error, return it. */
tw_status_t tw_hpz_settle(const tw_hpz_t *hpz, tw_status_t status);

/* ---- message.c: what a rank sends of a slice ----------------------------------------------------------- */

/** Return 1 if transfer->fresh must stay until the sync ends: in lossless deltas the owner copies it to its
 *  replica, and measuring lags needs it. */
int tw_hpz_keeps_fresh(const tw_hpz_t *hpz, tw_hpz_sync_t kind);
/** Return 1 if a message's length depends on values, so that ranks must exchange lengths first. */
int tw_hpz_message_varies(const tw_hpz_t *hpz, tw_hpz_sync_t kind);
/** Return how many elements of the slice a node's message covers. */
size_t tw_hpz_message_elems(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_hpz_sync_t kind,
                            int node);
/** Return the bytes of a node's message. If its length varies, return the most bytes that it may have. */
size_t tw_hpz_message_bytes(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_hpz_sync_t kind,
                            int node);
/** Encode this rank's message from the sync's master into transfer->message; *bytes becomes its length. */
tw_status_t tw_hpz_message_encode(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, size_t *bytes);
/** Apply a node's message to the replica. TW_ERR_FORMAT (logged): it does not fit. */
tw_status_t tw_hpz_message_apply(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, int node,
                                 const uint8_t *message, size_t bytes);

/* ---- sync.c -------------------------------------------------------------------------------------------- */

/** Return the slice of a unit that begins at `first`, the end of the previous slice. */
tw_hpz_slice_t tw_hpz_sync_slice(const tw_hpz_t *hpz, int unit, size_t first);
/** Return the elements of a slice, summed over the nodes of the rail. */
size_t tw_hpz_rail_elems(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice);
/** Free the unfinished slices of a unit. Their communicators must have ended. */
void tw_hpz_transfers_cleanup(const tw_hpz_t *hpz, tw_hpz_unit_t *unit);

/* ---- lag.c --------------------------------------------------------------------------------------------- */

/** After a slice has been applied: find this rank's blocks beyond lag_bound, and the largest lag. */
tw_status_t tw_hpz_lag_measure(tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer);
/** Start measuring lags for a new sync; and, when all of it has been applied, store them in unit->lag. */
void tw_hpz_lag_begin(tw_hpz_unit_t *unit);
void tw_hpz_lag_end(tw_hpz_unit_t *unit);
/** Return the bytes that late blocks add to this rank's message; and the most that they add to a node's. */
size_t tw_hpz_late_bytes(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer);
size_t tw_hpz_late_bytes_max(const tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, int node);
/** Write the late blocks into a message at `at`; and apply the late blocks at `at` in a message. */
void tw_hpz_late_write(const tw_hpz_t *hpz, const tw_hpz_transfer_t *transfer, uint8_t *at);
tw_status_t tw_hpz_late_apply(const tw_hpz_t *hpz, int unit, int node, const uint8_t *at, size_t bytes);

TW_C_END
