/** Thinwire hpz: gathers that send only changes. The ranks of a communicator gather the same units again and
 *  again, as FSDP does in each forward and backward pass. The result of a gather stays in host memory, so
 *  that the next gather of the unit sends only what has changed since.
 *
 *  Words, besides those of hpz.h:
 *  run      the bytes that one rank contributes to a unit: consecutive, the same number on each rank
 *  whole    a gathered unit: the runs of all ranks in rank order (rank-major, as FSDP2 lays out a group of
 *           parameters)
 *  part     consecutive elements of one type in a run; at the same place in every run
 *  kept     a unit with replicas: each rank keeps the runs of its rail, 1/L of the whole, so every
 *           node has all runs
 *
 *  A gather compares this rank's run with its replica and sends the difference along the rail: bf16 and fp16
 *  as a lossless delta; fp32 in halves, the upper ones as a lossless delta, the lower ones as they are; all
 *  other types as a lossless delta of 8-bit numbers, which suits fp8. The runs of other rails come from the
 *  replicas on this node. A gather is lossless, however the run has changed. If nothing has changed, it costs
 *  a rank less than 60 bytes. The first gather sends runs as they are.
 *
 *  Parts may be rounded: their changes are then quantized by a block codec. All ranks, the owner too, get the
 *  replica, which is the same bit for bit everywhere. It is off by at most the codec's error for the last
 *  change, since the next change is measured from the replica. A part that has not changed costs nothing. A
 *  part with NaN or Inf, or one that has moved by more than an eighth of its 2-norm (after a checkpoint was
 *  loaded), is sent without loss.
 *
 *  No error stays silent: each message names its unit, the number of its gather and the replica version that
 *  it starts from. If these differ along a rail, or if a check (TW_HPZ_CHECK_STEPS) finds that a replica
 *  differs from its run, all ranks get an error, and the log names the rank and the unit.
 *
 *  Threads: any thread may call at any time, except with a keeper or unit that is being destroyed. All ranks
 *  gather in the same order.
 *
 *  Source: as hpz.h. */
#ifndef TW_HPZ_KEEPER_H
#define TW_HPZ_KEEPER_H

#include "hpz/hpz.h"

TW_C_BEGIN

/** What the kept units of a communicator share: communicators of the node and of the rail, and a thread that
 *  executes gathers. */
typedef struct tw_hpz_keeper tw_hpz_keeper_t;

/** Make a keeper. Collective over `coll`, which is borrowed, must outlive the keeper, use host memory and
 *  have a progress thread. TW_ERR_UNSUPPORTED (logged): the nodes have unequal numbers of ranks;
 *  TW_ERR_CONFIG (TW_HPZ_ variables), TW_ERR_NO_MEMORY, errors of tw_coll_group_create. */
tw_status_t tw_hpz_keeper_create(tw_coll_t *coll, tw_hpz_keeper_t **out);
/** Destroy a keeper after all of its units. Accepts NULL. */
void tw_hpz_keeper_destroy(tw_hpz_keeper_t *keeper);
/** Set the timeout of the keeper's waits, as tw_coll_timeout_set does; initially that of `coll`. */
void tw_hpz_keeper_timeout_set(tw_hpz_keeper_t *keeper, double timeout_sec);
/** Return the bytes that this rank has sent to other nodes in gathers. */
uint64_t tw_hpz_keeper_inter_node_bytes(const tw_hpz_keeper_t *keeper);

typedef struct tw_hpz_part {
    size_t offset_bytes; /**< place in the run */
    size_t n_elems;
    tw_type_t type;
    /** 1: the codec quantizes its changes; needs bf16, fp16 or fp32 at a multiple of its size */
    int rounded;
} tw_hpz_part_t;

typedef struct tw_hpz_kept_params {
    const char *name; /**< name in logs, copied; the same on all ranks */
    size_t run_bytes; /**< at most TW_HPZ_RUN_BYTES_MAX */
    /** [n_parts] ascending, without overlaps, the same on all ranks. Gaps between parts are plain bytes. */
    const tw_hpz_part_t *parts;
    size_t n_parts;
    int has_room; /**< 0: this rank refuses the unit for lack of memory */
    /** codec of rounded parts, copied, the same on all ranks; NULL: no part is rounded */
    const tw_quant_codec_t *codec;
} tw_hpz_kept_params_t;

#define TW_HPZ_RUN_BYTES_MAX ((size_t)1 << 31)

/** A unit with replicas on this rank. */
typedef struct tw_hpz_kept tw_hpz_kept_t;

/** Return the bytes of host memory that a unit takes on this rank: its replicas, and a byte for each of their
 *  elements. Returns 0 if the parts are invalid. A gather under way also takes memory for its messages. */
size_t tw_hpz_kept_memory_bytes(const tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params);
/** Make a kept unit, on all of the keeper's ranks or on none. Collective. If ranks have no room (has_room 0,
 *  or out of memory), *refusing is the lowest of them, *out is NULL and the status TW_OK; otherwise *refusing
 *  is -1. TW_ERR_INVALID (logged): invalid parts; TW_ERR_MISMATCH (logged with the rank): ranks have
 *  different params. */
tw_status_t tw_hpz_kept_create(tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params,
                               tw_hpz_kept_t **out, int *refusing);
/** Destroy a unit, after waiting for a gather under way. Not collective. Accepts NULL. */
void tw_hpz_kept_destroy(tw_hpz_kept_t *kept);

/** What a gather has done. */
typedef struct tw_hpz_gathered {
    uint64_t inter_node_bytes; /**< bytes that this rank should have sent, by the plan */
    uint64_t changed_bytes;    /**< bytes of this rank's run that the sent pieces cover */
    uint64_t rounded_bytes;    /**< bytes of this rank's run in the parts that were sent with loss */
    double elapsed_sec;        /**< from the post to the end of the gather */
} tw_hpz_gathered_t;

/** Gather the unit. `whole`, [W * run_bytes], has this rank's run at its place. It is borrowed until the
 *  gather has ended; until then nobody may write to the run. The gather replaces the run's rounded parts by
 *  their replica. lossless 1 (the same on all ranks): do not round. First waits for an earlier gather of this
 *  unit, then encodes, posts and returns. TW_ERR_NO_MEMORY, or the error that has ended the keeper. */
tw_status_t tw_hpz_kept_gather_post(tw_hpz_kept_t *kept, void *whole, int lossless);
/** Return the status of the unit's last gather: TW_OK, its error, or from `test` TW_IN_PROGRESS. `out` may be
 *  NULL. TW_ERR_MISMATCH (logged with rank and unit): ranks are at different gathers, or replicas differ;
 *  TW_ERR_FORMAT (logged with rank and unit): a message does not fit the replica. An error ends the keeper on
 *  all ranks. */
tw_status_t tw_hpz_kept_test(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out);
tw_status_t tw_hpz_kept_wait(tw_hpz_kept_t *kept, tw_hpz_gathered_t *out);

TW_C_END

#endif
