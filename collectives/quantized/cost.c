#include "collectives/quantized/cost.h"

#include <math.h>

#include "collectives/quantized/chunks.h"

/** What the lossless codec leaves of weights and gradients: their exponents, mostly. */
static double lossless_share(tw_type_t type)
{
    return type == TW_TYPE_BF16 ? 0.65 : type == TW_TYPE_FP16 ? 0.84 : 0.82;
}

static double segment_bytes(tw_type_t type, const tw_quant_codec_t *codec, size_t n_elems)
{
    double plain = (double)(n_elems * tw_type_bytes(type));

    if (!codec) {
        return plain;
    }
    return codec->lossless ? plain * lossless_share(type) : (double)tw_quant_encoded_bytes(codec, n_elems);
}

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
            bytes += segment_bytes(c->args->type, own, n);
        }
    }
    return bytes;
}

double tw_cost_plain_chunk(const tw_case_t *c)
{
    const tw_quant_codec_t *codec = c->args->codec;
    double encoded = c->encoded_bytes;
    int in_blocks = encoded > 0 && !(codec && codec->lossless); /* lossless chunks are cut by plain bytes */
    double ratio = in_blocks ? c->bytes / encoded : 1;

    return fmin(c->chunk_bytes * ratio, c->bytes / c->topo->world);
}

/** Ranks of the largest node, and of the others together. */
static void largest_node(const tw_topo_t *topo, double *inside, double *outside)
{
    *inside = topo->max_local;
    *outside = topo->world - topo->max_local;
}

void tw_cost_add_spread_codec(const tw_case_t *c, tw_coll_cost_t *cost)
{
    double encode = tw_coll_model_encode_sec(c->model, c->args->codec);
    double decode = tw_coll_model_decode_sec(c->model, c->args->codec);

    cost->cpu_sec += encode * c->bytes / c->topo->world + decode * c->bytes;
    cost->fill_sec += (encode + decode) * tw_cost_plain_chunk(c);
}

void tw_cost_add_spread_nodes(const tw_case_t *c, tw_coll_cost_t *cost)
{
    const tw_topo_t *topo = c->topo;
    double encoded = c->encoded_bytes;
    double shard_messages = tw_cost_messages(c, encoded / topo->world), inside, outside;

    largest_node(topo, &inside, &outside);
    if (topo->n_nodes > 1) {
        cost->inter_rounds += topo->n_nodes - 1;
        cost->inter_messages += shard_messages * (topo->n_nodes - 1);
        cost->inter_bytes += encoded * outside / topo->world;
    }
    if (inside > 1) {
        cost->node_rounds += 1;
        cost->node_messages += shard_messages * topo->n_nodes * (inside - 1);
        cost->node_bytes += encoded * (inside - 1);
    }
    tw_cost_add_spread_codec(c, cost);
}

void tw_cost_add_one_hop(const tw_case_t *c, tw_coll_cost_t *cost)
{
    double encode = tw_coll_model_encode_sec(c->model, c->args->codec);
    double decode = tw_coll_model_decode_sec(c->model, c->args->codec);

    tw_cost_add_all_pairs(c, c->encoded_bytes / c->topo->world, cost);
    cost->cpu_sec += (encode + decode) * c->bytes;
    cost->fill_sec += (encode + decode * c->topo->world) * tw_cost_plain_chunk(c);
}

void tw_cost_add_two_hop(const tw_case_t *c, tw_coll_cost_t *cost)
{
    const tw_topo_t *topo = c->topo;
    const tw_quant_codec_t *inner = c->args->inner_codec;
    double encode = tw_coll_model_encode_sec(c->model, c->args->codec);
    double decode = tw_coll_model_decode_sec(c->model, c->args->codec);
    double chunk = tw_cost_plain_chunk(c), encoded = c->encoded_bytes, inside, outside;

    largest_node(topo, &inside, &outside);
    if (inside > 1) {
        double inner_bytes = c->inner_bytes;
        double inner_sec =
            inner ? tw_coll_model_encode_sec(c->model, inner) + tw_coll_model_decode_sec(c->model, inner)
                  : c->model->reduce_sec;
        cost->node_rounds += 1;
        cost->node_messages += tw_cost_messages(c, inner_bytes * (inside - 1) / inside);
        cost->node_bytes += inner_bytes * (inside - 1);
        cost->cpu_sec += inner_sec * c->bytes;
        cost->fill_sec += inner_sec * chunk * inside;
    }
    if (topo->n_nodes > 1) {
        cost->inter_rounds += 1;
        cost->inter_messages += tw_cost_messages(c, encoded / topo->world) * outside / inside;
        cost->inter_bytes += encoded * outside / topo->world;
        cost->crowded |= topo->n_nodes > 2;
    }
    cost->cpu_sec += encode * c->bytes / inside + decode * c->bytes * topo->n_nodes / topo->world;
    cost->fill_sec += (encode + decode * topo->n_nodes) * chunk;
}
