/** Forms: how a value is represented while it travels. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/flow.h"

TW_C_BEGIN

typedef enum tw_form {
    TW_FORM_PLAIN,  /**< as it is */
    TW_FORM_CODEC,  /**< encoded with its codec */
    TW_FORM_INNER,  /**< encoded with the codec of the hop inside the node */
    TW_FORM_PACKED, /**< a message of a codec of TW_QUANT_MESSAGE, which is as long as it comes */
    TW_FORM_COUNT
} tw_form_t;

/** How a chunk's messages are encoded. */
typedef enum tw_coding {
    TW_CODING_NONE,
    TW_CODING_BLOCKS,   /**< quantized: sums are encoded again */
    TW_CODING_LOSSLESS, /**< messages that say their length; sums see it as it is */
    TW_CODING_LOSSY,    /**< such messages that lose values; sums see what comes out of them */
} tw_coding_t;

#define TW_N_CODINGS 4

/** 1: what comes out of a message may differ from what went in, so its sender decodes it, too. */
static inline int tw_coding_loses(tw_coding_t coding)
{
    return coding == TW_CODING_BLOCKS || coding == TW_CODING_LOSSY;
}

/** A message's form between nodes. */
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
        TW_FLOWS_SOME,   /**< some ranks own a shard each, in equal parts: see owns */
    } of;
    int (*owns)(const tw_topo_t *topo, int rank); /**< of TW_FLOWS_SOME: 1 if the rank is one of them */
    /** 1: all ranks walk the owners in one order: needed where a hop has messages of several owners between
     *  two nodes */
    int in_order;
    /** 1: what a rank sends in a hop is one row, of the shards of owners that follow each other round the
     *  world */
    int merges;
    /** 1: contributions are added up inside nodes first; with a codec, encoded there with the inner one */
    int nodes_first;
    /** 1: sums are made of plain values on every hop, and encoded again: of what loses nothing alone */
    int recodes;
    int by_pair; /**< 1: what each rank gets is its own, and is encoded only for ranks of other nodes */
} tw_flows_t;

/** How many shards the tensor is cut into; of TW_FLOWS_WHOLES and TW_FLOWS_ROOT 1. */
int tw_flows_count_shards(const tw_flows_t *flows, const tw_topo_t *topo);
/** 1: the rank is an owner. TW_FLOWS_ROOT: 1 for every rank, since any may be root; costs use
 *  tw_flows_has_cost instead. */
int tw_flows_owns(const tw_flows_t *flows, const tw_topo_t *topo, int rank);
/** 1: the flow of this owner counts in an operation's cost. All owners' do; TW_FLOWS_ROOT: only rank 0's, as
 *  every root costs the same. */
int tw_flows_has_cost(const tw_flows_t *flows, const tw_topo_t *topo, int rank);

/** A move of a value that is plain at its rank: what decides its form on the way. */
typedef struct tw_move {
    tw_coding_t coding;
    int has_inner; /**< there is a codec for the hop inside the node */
    int is_spread;
    int is_sum;  /**< of several ranks' contributions; 0: one rank's own */
    int crosses; /**< to another node */
} tw_move_t;

/** The form in which it is moved. */
tw_form_t tw_form_of_move(const tw_flows_t *flows, const tw_move_t *move);

/** 1: a sum of quantized values that is made in one step is encoded all the same, as a node's sum, before it
 *  is the result: all of it is made inside one node. */
int tw_form_encodes_twice(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding);

/** The form in which a rank adds up what others give it and its own. is_last: the sum is the result; of
 *  others, contributions of a node. */
tw_form_t tw_form_of_inputs(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding, int has_inner,
                            int is_last);

/** The codec of a segment; NULL: it travels as it is. What may lose nothing can be a lossless message. */
static inline const tw_quant_codec_t *tw_segment_codec(const tw_coll_args_t *args,
                                                       const tw_coll_segment_t *segment)
{
    if (!args->codec || (segment->unquantized && tw_quant_loses(args->codec) != TW_QUANT_LOSES_NOTHING)) {
        return NULL;
    }
    return segment->codec && !segment->unquantized ? segment->codec : args->codec;
}

TW_C_END
