#include "collectives/model/model.h"

#include <math.h>

double tw_coll_model_encode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec, double messages,
                                double bytes)
{
    double fixed_sec = tw_quant_form(codec) == TW_QUANT_MESSAGE ? messages * model->encode_message_sec : 0;
    return fixed_sec + bytes * model->encode_sec[tw_coll_model_encoder(codec)];
}

double tw_coll_model_decode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec, double messages,
                                double bytes)
{
    double fixed_sec = tw_quant_form(codec) == TW_QUANT_MESSAGE ? messages * model->decode_message_sec : 0;
    return fixed_sec + bytes * model->decode_sec[tw_coll_model_decoder(codec)];
}

/** Returns the seconds of all rounds on one tier. More messages in a round hide more of the turn. */
static double rounds_sec(const tw_coll_tier_t *tier, int rounds, double messages, double bytes)
{
    if (rounds == 0) {
        return 0;
    }
    double per_round = fmax(1, messages / rounds);
    double share = messages > 0 ? bytes / messages / (double)TW_COLL_TURN_BYTES : 0;
    return rounds * (tier->alpha_sec + tier->turn_sec * (share < 1 ? share : 1) / per_round);
}

double tw_coll_model_time(const tw_coll_model_t *model, const tw_coll_cost_t *cost)
{
    const tw_coll_tier_t *inter = &model->inter, *node = &model->node;
    double crowd = cost->crowded ? TW_COLL_CROWD : 1;
    double inter_sec =
        cost->inter_bytes * inter->beta_sec * crowd + cost->inter_messages * inter->message_sec;
    double node_sec = cost->node_bytes * node->beta_sec + cost->node_messages * node->message_sec;
    double busy_sec = cost->cpu_sec + inter_sec * inter->busy + node_sec * node->busy;
    double turns_sec = rounds_sec(inter, cost->inter_rounds, cost->inter_messages, cost->inter_bytes) +
                       rounds_sec(node, cost->node_rounds, cost->node_messages, cost->node_bytes);
    return turns_sec + fmax(busy_sec, fmax(inter_sec, node_sec)) + cost->fill_sec;
}

static void slow_tier(tw_coll_tier_t *tier)
{
    double factor = 1 + tier->noise;
    tier->alpha_sec *= factor;
    tier->beta_sec *= factor;
    tier->message_sec *= factor;
    tier->turn_sec *= factor;
}

void tw_coll_model_typical(const tw_coll_model_t *model, tw_coll_model_t *typical)
{
    double factor = 1 + model->cpu_noise;
    *typical = *model;
    slow_tier(&typical->inter);
    slow_tier(&typical->node);
    typical->copy_sec *= factor;
    typical->reduce_sec *= factor;
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        typical->encode_sec[i] *= factor;
        typical->decode_sec[i] *= factor;
    }
    typical->encode_message_sec *= factor;
    typical->decode_message_sec *= factor;
}

void tw_coll_model_quiet(const tw_coll_model_t *model, tw_coll_model_t *quiet)
{
    double most_sec = TW_COLL_QUIET_COPIES * model->copy_sec;
    *quiet = *model;
    quiet->node.beta_sec = model->node.beta_sec < most_sec ? model->node.beta_sec : most_sec;
}
