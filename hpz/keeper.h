/** Thinwire hpz: gathers that remember. The ranks of a communicator gather units again and again, as FSDP
 *  does in each forward and backward pass; what a gather found stays in host memory, so that the next one
 *  only carries what has changed since.
 *
 *  Words, besides those of hpz.h:
 *  run      what one rank gives to a unit: consecutive bytes, the same number on each rank
 *  whole    a unit gathered: the runs of all ranks in rank order (rank-major, as FSDP2 lays out a group of
 *           parameters)
 *  part     of a run: consecutive elements of one type; the same in every run
 *  kept     a unit whose replicas are kept: each rank keeps the runs of its rail, 1/L of the whole; so every
 *           node has all
 *
 *  A gather compares the own run with what the own replica says of it, and sends the difference along the
 *  rail: bf16 and fp16 as a lossless delta, fp32 in halves, the upper one as a lossless delta and the lower
 *  one as it is, anything else as a lossless delta of 8 bits, which fits fp8. The other runs come from the
 *  replicas of the node. So it loses nothing whatever has been done to the run, and costs less than 60 bytes
 *  a rank where nothing has. The first gather sends runs as they are.
 *
 *  Parts may be rounded: their changes then go through a block codec. All ranks, the owner too, get the
 *  replica, which is the same bit for bit everywhere; it is off by no more than the codec's error for the
 *  last change, since the next change is measured from the replica. What is given unchanged costs nothing. A
 *  part that has NaN or Inf, or has moved by more than an eighth of its 2-norm (a checkpoint was loaded),
 *  goes without loss.
 *
 *  Errors are loud: each message says which unit it is of, which gather that is and which replica it follows.
 *  Where these are not the same along a rail, or by TW_HPZ_CHECK_STEPS a replica is not the run it was made
 *  of, all ranks get an error, and the log names the rank and the unit.
 *
 *  Threads: any, at any time, but that nobody uses what is being destroyed. The ranks gather in the same
 *  order.
 *
 *  Source: as hpz.h. */
#ifndef TW_HPZ_KEEPER_H
#define TW_HPZ_KEEPER_H

#include "hpz/hpz.h"

TW_C_BEGIN

/** What the kept units of a communicator share: communicators of the node and of the rail, and a thread that
 *  moves gathers. */
typedef struct tw_hpz_keeper tw_hpz_keeper_t;

/** Collective over `coll`, which is borrowed, outlives the keeper, and has a progress thread; host memory.
 *  TW_ERR_UNSUPPORTED (logged): the nodes have unequal numbers of ranks; TW_ERR_CONFIG (TW_HPZ_ variables),
 *  TW_ERR_NO_MEMORY, errors of tw_coll_group_create. */
tw_status_t tw_hpz_keeper_create(tw_coll_t *coll, tw_hpz_keeper_t **out);
/** After its units. Accepts NULL. */
void tw_hpz_keeper_destroy(tw_hpz_keeper_t *keeper);
/** As tw_coll_timeout_set, of all that the keeper waits for. A new keeper has that of `coll`. */
void tw_hpz_keeper_timeout_set(tw_hpz_keeper_t *keeper, double timeout_sec);
/** Bytes that this rank has sent to other nodes in gathers. */
uint64_t tw_hpz_keeper_inter_node_bytes(const tw_hpz_keeper_t *keeper);

typedef struct tw_hpz_part {
    size_t offset_bytes; /**< in the run */
    size_t n_elems;
    tw_type_t type;
    /** 1: its changes go through the codec, with loss; bf16, fp16 or fp32 at a multiple of its size */
    int rounded;
} tw_hpz_part_t;

typedef struct tw_hpz_kept_params {
    const char *name; /**< what logs call it, copied; the same on all ranks */
    size_t run_bytes; /**< at most TW_HPZ_RUN_BYTES_MAX */
    /** [n_parts] ascending, without overlaps; what lies between is bytes. The same on all ranks. */
    const tw_hpz_part_t *parts;
    size_t n_parts;
    int has_room; /**< 0: this rank must not take memory for it */
    /** of rounded parts, copied, the same on all ranks; NULL: there are none */
    const tw_quant_codec_t *codec;
} tw_hpz_kept_params_t;

#define TW_HPZ_RUN_BYTES_MAX ((size_t)1 << 31)

/** A unit whose replicas are kept. */
typedef struct tw_hpz_kept tw_hpz_kept_t;

/** Bytes of host memory that a unit takes on this rank: its replicas, and a byte for each of their numbers.
 *  0: the parts make no sense. While a gather is under way it takes what is sent and received besides. */
size_t tw_hpz_kept_memory_bytes(const tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params);
/** Collective over the keeper's ranks: all get it, or none. *refusing: -1, or the lowest rank that has no
 *  room; then *out is NULL and the status TW_OK. TW_ERR_INVALID (logged): parts that make no sense;
 *  TW_ERR_MISMATCH (logged with the rank): another name, run or parts there. */
tw_status_t tw_hpz_kept_create(tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params,
                               tw_hpz_kept_t **out, int *refusing);
/** Waits for a gather under way. Not collective. Accepts NULL. */
void tw_hpz_kept_destroy(tw_hpz_kept_t *kept);

/** What a gather has done. */
typedef struct tw_hpz_gathered {
    uint64_t inter_node_bytes; /**< sent by this rank, as planned: what the counters must show */
    uint64_t changed_bytes;    /**< of the own run, in the pieces that were sent */
    uint64_t rounded_bytes;    /**< of the own run, in the parts that were sent with loss */
    double elapsed_sec;        /**< from the post to its end */
} tw_hpz_gathered_t;

/** Gather the unit. whole: [W * run_bytes], the own run in its place; borrowed until the gather has ended,
 *  and nobody writes the own run meanwhile. Rounded parts of it become what all ranks get; lossless: 1: they
 *  are not rounded, the same on all ranks. Encodes before it returns; waits for an earlier gather of this
 *  unit. TW_ERR_NO_MEMORY, or the error that has ended the keeper. */
tw_status_t tw_hpz_kept_gather_post(tw_hpz_kept_t *kept, void *whole, int lossless);
/** Of the gather posted last: TW_OK, TW_IN_PROGRESS or its error; wait does not return TW_IN_PROGRESS. out
 *  may be NULL. TW_ERR_MISMATCH (logged with the rank and the unit): ranks are not at the same gather, or
 *  replicas differ; TW_ERR_FORMAT (logged likewise): a message does not fit the replica. After an error the
 *  keeper's ranks are given up. */
tw_status_t tw_hpz_kept_test(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out);
tw_status_t tw_hpz_kept_wait(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out);

TW_C_END

#endif
