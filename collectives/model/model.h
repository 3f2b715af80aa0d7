/** The cost model: what links and processors can do, and how long an operation should take. Read in this
 *  order:
 *    model.[ch]      the cost model: alpha and beta per tier of links, speed of the processors
 *    text.c          the model as text: TW_COLL_MODEL
 *    bootstrap.[ch]  short messages between the members while a communicator is made
 *    measuring.h     measuring a model
 *      measure.c       rounds of readings
 *      links.c         measures streams to a neighbour
 *      processor.c     measures copying, adding, the codecs
 *    estimate.c      makes one model from all members' readings
 *
 *  All values are seconds, or seconds per byte: of two measurements the slower is the larger. Every rank of a
 *  communicator holds the same model, so all take the same decisions. */
#pragma once

#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

/** The largest noise: beyond this, a larger value says nothing more. */
#define TW_COLL_NOISE_MAX 1000.0

/** Messages of this length need a handshake, whose cost is a turn; shorter ones do not. */
#define TW_COLL_TURN_BYTES ((size_t)32 << 10)

/** How fast links of one kind are: those between nodes, or those inside a node. */
typedef struct tw_coll_tier {
    double alpha_sec;   /**< one small message, from its post to its arrival */
    double beta_sec;    /**< one byte through a node's link, which all ranks of the node share; full duplex */
    double message_sec; /**< one more message in a stream, beyond its bytes */
    /** extra cost of a message of TW_COLL_TURN_BYTES if none is under way before it */
    double turn_sec;
    double busy; /**< share of the stream's time for which a rank's processor is busy with it, 0 to 1 */
    /** by which share of beta_sec typical readings of the speed were slower; 0 is certain */
    double noise;
} tw_coll_tier_t;

/** Speeds of each kind of codec: four, indexed by hadamard + 2 * stochastic; codecs that differ only in
 *  rounding are decoded alike. Measuring leaves speeds of missing codecs at 0. */
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

/** Processor times are per byte of the plain side, while all ranks of the node work at once. */
typedef struct tw_coll_model {
    tw_coll_tier_t inter; /**< between nodes */
    tw_coll_tier_t node;  /**< inside a node */
    double copy_sec;      /**< copy or convert */
    double reduce_sec;    /**< plain sum of two inputs */
    double encode_sec[TW_COLL_MODEL_SPEEDS], decode_sec[TW_COLL_MODEL_SPEEDS];
    /** extra cost of a lossless message, whatever its length: tables, scales, lists */
    double encode_message_sec, decode_message_sec;
    double cpu_noise; /**< noise of the processor's times, see tw_coll_tier_t */
} tw_coll_model_t;

/** Seconds that a codec takes for so many messages with so many plain bytes in all. */
double tw_coll_model_encode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec, double messages,
                                double bytes);
double tw_coll_model_decode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec, double messages,
                                double bytes);

/** Factor by which streams that meet at a link are slower than a single one: 3 to 6 % were measured with four
 *  nodes on 1 Gb/s Ethernet. */
#define TW_COLL_CROWD 1.05

/** What an operation costs, derived from its flows (program/cost.h). Only sizes determine it, so it is the
 *  same on all ranks. */
typedef struct tw_coll_cost {
    /** rounds: how many messages wait for one another on the longest path; in each round the busiest rank
     *  sends inter_messages / inter_rounds messages in a row */
    int inter_rounds, node_rounds;
    double inter_messages, node_messages; /**< sent by the busiest rank */
    double inter_bytes;                   /**< through the busiest node's link: the larger of in and out */
    double node_bytes;                    /**< moved inside the busiest node, by all its ranks */
    int crowded;                          /**< 1: streams from several nodes meet at a link */
    double cpu_sec;                       /**< of the busiest rank: copying, adding, encoding and decoding */
    /** time that overlaps nothing: the first chunk's encoding, the last one's decoding, ... */
    double fill_sec;
} tw_coll_cost_t;

/** Estimate the seconds: the rounds in a row, each with a turn unless more messages hide it; links and
 *  processor at the same time; then what does not overlap. */
double tw_coll_model_time(const tw_coll_model_t *model, const tw_coll_cost_t *cost);

/** The model with its noise added to every time: how slow things typically were during the measurement. */
void tw_coll_model_typical(const tw_coll_model_t *model, tw_coll_model_t *typical);

/** The model as it may be when nothing else runs: bytes inside a node move by copying, so if a link there
 *  seems slower than TW_COLL_QUIET_COPIES copies by one rank, others were using the processors during the
 *  measurement. */
void tw_coll_model_quiet(const tw_coll_model_t *model, tw_coll_model_t *quiet);
#define TW_COLL_QUIET_COPIES 4

/* ---- as text: what TW_COLL_MODEL holds ----------------------------------------------------------------- */

/** The defaults of a text, a machine with 1 Gb/s Ethernet between nodes. */
void tw_coll_model_default(tw_coll_model_t *model);
/** Read a text onto the defaults: sections separated by ';', "name:key=value,key=value". Sections and keys:
 *    inter, node     alpha=50us  beta=1gbit (bits/s)  message=2us  turn=100us  busy=0.2  noise=0.1
 *    cpu             copy=8G  reduce=4G (bytes/s)  noise=0.1
 *    codec           encode=4G  decode=4G (bytes/s of plain data, every codec)
 *    int8, ...       the same for the codec of that name; 0: as codec
 *    lossless        the same, and encode_message=30us  decode_message=15us (a message, beyond its bytes)
 *  TW_ERR_CONFIG, logged with the nearest known name; the model stays then. */
tw_status_t tw_coll_model_parse(const char *text, tw_coll_model_t *model);
#define TW_COLL_MODEL_TEXT_BYTES 640
/** Write the model as text into `buf` (TW_COLL_MODEL_TEXT_BYTES are enough); returns buf. */
const char *tw_coll_model_format(const tw_coll_model_t *model, char *buf, size_t buf_bytes);

TW_C_END
