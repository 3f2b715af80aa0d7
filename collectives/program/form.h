/** Forms: how a value is encoded while it travels. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/flow.h"

TW_C_BEGIN

typedef enum tw_form {
    TW_FORM_PLAIN,  /**< not encoded */
    TW_FORM_CODEC,  /**< encoded with the operation's codec */
    TW_FORM_INNER,  /**< encoded with the codec of the hop inside the node */
    TW_FORM_PACKED, /**< a message of a codec of form TW_QUANT_MESSAGE; its length is not fixed */
    TW_FORM_COUNT
} tw_form_t;

/** How a chunk's messages are encoded. */
typedef enum tw_coding {
    TW_CODING_NONE,
    TW_CODING_BLOCKS, /**< quantized in blocks; sums are encoded again */
    /** messages without a fixed length and without loss; sums are made of plain values */
    TW_CODING_LOSSLESS,
    TW_CODING_LOSSY, /**< messages without a fixed length that lose values; sums are made of decoded values */
} tw_coding_t;

#define TW_N_CODINGS 4

/** Returns 1 if a decoded message may differ from the encoded values. Then its sender decodes it, too. */
static inline int tw_coding_loses(tw_coding_t coding)
{
    return coding == TW_CODING_BLOCKS || coding == TW_CODING_LOSSY;
}

/** Returns the form of a message between nodes. */
static inline tw_form_t tw_form_of_coding(tw_coding_t coding)
{
    static const tw_form_t forms[TW_N_CODINGS] = {TW_FORM_PLAIN, TW_FORM_CODEC, TW_FORM_PACKED,
                                                  TW_FORM_PACKED};
    return forms[coding];
}

/** An algorithm: the flow of every owner's shard. */
typedef struct tw_flows {
    tw_flow_reduce_t reduce; /**< NULL: nothing is added up */
    tw_flow_spread_t spread; /**< NULL: the owner alone has the result */
    enum {
        TW_FLOWS_SHARDS, /**< every rank owns a shard */
        TW_FLOWS_WHOLES, /**< every rank owns the whole tensor */
        TW_FLOWS_ROOT,   /**< one rank owns the whole tensor */
        TW_FLOWS_SOME,   /**< some ranks own one shard each, of equal size; `owns` says which */
    } of;
    int (*owns)(const tw_topo_t *topo, int rank); /**< TW_FLOWS_SOME: returns 1 if the rank owns a shard */
    /** 1: all ranks take the owners in one order, as one hop may have messages of several owners to a rank */
    int in_order;
    /** 1: the shards that a rank sends in a hop have consecutive owners (modulo the world): one row */
    int merges;
    /** 1: contributions are added up inside nodes first, where they have the inner codec if there is one */
    int nodes_first;
    /** 1: on every hop, plain values are summed and encoded again, which only lossless codecs may do */
    int recodes;
    int by_pair; /**< 1: each rank gets other data, which is encoded only for other nodes */
} tw_flows_t;

/** Returns into how many shards the tensor is cut; 1 for TW_FLOWS_WHOLES and TW_FLOWS_ROOT. */
int tw_flows_count_shards(const tw_flows_t *flows, const tw_topo_t *topo);
/** Returns 1 if the rank is an owner. TW_FLOWS_ROOT: 1 for every rank, since any rank may be the root; for
 *  costs use tw_flows_has_cost. */
int tw_flows_owns(const tw_flows_t *flows, const tw_topo_t *topo, int rank);
/** Returns 1 if this owner's flow counts in an operation's cost. With TW_FLOWS_ROOT only that of rank 0
 *  counts, as every root costs the same. */
int tw_flows_has_cost(const tw_flows_t *flows, const tw_topo_t *topo, int rank);

/** A move of a value that the sender has in plain form: what determines the form on the way. */
typedef struct tw_move {
    tw_coding_t coding;
    int has_inner; /**< 1: the hop inside the node has a codec */
    int is_spread;
    int is_sum;  /**< 1: a sum of several ranks' contributions; 0: one rank's own */
    int crosses; /**< 1: the move goes to another node */
} tw_move_t;

/** Returns the form in which the value is sent. */
tw_form_t tw_form_of_move(const tw_flows_t *flows, const tw_move_t *move);

/** Returns 1 if a sum of quantized values is made in one step inside one node. Such a sum is encoded twice:
 *  first like a node's sum, then as the result. */
int tw_form_encodes_twice(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding);

/** Returns the form in which a rank adds up its own contribution and those that it receives. is_last: the
 *  sum is the result; if not, all inputs are contributions of one node's ranks. */
tw_form_t tw_form_of_inputs(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding, int has_inner,
                            int is_last);

/** Returns the codec of a segment; NULL: plain. An unquantized one has the operation's, if it is lossless. */
static inline const tw_quant_codec_t *tw_segment_codec(const tw_coll_args_t *args,
                                                       const tw_coll_segment_t *segment)
{
    if (!args->codec || (segment->unquantized && tw_quant_loses(args->codec) != TW_QUANT_LOSES_NOTHING)) {
        return NULL;
    }
    return segment->codec && !segment->unquantized ? segment->codec : args->codec;
}

TW_C_END
