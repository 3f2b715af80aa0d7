/* What options mean for a step: how much goes at a time, what is encoded, what comes after what. An engine
 * asks it here, and so does who plans one. */
#include "trainer/engine/engine.h"

/* ---- the order ----------------------------------------------------------------------------------------- */

size_t tw_engine_visited(size_t n_layer, size_t visit)
{
    if (visit == 0 || visit == n_layer + 1) {
        return TW_MODEL_ROOT;
    }
    return visit <= n_layer ? visit : 2 * n_layer + 2 - visit;
}

size_t tw_engine_block_slots(const tw_train_options_t *o, const tw_model_t *model)
{
    size_t root = tw_model_unit_get(model, TW_MODEL_ROOT)->n_elems;
    size_t block = tw_model_unit_get(model, 1)->n_elems, n_layer = tw_model_n_units(model) - 1;
    size_t ahead = (size_t)o->prefetch_elems / block, live = (size_t)o->max_live_elems;
    size_t most = live > root + block ? (live - root) / block : 1;
    size_t n = 1 + (ahead > 0 ? ahead : 1);
    n = n < most ? n : most;
    return n < n_layer ? n : n_layer;
}

int tw_engine_is_muons(const tw_train_options_t *o, const tw_model_tensor_t *tensor, int is_frozen)
{
    return o->optimizer == TW_TRAIN_MUON && tensor->n_dims == 2 && tensor->unit != TW_MODEL_ROOT &&
           !is_frozen;
}

/* ---- at a time ----------------------------------------------------------------------------------------- */

int tw_engine_begins_bucket(size_t *held, size_t n_elems, int64_t bucket)
{
    int begins = *held == TW_ENGINE_NO_BUCKET || *held + n_elems > (size_t)bucket;
    *held = begins ? n_elems : *held + n_elems;
    return begins;
}

/** The codec of blocks with so many bits; what has none is checked where options are. */
static tw_quant_kind_t kind_of(int64_t bits)
{
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        if (bits > 0 && tw_quant_row_get((tw_quant_kind_t)kind)->bits == bits) {
            return (tw_quant_kind_t)kind;
        }
    }
    return TW_QUANT_PLAIN;
}

size_t tw_engine_reduce_slice_step(const tw_train_options_t *o)
{
    const tw_quant_codec_t codec = {.kind =
                                        o->quantized_gradients ? kind_of(o->gradient_bits) : TW_QUANT_PLAIN,
                                    .block = (int)o->gradient_block};
    return tw_hpz_slice_step(0, &codec);
}

size_t tw_engine_reduce_slice_most(const tw_train_options_t *o, int world)
{
    size_t most = (size_t)o->reduce_bucket / (size_t)world, step = tw_engine_reduce_slice_step(o);
    return most > step ? most : step;
}

/* ---- codecs -------------------------------------------------------------------------------------------- */

static tw_status_t delta_codec(const tw_train_options_t *o, tw_quant_codec_t *codec)
{
    tw_quant_kind_t kind = kind_of(o->delta_bits);
    if (o->delta_bits == 0) {
        return TW_OK;
    }
    *codec =
        (tw_quant_codec_t){.kind = kind,
                           .block = o->delta_block > 0 ? (int)o->delta_block : tw_quant_row_get(kind)->block,
                           .hadamard = o->delta_hadamard && o->delta_bits < 8};
    return tw_quant_codec_check(codec);
}

tw_status_t tw_engine_codecs_of(const tw_train_options_t *o, tw_engine_codecs_t *out)
{
    *out = (tw_engine_codecs_t){.weights.kind = o->lossless_weights ? TW_QUANT_LOSSLESS : TW_QUANT_PLAIN,
                                .gradients.kind = o->lossless_gradients ? TW_QUANT_LOSSLESS : TW_QUANT_PLAIN};
    if (o->quantized_weights) {
        out->weights = (tw_quant_codec_t){.kind = TW_QUANT_INT8, .block = (int)o->weight_block};
        TW_TRY(tw_quant_codec_check(&out->weights));
    }
    if (o->quantized_gradients) {
        out->gradients = (tw_quant_codec_t){.kind = kind_of(o->gradient_bits),
                                            .block = (int)o->gradient_block,
                                            .hadamard = o->gradient_hadamard};
        TW_TRY(tw_quant_codec_check(&out->gradients));
    }
    if (o->quantized_gradients && o->gradient_inner == 1) {
        out->inner = (tw_quant_codec_t){.kind = TW_QUANT_INT8, .block = (int)o->gradient_block};
    }
    return delta_codec(o, &out->delta);
}

const tw_quant_codec_t *tw_engine_codec(const tw_quant_codec_t *codec)
{
    return tw_quant_form(codec) != TW_QUANT_AS_IS ? codec : NULL;
}
