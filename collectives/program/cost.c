/** Makes an operation's cost from traffic and sizes. */
#include "collectives/program/cost.h"

#include <math.h>

/** About how many bytes a lossless message has beside its elements: scales, classes, tables. Measured on
 *  gradients and weights, in messages of 2 to 64 KB. */
#define LOSSLESS_HEAD_BYTES 160

double tw_cost_encoded_bytes(const tw_case_t *c, const tw_quant_codec_t *codec)
{
    double bytes = 0;
    if (!codec) {
        return c->bytes;
    }
    for (size_t s = 0; s < c->args->n_segments; s++) {
        const tw_coll_segment_t *segment = &c->args->segments[s];
        const tw_quant_codec_t *own = tw_segment_codec(c->args, segment);
        if (own && codec != c->args->codec) {
            own = codec;
        }
        for (int r = 0; r < c->topo->world; r++) {
            size_t n = segment->counts ? segment->counts[r]
                                       : tw_coll_shard_elems(segment->n_elems, c->topo->world, r);
            bytes += tw_quant_usual_bytes(own, c->args->type, n);
        }
    }
    return bytes;
}

double tw_cost_plain_chunk(const tw_case_t *c)
{
    double encoded = c->encoded_bytes; /* a lossless shard is cut into chunks by its plain bytes */
    int in_blocks = encoded > 0 && tw_quant_form(c->args->codec) != TW_QUANT_MESSAGE;
    double ratio = in_blocks ? c->bytes / encoded : 1;
    return fmin(c->chunk_bytes * ratio, c->bytes / c->topo->world);
}

double tw_cost_messages(const tw_case_t *c, double bytes)
{
    return bytes > 0 ? ceil(bytes / c->chunk_bytes) : 0;
}

/** Returns the seconds of computations, each on `messages` messages with `bytes` plain bytes in all. */
static double work_sec(const tw_case_t *c, const tw_work_count_t *work, double messages, double bytes)
{
    const tw_quant_codec_t *codecs[TW_FORM_COUNT] = {
        [TW_FORM_CODEC] = c->args->codec, [TW_FORM_INNER] = c->args->inner_codec};
    double sec = work->adds * c->model->reduce_sec * bytes;
    for (int f = 0; f < TW_FORM_COUNT; f++) {
        if (codecs[f]) {
            sec += work->encodes[f] * tw_coll_model_encode_sec(c->model, codecs[f], messages, bytes) +
                   work->decodes[f] * tw_coll_model_decode_sec(c->model, codecs[f], messages, bytes);
        }
    }
    return sec;
}

/** Returns the number of messages of rows of row[hop] shards. A message has as many shards as fit. */
static double row_messages(const tw_case_t *c, const int *row, double shard)
{
    double fits = shard > 0 ? fmax(1, floor(c->chunk_bytes / shard)) : INFINITY, messages = 0;
    for (int hop = 0; hop < TW_TRAFFIC_HOPS; hop++) {
        messages += row[hop] > 0 ? fmax(1, ceil(row[hop] / fits)) * fmax(1, tw_cost_messages(c, shard)) : 0;
    }
    return messages;
}

void tw_cost_read(const tw_case_t *c, const tw_flows_t *flows, const tw_traffic_t *traffic,
                  tw_coll_cost_t *cost)
{
    double share = 1.0 / tw_flows_count_shards(flows, c->topo);
    double shard[TW_FORM_COUNT] = {[TW_FORM_PLAIN] = c->bytes * share,
                                   [TW_FORM_CODEC] = c->encoded_bytes * share,
                                   [TW_FORM_INNER] = c->inner_bytes * share};
    double chunks = tw_cost_messages(c, shard[TW_FORM_PLAIN]);
    int encodes = traffic->work.encodes[TW_FORM_CODEC] > 0;
    int has_heads = tw_quant_form(c->args->codec) == TW_QUANT_MESSAGE;
    double chunk = fmin(c->chunk_bytes, c->bytes * share), merged_sec = 0;
    if (has_heads) {
        shard[TW_FORM_CODEC] += chunks * LOSSLESS_HEAD_BYTES;
    }
    *cost = (tw_coll_cost_t){.inter_rounds = traffic->inter_rounds,
                             .node_rounds = traffic->node_rounds,
                             .crowded = traffic->crowded};
    for (int f = 0; f < TW_FORM_COUNT; f++) {
        cost->inter_bytes += traffic->inter_shards[f] * shard[f];
        cost->node_bytes += traffic->node_shards[f] * shard[f];
        cost->inter_messages += traffic->inter_moves[f] * tw_cost_messages(c, shard[f]);
        cost->node_messages += traffic->node_moves[f] * tw_cost_messages(c, shard[f]);
    }
    if (flows->merges) { /* the longest path also waits for one whole message */
        const tw_coll_tier_t *tier = traffic->inter_rounds > 0 ? &c->model->inter : &c->model->node;
        merged_sec = fmin(c->chunk_bytes, shard[TW_FORM_PLAIN]) * tier->beta_sec;
        cost->inter_messages = row_messages(c, traffic->inter_row, shard[TW_FORM_PLAIN]);
        cost->node_messages = row_messages(c, traffic->node_row, shard[TW_FORM_PLAIN]);
    }
    cost->cpu_sec = work_sec(c, &traffic->work, chunks, shard[TW_FORM_PLAIN]);
    tw_work_count_t fill = traffic->fill;
    if (has_heads && traffic->crowded && chunks <= 1) {
        /* the messages of all owners arrive at the very end, and are decoded then */
        fill.decodes[TW_FORM_CODEC] = traffic->work.decodes[TW_FORM_CODEC];
    }
    cost->fill_sec = merged_sec + (encodes ? work_sec(c, &fill, 1, tw_cost_plain_chunk(c)) : 0);
    if (flows->of == TW_FLOWS_ROOT ||
        flows->of == TW_FLOWS_SOME) { /* nothing else is sent while a shard goes from rank to rank */
        cost->fill_sec += chunk * (traffic->inter_rounds * c->model->inter.beta_sec +
                                   traffic->node_rounds * c->model->node.beta_sec);
    }
}
