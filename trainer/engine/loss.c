/* Measures the errors of lossy codecs on a sample of this rank's gradients and weights. The figures show harm
 * that a loss curve would not show. */
#include "quant/loss.h"

#include "trainer/engine/calls.h"

/* In every 16th step 1 of SHARE elements is measured: a thousandth of encoding all elements in all steps. */
#define EVERY_STEPS 16
#define SHARE 64
/* Warn if more than this share of a tensor's gradients becomes 0. For values of similar size, rounding to 4
 * bits makes 15 to 20 % of them 0. */
#define MOST_VANISHED 0.5
#define LEAST_VALUES 1024
/* warn after this many measurements in a row, as some gradients are small only early in a training */
#define MOST_TIMES 4
/* With Muon, warn if the 2-norm of the errors is more than this share of the gradients': see docs/loss.md. */
#define MUON_MOST_ERROR 0.03

tw_status_t tw_loss_init(tw_engine_t *engine)
{
    engine->vanished =
        tw_engine_alloc(engine, TW_ENGINE_SCRATCH, engine->n_tensors, sizeof(*engine->vanished), "counts");
    return engine->vanished ? TW_OK : TW_ERR_NO_MEMORY;
}

static int is_due(const tw_engine_t *engine)
{
    return engine->steps_done % EVERY_STEPS == 0;
}

/** Make a sampler. Returns NULL if the codec is lossless, or if there is no memory (logged). */
static tw_quant_sampler_t *loss_create(const tw_quant_codec_t *codec)
{
    tw_quant_sampler_t *sampler = NULL;
    return tw_train_is_rounded(codec) && tw_quant_sampler_create(codec, &sampler) == TW_OK ? sampler : NULL;
}

void tw_loss_merge(tw_engine_losses_t *sum, const tw_engine_losses_t *more)
{
    tw_quant_loss_merge(&sum->gradients, &more->gradients);
    tw_quant_loss_merge(&sum->weights, &more->weights);
}

/** Warn if the codec has made most of a tensor's gradients 0 too often. A run warns once. */
static void warn(tw_engine_t *engine, size_t tensor, const tw_quant_loss_t *loss)
{
    double vanished = tw_quant_loss_vanished(loss);
    int is_much = vanished > MOST_VANISHED && loss->n_values >= LEAST_VALUES;
    engine->vanished[tensor] = is_much ? (unsigned char)(engine->vanished[tensor] + 1) : 0;
    if (engine->rank != 0 || engine->has_warned || engine->vanished[tensor] < MOST_TIMES) {
        return;
    }
    engine->has_warned = 1;
    tw_warn("step %llu: %.0f %% of the gradients of %s that are not 0 become 0 on the network, in %d bits "
            "beside larger ones: they do not learn; set thinwire.gradients=lossless%s (the only such line; "
            "see gradients_zeroed in --metrics)",
            (unsigned long long)engine->steps_done + 1, 100 * vanished, engine->names[tensor],
            tw_quant_row_get(engine->codecs.gradients.kind)->bits,
            engine->codecs.gradients.hadamard ? ", or int8" : ", int4 without hadamard=no, or int8");
}

/** Warn once if Muon updates a matrix whose gradients are rounded coarsely. It makes all directions of an
 *  update equally long, also those that hold only rounding errors. */
static void warn_of_muon(tw_engine_t *engine, size_t tensor, const tw_quant_loss_t *loss)
{
    double error = tw_quant_loss_error(loss);
    if (engine->rank != 0 || engine->has_warned_of_muon || !(error > MUON_MOST_ERROR) ||
        !tw_muon_has(engine, tensor)) {
        return;
    }
    engine->has_warned_of_muon = 1;
    tw_warn(
        "step %llu: rounding errors are %.0f %% of the gradients of %s, and Muon makes directions that hold "
        "only errors as long as all others: validation losses were 4 to 9 %% worse in our runs; set "
        "thinwire.gradients=lossless, or int8 (the only such line; see gradients_error in --metrics)",
        (unsigned long long)engine->steps_done + 1, 100 * error, engine->names[tensor]);
}

void tw_loss_gradients(tw_engine_t *engine, const tw_coll_args_t *args)
{
    tw_quant_sampler_t *sampler = is_due(engine) ? loss_create(&engine->codecs.gradients) : NULL;
    for (size_t i = 0; sampler && i < args->n_segments; i++) {
        const tw_coll_segment_t *segment = &args->segments[i];
        tw_quant_loss_t loss = {0};
        const tw_quant_message_segment_t values = {.src = segment->src ? segment->src : segment->dst,
                                                   .n_elems = segment->n_elems,
                                                   .row_elems = segment->row_elems};
        if (!segment->unquantized &&
            tw_quant_loss_add(sampler, args->type, &values, segment->n_elems / SHARE, &loss) == TW_OK) {
            tw_quant_loss_merge(&engine->losses.gradients, &loss);
            if (segment->first_elem == 0) { /* the tensor's first slice, so warn once a step */
                warn(engine, segment->tensor, &loss);
                warn_of_muon(engine, segment->tensor, &loss);
            }
        }
    }
    tw_quant_sampler_destroy(sampler);
}

void tw_loss_weights(tw_engine_t *engine)
{
    int is_here = engine->units[TW_MODEL_ROOT].shard && is_due(engine);
    tw_quant_sampler_t *sampler = is_here ? loss_create(&engine->codecs.weights) : NULL;
    for (size_t u = 0; sampler && u < engine->n_units; u++) {
        const tw_engine_unit_t *unit = &engine->units[u];
        for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
            const tw_quant_message_segment_t values = {
                .src = tw_engine_weight_at(engine, unit->shard, engine->piece_offsets[t]),
                .n_elems = engine->pieces[t].n_elems};
            if (engine->tensors[t].n_dims == 2) {
                (void)tw_quant_loss_add(sampler, engine->weight_type, &values, values.n_elems / SHARE,
                                        &engine->losses.weights);
            }
        }
    }
    tw_quant_sampler_destroy(sampler);
}
