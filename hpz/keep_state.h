/** Structs of kept units and of their keeper. Private to the folder and its white-box tests.
 *
 *  Read keeper.h, then change.h (the difference between two versions of a run), form.c (the fields of a run),
 *  round.h (changes with loss), keep.c (a keeper), kept.c (a unit) and gather.c. */
#pragma once

#include <pthread.h>
#include <sys/queue.h>

#include "hpz/change.h"
#include "hpz/keeper.h"
#include "hpz/round.h"

TW_C_BEGIN

/** What a rank tells the other ranks of its rail about a gather, before the changes. */
typedef struct tw_hpz_record {
    uint64_t unit;   /**< hash of the unit's name, run_bytes, parts and codec */
    uint64_t gather; /**< number of the gather, from 1 */
    /** version of the replica that the change starts from; 0: no replica yet, so runs are sent as they are */
    uint64_t version;
    uint64_t bytes; /**< length of the message that follows; 0: nothing has changed */
    uint64_t check; /**< hash of the rank's own run; 0: no check in this gather */
} tw_hpz_record_t;

/** A gather under way, or a spare struct that the next gather reuses with its buffers. */
typedef struct tw_hpz_gather {
    tw_hpz_kept_t *kept;
    uint8_t *whole;
    tw_hpz_record_t *records; /**< [N] */
    size_t *counts;           /**< [N][N] bytes of messages, in the form that the exchange needs */
    tw_hpz_bytes_t message, others;
    tw_coll_request_t *meeting; /**< the exchange of records */
    tw_hpz_gathered_t done;
    double begin_sec;
    STAILQ_ENTRY(tw_hpz_gather) link;
} tw_hpz_gather_t;
typedef STAILQ_HEAD(tw_hpz_gathers, tw_hpz_gather) tw_hpz_gathers_t;

struct tw_hpz_keeper {
    tw_coll_t *all_ranks; /**< a communicator of all ranks, made for the keeper */
    tw_coll_t *in_node, *rail, *rail_records;
    int rank, world, n_nodes, node, local;
    int *rail_ranks; /**< [N] the rank of each node on this rail */
    uint64_t check_steps;
    tw_coll_segment_t *segments; /**< [W] segments of the exchange that the thread runs */
    /** [W][L] for the last unit: bytes of rank w's run that local rank l keeps */
    size_t *in_node_counts;
    size_t in_node_run_bytes; /**< run length that in_node_counts was computed for */
    tw_hpz_change_t *encoder, *decoder;
    pthread_mutex_t posting; /**< one thread posts at a time; guards the order of gathers, and the encoder */
    pthread_mutex_t lock;    /**< guards the members below, and each unit's `busy`, `status` and `last` */
    pthread_cond_t changed;
    pthread_t thread;
    int has_thread, is_stopping;
    tw_status_t failed; /**< the error that ended the keeper, or TW_OK */
    tw_hpz_gathers_t queue, spare;
};

struct tw_hpz_kept {
    tw_hpz_keeper_t *keeper;
    char *name;
    tw_hpz_form_t form;
    tw_hpz_round_t *round; /**< NULL: no part is rounded */
    uint64_t id, version, gathers;
    uint64_t seen;   /**< 1 + the version at the last gather; 0: none yet */
    uint8_t *runs;   /**< [N][run_bytes] replicas of the rail's runs */
    uint8_t *states; /**< [N][form.n_coded] previous changes of their elements */
    int busy;
    tw_status_t status; /**< result of the last gather */
    tw_hpz_gathered_t last;
};

/** Main function of the keeper's thread (gather.c); arg is the keeper. Ends when is_stopping is set and no
 *  gather is under way. */
void *tw_hpz_keeper_run(void *arg);
/** Free a gather and its buffers. Accepts NULL. */
void tw_hpz_gather_free(tw_hpz_gather_t *gather);

/** Return the most bytes of a message: the changes of rounded parts, then the lossless changes. */
static inline size_t tw_hpz_kept_bound_bytes(const tw_hpz_kept_t *kept)
{
    return tw_hpz_round_bound_bytes(kept->round) + tw_hpz_change_bound_bytes(&kept->form);
}

static inline uint8_t *tw_hpz_kept_run(const tw_hpz_kept_t *kept, int node)
{
    return kept->runs + (size_t)node * kept->form.run_bytes;
}

static inline uint8_t *tw_hpz_kept_states(const tw_hpz_kept_t *kept, int node)
{
    return kept->states + (size_t)node * kept->form.n_coded;
}

TW_C_END
