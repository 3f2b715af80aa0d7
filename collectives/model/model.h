/** The cost model: how fast links and processors are, and how long an operation should take. The files, in
 *  the order to read them:
 *    model.[ch]      the cost model: alpha and beta per tier of links, speed of the processors
 *    text.c          the model as text: TW_COLL_MODEL
 *    bootstrap.[ch]  short messages between the members while a communicator is made
 *    measuring.h     how a model is measured
 *      measure.c       rounds of readings
 *      links.c         measures streams to a neighbour
 *      processor.c     measures copying, adding, the codecs
 *    estimate.c      makes one model from all members' readings
 *
 *  All values are seconds or seconds per byte, so the larger of two values is the slower one. Every rank of
 *  a communicator has the same model, so all ranks decide alike. */
#pragma once

#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

/** The largest noise that a model has. A larger value would say nothing more. */
#define TW_COLL_NOISE_MAX 1000.0

/** Messages of at least this length need a handshake. Its cost is a turn. */
#define TW_COLL_TURN_BYTES ((size_t)32 << 10)

/** How fast links of one kind are: those between nodes, or those inside a node. */
typedef struct tw_coll_tier {
    double alpha_sec;   /**< one small message from its post to its arrival */
    double beta_sec;    /**< one byte through a node's full-duplex link, which all ranks of the node share */
    double message_sec; /**< extra cost of one more message in a stream, beyond its bytes */
    /** extra cost of a message of TW_COLL_TURN_BYTES if no other message is in flight */
    double turn_sec;
    double busy; /**< the share of a stream's time in which the rank's processor is busy with it, 0 to 1 */
    /** how much slower typical readings of the speed were, as a share of beta_sec; 0 is certain */
    double noise;
} tw_coll_tier_t;

/** Each kind of codec has four speeds, indexed by hadamard + 2 * stochastic. Decoding does not depend on the
 *  rounding. Measuring leaves the speeds of missing codecs at 0. */
#define TW_COLL_MODEL_OPTIONS 4
#define TW_COLL_MODEL_SPEEDS (TW_QUANT_KINDS * TW_COLL_MODEL_OPTIONS)

static inline int tw_coll_model_encoder(const tw_quant_codec_t *codec)
{
    return (int)codec->kind * TW_COLL_MODEL_OPTIONS + codec->hadamard +
           2 * (codec->round == TW_QUANT_ROUND_STOCHASTIC);
}

static inline int tw_coll_model_decoder(const tw_quant_codec_t *codec)
{
    return (int)codec->kind * TW_COLL_MODEL_OPTIONS + codec->hadamard;
}

/** Processor times are per byte of plain data, while all ranks of the node work at the same time. */
typedef struct tw_coll_model {
    tw_coll_tier_t inter; /**< between nodes */
    tw_coll_tier_t node;  /**< inside a node */
    double copy_sec;      /**< copy or convert */
    double reduce_sec;    /**< sum of two plain inputs */
    double encode_sec[TW_COLL_MODEL_SPEEDS], decode_sec[TW_COLL_MODEL_SPEEDS];
    /** extra cost of a lossless message of any length: tables, scales, lists */
    double encode_message_sec, decode_message_sec;
    double cpu_noise; /**< noise of all processor times, see tw_coll_tier_t */
} tw_coll_model_t;

/** Seconds that a codec takes for `messages` messages with `bytes` plain bytes in all. */
double tw_coll_model_encode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec, double messages,
                                double bytes);
double tw_coll_model_decode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec, double messages,
                                double bytes);

/** Factor by which streams that meet at a link are slower than a single stream. 3 to 6 % were measured on
 *  four nodes with 1 Gb/s Ethernet. */
#define TW_COLL_CROWD 1.05

/** What an operation costs, derived from its flows (program/cost.h). It depends on sizes only, so it is
 *  equal on all ranks. */
typedef struct tw_coll_cost {
    /** rounds: messages on the longest path, each of which waits for the one before. In a round, the busiest
     *  rank sends inter_messages / inter_rounds messages in a row. */
    int inter_rounds, node_rounds;
    double inter_messages, node_messages; /**< sent by the busiest rank */
    double inter_bytes;                   /**< through the busiest node's link: the larger of in and out */
    double node_bytes;                    /**< moved inside the busiest node, by all its ranks */
    int crowded;                          /**< 1: streams from several nodes meet at a link */
    double cpu_sec;                       /**< of the busiest rank: copying, adding, encoding and decoding */
    /** seconds that overlap with nothing: the first chunk's encoding, the last one's decoding, ... */
    double fill_sec;
} tw_coll_cost_t;

/** Estimate an operation's seconds. It is the sum of the rounds' latencies (with a turn, unless more
 *  messages hide it), the time of links and processor, which work at the same time, and fill_sec. */
double tw_coll_model_time(const tw_coll_model_t *model, const tw_coll_cost_t *cost);

/** The model with its noise added to every time: the typical speed during the measurement. */
void tw_coll_model_typical(const tw_coll_model_t *model, tw_coll_model_t *typical);

/** The model as it may be when nothing else runs. Bytes inside a node are moved by copying. So if a link
 *  there seems slower than TW_COLL_QUIET_COPIES copies by one rank, other programs used the processors
 *  during the measurement. */
void tw_coll_model_quiet(const tw_coll_model_t *model, tw_coll_model_t *quiet);
#define TW_COLL_QUIET_COPIES 4

/* ---- as text: what TW_COLL_MODEL holds ----------------------------------------------------------------- */

/** The default model: a machine with 1 Gb/s Ethernet between nodes. */
void tw_coll_model_default(tw_coll_model_t *model);
/** Read a text into a model; values that it does not name are the defaults. Sections are separated by ';',
 *  as in "name:key=value,key=value". Sections and keys:
 *    inter, node     alpha=50us  beta=1gbit (bits/s)  message=2us  turn=100us  busy=0.2  noise=0.1
 *    cpu             copy=8G  reduce=4G (bytes/s)  noise=0.1
 *    codec           encode=4G  decode=4G (bytes/s of plain data, every codec)
 *    int8, ...       encode and decode of the codec of that name; 0: as codec
 *    lossless        encode, decode; encode_message=30us  decode_message=15us (a message, beyond its bytes)
 *  On TW_ERR_CONFIG (logged with the nearest known name) the model does not change. */
tw_status_t tw_coll_model_parse(const char *text, tw_coll_model_t *model);
#define TW_COLL_MODEL_TEXT_BYTES 640
/** Write the model as text into `buf` (TW_COLL_MODEL_TEXT_BYTES are enough). Returns buf. */
const char *tw_coll_model_format(const tw_coll_model_t *model, char *buf, size_t buf_bytes);

TW_C_END
