/** Forms: how a value is represented while it travels. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/flow.h"

TW_C_BEGIN

typedef enum tw_form {
    TW_FORM_PLAIN,  /**< as it is */
    TW_FORM_CODEC,  /**< encoded with the operation's codec */
    TW_FORM_INNER,  /**< encoded with the codec of the hop inside the node */
    TW_FORM_PACKED, /**< a message of a codec of TW_QUANT_MESSAGE, which has no fixed length */
    TW_FORM_COUNT
} tw_form_t;

/** How a chunk's messages are encoded. */
typedef enum tw_coding {
    TW_CODING_NONE,
    TW_CODING_BLOCKS,   /**< quantized in blocks: sums are encoded again */
    TW_CODING_LOSSLESS, /**< messages without a fixed length and without loss; sums are of plain values */
    TW_CODING_LOSSY,    /**< messages without a fixed length that lose values; sums are of decoded values */
} tw_coding_t;

#define TW_N_CODINGS 4

/** Returns 1 if a decoded message may differ from what was encoded, so that its sender decodes it, too. */
static inline int tw_coding_loses(tw_coding_t coding)
{
    return coding == TW_CODING_BLOCKS || coding == TW_CODING_LOSSY;
}

/** The form of a message between nodes. */
static inline tw_form_t tw_form_of_coding(tw_coding_t coding)
{
    static const tw_form_t forms[TW_N_CODINGS] = {TW_FORM_PLAIN, TW_FORM_CODEC, TW_FORM_PACKED,
                                                  TW_FORM_PACKED};
    return forms[coding];
}

/** An algorithm: what the shard of every owner goes through. */
typedef struct tw_flows {
    tw_flow_reduce_t reduce; /**< NULL: nothing is added up */
    tw_flow_spread_t spread; /**< NULL: the owner alone has the result */
    enum {
        TW_FLOWS_SHARDS, /**< every rank owns a shard */
        TW_FLOWS_WHOLES, /**< every rank owns the whole tensor */
        TW_FLOWS_ROOT,   /**< one rank owns the whole tensor */
        TW_FLOWS_SOME,   /**< some ranks own a shard each, of equal size: see owns */
    } of;
    int (*owns)(const tw_topo_t *topo, int rank); /**< TW_FLOWS_SOME: returns 1 if the rank is one of them */
    /** 1: all ranks take the owners in one order, which is needed if a hop has messages of several owners
     *  between two nodes */
    int in_order;
    /** 1: what a rank sends in a hop is one row: the shards of owners that follow each other round the
     *  world */
    int merges;
    /** 1: contributions are added up inside nodes first; with a codec, they are encoded there with the inner
     *  one */
    int nodes_first;
    /** 1: sums are made of plain values on every hop and encoded again, which only lossless codecs may do */
    int recodes;
    int by_pair; /**< 1: each rank gets other data, which is encoded only for ranks of other nodes */
} tw_flows_t;

/** How many shards the tensor is cut into; 1 for TW_FLOWS_WHOLES and TW_FLOWS_ROOT. */
int tw_flows_count_shards(const tw_flows_t *flows, const tw_topo_t *topo);
/** Returns 1 if the rank is an owner. TW_FLOWS_ROOT: 1 for every rank, since any may be root; costs use
 *  tw_flows_has_cost instead. */
int tw_flows_owns(const tw_flows_t *flows, const tw_topo_t *topo, int rank);
/** Returns 1 if this owner's flow counts in an operation's cost: every owner's does; TW_FLOWS_ROOT: only rank
 *  0's, as every root costs the same. */
int tw_flows_has_cost(const tw_flows_t *flows, const tw_topo_t *topo, int rank);

/** A move of a value that is plain at its rank: what determines its form on the way. */
typedef struct tw_move {
    tw_coding_t coding;
    int has_inner; /**< there is a codec for the hop inside the node */
    int is_spread;
    int is_sum;  /**< 1: a sum of several ranks' contributions; 0: one rank's own */
    int crosses; /**< 1: the move goes to another node */
} tw_move_t;

/** The form in which it is moved. */
tw_form_t tw_form_of_move(const tw_flows_t *flows, const tw_move_t *move);

/** Returns 1 if a sum of quantized values that is made in one step, inside one node, is encoded like a node's
 *  sum before it becomes the result. */
int tw_form_encodes_twice(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding);

/** The form in which a rank adds up its own contribution and what others give it. is_last: the sum is the
 *  result; if not, its inputs are contributions of one node's ranks. */
tw_form_t tw_form_of_inputs(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding, int has_inner,
                            int is_last);

/** The codec of a segment; NULL: it travels plain. A segment that must lose nothing can be a lossless
 *  message. */
static inline const tw_quant_codec_t *tw_segment_codec(const tw_coll_args_t *args,
                                                       const tw_coll_segment_t *segment)
{
    if (!args->codec || (segment->unquantized && tw_quant_loses(args->codec) != TW_QUANT_LOSES_NOTHING)) {
        return NULL;
    }
    return segment->codec && !segment->unquantized ? segment->codec : args->codec;
}

TW_C_END
