/** Thinwire hpz: gathers that send only changes. The ranks of a communicator gather units again and again, as
 *  FSDP does in each forward and backward pass; the result of a gather stays in host memory, so that the next
 *  one only sends what has changed since.
 *
 *  Words, besides those of hpz.h:
 *  run      what one rank gives to a unit: consecutive bytes, the same number on each rank
 *  whole    a unit gathered: the runs of all ranks in rank order (rank-major, as FSDP2 lays out a group of
 *           parameters)
 *  part     of a run: consecutive elements of one type; the same in every run
 *  kept     a unit whose replicas are kept: each rank keeps the runs of its rail, 1/L of the whole; so every
 *           node has all
 *
 *  A gather compares this rank's run with its replica, and sends the difference along the rail: bf16 and fp16
 *  as a lossless delta, fp32 in halves, the upper one as a lossless delta and the lower one as it is,
 *  anything else as a lossless delta of 8 bits, which fits fp8. The other runs come from the replicas of the
 *  node. So it loses nothing whatever has been done to the run, and costs less than 60 bytes a rank where
 *  nothing has. The first gather sends runs as they are.
 *
 *  Parts may be rounded: their changes then go through a block codec. All ranks, the owner too, get the
 *  replica, which is the same bit for bit everywhere; it is off by no more than the codec's error for the
 *  last change, since the next change is measured from the replica. A part that is given unchanged costs
 *  nothing. A part that has NaN or Inf, or has moved by more than an eighth of its 2-norm (a checkpoint was
 *  loaded), is sent without loss.
 *
 *  Errors are loud: each message says which unit it is of, which gather that is and which replica it follows.
 *  If these differ along a rail, or a check (TW_HPZ_CHECK_STEPS) finds a replica that differs from its run,
 *  all ranks get an error, and the log names the rank and the unit.
 *
 *  Threads: any thread may call at any time, but not with what is being destroyed. All ranks gather in the
 *  same order.
 *
 *  Source: as hpz.h. */
#ifndef TW_HPZ_KEEPER_H
#define TW_HPZ_KEEPER_H

#include "hpz/hpz.h"

TW_C_BEGIN

/** What the kept units of a communicator share: communicators of the node and of the rail, and a thread that
 *  carries gathers out. */
typedef struct tw_hpz_keeper tw_hpz_keeper_t;

/** Make a keeper. Collective over `coll`, which is borrowed, outlives the keeper, is on host memory, and has
 *  a progress thread. TW_ERR_UNSUPPORTED (logged): the nodes have unequal numbers of ranks; TW_ERR_CONFIG
 *  (TW_HPZ_ variables), TW_ERR_NO_MEMORY, errors of tw_coll_group_create. */
tw_status_t tw_hpz_keeper_create(tw_coll_t *coll, tw_hpz_keeper_t **out);
/** Call it after its units are destroyed. Accepts NULL. */
void tw_hpz_keeper_destroy(tw_hpz_keeper_t *keeper);
/** Set the timeout of what the keeper waits for, as tw_coll_timeout_set; at first it is that of `coll`. */
void tw_hpz_keeper_timeout_set(tw_hpz_keeper_t *keeper, double timeout_sec);
/** Return the bytes that this rank has sent to other nodes in gathers. */
uint64_t tw_hpz_keeper_inter_node_bytes(const tw_hpz_keeper_t *keeper);

typedef struct tw_hpz_part {
    size_t offset_bytes; /**< place in the run */
    size_t n_elems;
    tw_type_t type;
    /** 1: its changes go through the codec, with loss; bf16, fp16 or fp32 at a multiple of its size */
    int rounded;
} tw_hpz_part_t;

typedef struct tw_hpz_kept_params {
    const char *name; /**< what logs call it, copied; the same on all ranks */
    size_t run_bytes; /**< at most TW_HPZ_RUN_BYTES_MAX */
    /** [n_parts] ascending, without overlaps, the same on all ranks. What lies between is taken as bytes. */
    const tw_hpz_part_t *parts;
    size_t n_parts;
    int has_room; /**< 0: this rank must not allocate memory for it */
    /** codec of rounded parts, copied, the same on all ranks; NULL: no part is rounded */
    const tw_quant_codec_t *codec;
} tw_hpz_kept_params_t;

#define TW_HPZ_RUN_BYTES_MAX ((size_t)1 << 31)

/** A unit whose replicas are kept. */
typedef struct tw_hpz_kept tw_hpz_kept_t;

/** Return the bytes of host memory that a unit takes on this rank: its replicas, and a byte for each of their
 *  numbers; 0 if the parts are invalid. A gather under way takes in addition what it sends and receives. */
size_t tw_hpz_kept_memory_bytes(const tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params);
/** Make a kept unit, on all of the keeper's ranks or on none. Collective. *refusing is -1, or the lowest rank
 *  that has no room; then *out is NULL and the status TW_OK. TW_ERR_INVALID (logged): the parts are invalid;
 *  TW_ERR_MISMATCH (logged with the rank): a rank has another name, run length or parts. */
tw_status_t tw_hpz_kept_create(tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params,
                               tw_hpz_kept_t **out, int *refusing);
/** Destroy a unit, after waiting for a gather under way. Not collective. Accepts NULL. */
void tw_hpz_kept_destroy(tw_hpz_kept_t *kept);

/** What a gather has done. */
typedef struct tw_hpz_gathered {
    uint64_t inter_node_bytes; /**< what this rank should have sent, by the plan */
    uint64_t changed_bytes;    /**< bytes of the own run in the pieces that were sent */
    uint64_t rounded_bytes;    /**< bytes of the own run in the parts that were sent with loss */
    double elapsed_sec;        /**< from the post to its end */
} tw_hpz_gathered_t;

/** Gather the unit. `whole`, [W * run_bytes], has this rank's run in its place, and is borrowed until the
 *  gather has ended; nobody may write to that run meanwhile. Its rounded parts become what all ranks get;
 *  lossless 1 (the same on all ranks): they are not rounded. Encodes before it returns; waits for an earlier
 *  gather of this unit. TW_ERR_NO_MEMORY, or the error that has ended the keeper. */
tw_status_t tw_hpz_kept_gather_post(tw_hpz_kept_t *kept, void *whole, int lossless);
/** Return the status of the gather posted last: TW_OK, TW_IN_PROGRESS or its error; wait never returns
 *  TW_IN_PROGRESS. `out` may be NULL. TW_ERR_MISMATCH (logged with the rank and the unit): ranks are not at
 *  the same gather, or replicas differ; TW_ERR_FORMAT (logged likewise): a message does not fit the replica.
 *  An error ends the keeper, on all ranks. */
tw_status_t tw_hpz_kept_test(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out);
tw_status_t tw_hpz_kept_wait(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out);

TW_C_END

#endif
