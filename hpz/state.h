/** hpz, inside: an hpz, its units, and a sync of a unit under way. Private to the folder and its white-box tests.
 *
 *  Read layout.c (who owns what), world.c (operations over the world), replica.c (store and gather), then sync.c (the exchange
 *  along the rail), message.c (what a rank sends in it), lag.c (which blocks lag behind) and check.c. */
#ifndef TW_HPZ_STATE_H
#define TW_HPZ_STATE_H

#include "hpz/hpz.h"

TW_C_BEGIN

typedef struct tw_hpz_options {
    int64_t check_steps;
} tw_hpz_options_t;

/** A block of a tensor's own piece that lags too far. */
typedef struct tw_hpz_late {
    uint32_t tensor; /**< index in the unit */
    uint32_t block;  /**< of the piece, of the delta's block elements */
} tw_hpz_late_t;

/** A sync of a unit, from begin to finish. */
typedef struct tw_hpz_job {
    int active;
    tw_hpz_sync_t kind;
    uint64_t version;
    const float *master;
    uint16_t *fresh;  /**< [primary elems] bf16(master); kinds that need it */
    uint8_t *message; /**< own */
    uint64_t *bytes;  /**< [N] of the messages of all nodes */
    size_t *counts;   /**< [N][N] the same, as the exchange takes them */
    uint8_t *others;  /**< the messages of the other nodes, one after the other, each aligned */
    tw_coll_request_t *lengths, *payload;
    tw_status_t failed; /**< what ended the exchange */
} tw_hpz_job_t;

typedef struct tw_hpz_unit {
    uint64_t version;
    uint16_t *replica; /**< [secondary elems] */
    uint8_t *states;   /**< [secondary elems] previous changes, or NULL */
    float *last;       /**< [primary elems] the master at the last sync, or NULL */
    tw_hpz_late_t *late;
    size_t n_late;
    double lag_max; /**< of the last delta */
    size_t lag_tensor;
    tw_hpz_job_t job;
} tw_hpz_unit_t;

struct tw_hpz {
    tw_hpz_params_t params; /**< tensors: own copy */
    tw_hpz_options_t options;
    tw_hpz_layout_t *layout;
    int rank, world, n_nodes, ranks_per_node, node, local, n_units;
    tw_coll_t *in_node, *rail;
    tw_coll_t
        *rail_lengths; /**< so that changes are posted in one order on all ranks, whenever lengths arrive */
    tw_quant_t *quant; /**< or NULL */
    tw_quant_exact_t *exact; /**< or NULL */
    void *replicas, *states; /**< of all units, if they are the hpz's own */
    tw_hpz_unit_t *units;
    int *queue; /**< units whose changes are not posted yet, in the order of their begin; a ring [n_units] */
    int queue_first, queue_length;
    size_t under_way; /**< weights of the secondary parts whose syncs are */
    /** Room for one call: segments of the largest unit. */
    tw_coll_segment_t *segments;
    size_t *counts;
    tw_quant_segment_t *pieces;
    tw_quant_exact_segment_t *exact_pieces;
    tw_hpz_counters_t counters; /**< without those of the communicators */
};

/* ---- replica.c ----------------------------------------------------------------------------------------------- */

/** Where a node's piece of a tensor lies in the own replica. */
size_t tw_hpz_replica_offset(const tw_hpz_t *hpz, size_t tensor, tw_hpz_piece_t piece);

/* ---- message.c: what a rank sends in a sync of a unit ------------------------------------------------------- */

/** Whether the ranks of a rail cannot know how long the messages are. */
int tw_hpz_message_varies(const tw_hpz_t *hpz, tw_hpz_sync_t kind);
/** Bytes of a node's message, if its length does not vary; otherwise the most it may have. */
size_t tw_hpz_message_bytes(const tw_hpz_t *hpz, int unit, tw_hpz_sync_t kind, int node);
/** Write the own message from job->master to job->message; its bytes to *bytes. */
tw_status_t tw_hpz_message_encode(tw_hpz_t *hpz, int unit, size_t *bytes);
/** Apply a node's message to the replica. TW_ERR_FORMAT (logged). */
tw_status_t tw_hpz_message_apply(tw_hpz_t *hpz, int unit, int node, const uint8_t *message, size_t bytes);

/* ---- sync.c -------------------------------------------------------------------------------------------------- */

/** Free what a sync under way holds, once its communicators have ended. */
void tw_hpz_job_cleanup(tw_hpz_job_t *job);

/* ---- lag.c -------------------------------------------------------------------------------------------------- */

/** After a sync: which own blocks lag, and by how much. */
tw_status_t tw_hpz_lag_measure(tw_hpz_t *hpz, int unit);
/** Bytes that late blocks add to a message: those there are, or the most there can be at a node. */
size_t tw_hpz_late_bytes(const tw_hpz_t *hpz, int unit);
size_t tw_hpz_late_bytes_max(const tw_hpz_t *hpz, int unit, int node);
/** Write and read them; `at` is where they begin. */
void tw_hpz_late_write(const tw_hpz_t *hpz, int unit, uint8_t *at);
tw_status_t tw_hpz_late_apply(const tw_hpz_t *hpz, int unit, int node, const uint8_t *at, size_t bytes);

TW_C_END

#endif
