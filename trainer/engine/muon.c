/* Muon, for blocks' matrices: each matrix's momentum is made orthogonal, which needs the whole matrix. So
 * each matrix has an owner, a rank; ranks take turns. In stages 1 to 3 ranks send their pieces of a unit's
 * momenta to the owners, who send back the pieces of the results. In stage 0 the owners only send results, to
 * all ranks. Both directions use bf16: 4 bytes a weight in all. With W ranks, (W - 1) / W of that leaves a
 * rank. A unit is sent while matrices of the unit before it are made orthogonal. Momenta and results have the
 * same bits in all stages. If the model is on a device, matrices are made orthogonal there; momenta stay in
 * host memory, from which they are sent. */
#include <math.h>
#include <string.h>

#include "trainer/engine/calls.h"

/* elements that are converted to fp32 at a time */
enum { CHUNK_ELEMS = 512 };

int tw_muon_has(const tw_engine_t *engine, size_t tensor)
{
    return tw_engine_is_muons(engine->options, &engine->tensors[tensor], engine->groups[tensor].is_frozen);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/** Assign the model's matrices to the ranks in turn. */
static void find_owners(tw_engine_t *engine)
{
    int next = 0;
    for (size_t t = 0; t < engine->n_tensors; t++) {
        engine->muon.owners[t] = tw_muon_has(engine, t) ? next++ % engine->world : -1;
    }
}

/* Maxima over all units. */
typedef struct most {
    size_t sent; /* elements of this rank's pieces of a unit's matrices */
    /* elements of a unit's matrices that this rank owns; 0 in stage 0, where `sent` has whole matrices */
    size_t owned;
    size_t scratch; /* floats of host memory for a matrix */
    size_t near;    /* bytes for a matrix on the model's device */
} most_t;

static most_t count_most(const tw_engine_t *engine)
{
    most_t most = {0};
    for (size_t u = 0; u < engine->n_units; u++) {
        const tw_engine_unit_t *unit = &engine->units[u];
        size_t sent = 0, owned = 0;
        for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
            const tw_model_tensor_t *of = &engine->tensors[t];
            sent += engine->muon.owners[t] >= 0 ? engine->pieces[t].n_elems : 0;
            if (engine->muon.owners[t] == engine->rank) {
                tw_model_orthogonal_t takes =
                    tw_model_orthogonal_of(engine->model, of->shape[0], of->shape[1]);
                owned += engine->stage > 0 ? of->n_elems : 0;
                most.scratch = TW_LARGER(most.scratch, of->n_elems + takes.scratch_elems);
                most.near = TW_LARGER(most.near, takes.near_bytes);
            }
        }
        most.sent = TW_LARGER(most.sent, sent);
        most.owned = TW_LARGER(most.owned, owned);
    }
    return most;
}

/** Allocate the scratch in which a matrix is made orthogonal. */
static tw_status_t take_scratch(tw_engine_t *engine, const most_t *most)
{
    tw_engine_muon_t *muon = &engine->muon;
    muon->scratch =
        tw_engine_alloc(engine, TW_ENGINE_SCRATCH, most->scratch, sizeof(float), "Muon's scratch");
    if (!muon->scratch) {
        return TW_ERR_NO_MEMORY;
    }
    tw_engine_pin(engine, muon->scratch, most->scratch * sizeof(float));
    if (most->near > 0) {
        muon->near = tw_engine_alloc_near(engine, TW_ENGINE_SCRATCH, most->near, "Muon's scratch");
    }
    return muon->near || most->near == 0 ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t take_place(tw_engine_t *engine, tw_engine_muon_place_t *place, size_t sent, size_t owned)
{
    place->sent = tw_engine_alloc(engine, TW_ENGINE_MOVING, sent, sizeof(*place->sent), "momenta");
    place->owned = tw_engine_alloc(engine, TW_ENGINE_MOVING, owned, sizeof(*place->owned), "momenta");
    return place->sent && place->owned ? tw_engine_ops_init(engine, &place->ops, 2) : TW_ERR_NO_MEMORY;
}

tw_status_t tw_muon_init(tw_engine_t *engine)
{
    tw_engine_muon_t *muon = &engine->muon;
    size_t world = (size_t)engine->world;
    if (engine->options->optimizer != TW_TRAIN_MUON) {
        return TW_OK;
    }
    muon->owners =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_tensors, sizeof(*muon->owners), "owners");
    muon->counts = tw_engine_alloc(engine, TW_ENGINE_MOVING,
                                   world * (world > engine->n_tensors ? world : engine->n_tensors),
                                   sizeof(*muon->counts), "counts");
    muon->recv_counts =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, world, sizeof(*muon->recv_counts), "counts");
    if (!muon->owners || !muon->counts || !muon->recv_counts) {
        return TW_ERR_NO_MEMORY;
    }
    find_owners(engine);
    const most_t most = count_most(engine);
    tw_status_t status = take_scratch(engine, &most);
    for (size_t i = 0; i < TW_ENGINE_MUON_PLACES && i < engine->n_layer && status == TW_OK; i++) {
        status = take_place(engine, &muon->places[i], most.sent, most.owned);
    }
    return status;
}

/* ---- where pieces lie ---------------------------------------------------------------------------------- */

/** Return the buffers that a block uses. The root needs none, as Muon updates no matrix of the root. */
static tw_engine_muon_place_t *muon_place_of(const tw_engine_t *engine, const tw_engine_unit_t *unit)
{
    size_t layer = (size_t)(unit - engine->units) - 1;
    return (tw_engine_muon_place_t *)(uintptr_t)&engine->muon.places[layer % TW_ENGINE_MUON_PLACES];
}

/** Return 1 if Muon updates any matrix of a unit. */
static int has_matrices(const tw_engine_t *engine, const tw_engine_unit_t *unit)
{
    int any = 0;
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors && engine->muon.owners;
         t++) {
        any |= engine->muon.owners[t] >= 0;
    }
    return any;
}

/** Return the address of a tensor's piece in `sent`. Pieces there are ordered by owner, then tensor; in stage
 *  0 by tensor alone. (Pieces in `owned` are ordered by sender, then tensor.) */
static uint16_t *sent_place(const tw_engine_t *engine, const tw_engine_unit_t *unit, size_t tensor)
{
    const int *owners = engine->muon.owners;
    size_t at = 0;
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        int is_before = engine->stage == 0
                            ? t < tensor
                            : owners[t] < owners[tensor] || (owners[t] == owners[tensor] && t < tensor);
        at += owners[t] >= 0 && is_before ? engine->pieces[t].n_elems : 0;
    }
    return muon_place_of(engine, unit)->sent + at;
}

/** Count the elements of `rank`'s pieces of `owner`'s matrices, among the unit's tensors before `end`. */
static size_t count_pieces(const tw_engine_t *engine, const tw_engine_unit_t *unit, int owner, int rank,
                           size_t end)
{
    size_t n = 0;
    for (size_t t = unit->first_tensor; t < end; t++) {
        n += engine->muon.owners[t] == owner ? tw_hpz_piece_of_rank(engine->hpz, t, rank).n_elems : 0;
    }
    return n;
}

/* ---- the exchange -------------------------------------------------------------------------------------- */

/** Post an operation on momenta or matrices. They are encoded where gradients are, but never rounded. */
static tw_status_t muon_post(tw_engine_t *engine, const tw_engine_unit_t *unit, tw_coll_args_t *args)
{
    static const tw_quant_codec_t lossless = {.kind = TW_QUANT_LOSSLESS};
    uint64_t planned = TW_ENGINE_NOT_PLANNED;
    if (tw_train_codec(&engine->codecs.gradients)) {
        tw_engine_encode(engine, &lossless, args);
    }
    return tw_engine_post(engine, &muon_place_of(engine, unit)->ops, args, INT64_MAX, &planned);
}

static tw_status_t muon_exchange(tw_engine_t *engine, const tw_engine_unit_t *unit, int is_back)
{
    tw_engine_muon_t *muon = &engine->muon;
    tw_engine_muon_place_t *place = muon_place_of(engine, unit);
    size_t end = unit->first_tensor + unit->n_tensors, n_sent = 0, n_owned = 0;
    for (int r = 0; r < engine->world; r++) {
        muon->counts[r] = count_pieces(engine, unit, r, engine->rank, end);
        muon->recv_counts[r] = count_pieces(engine, unit, engine->rank, r, end);
        n_sent += muon->counts[r];
        n_owned += muon->recv_counts[r];
    }
    tw_coll_segment_t segment = {.src = is_back ? place->owned : place->sent,
                                 .dst = is_back ? place->sent : place->owned,
                                 .n_elems = is_back ? n_owned : n_sent,
                                 .counts = is_back ? muon->recv_counts : muon->counts,
                                 .recv_counts = is_back ? muon->counts : muon->recv_counts};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLTOALL, .type = TW_TYPE_BF16, .segments = &segment, .n_segments = 1};
    return muon_post(engine, unit, &args);
}

/** In stage 0, send each orthogonal matrix from its owner to all ranks. */
static tw_status_t hand_round(tw_engine_t *engine, const tw_engine_unit_t *unit)
{
    size_t n = 0, world = (size_t)engine->world;
    memset(engine->muon.counts, 0, world * unit->n_tensors * sizeof(*engine->muon.counts));
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        if (engine->muon.owners[t] >= 0) {
            size_t *counts = engine->muon.counts + n * world;
            counts[engine->muon.owners[t]] = engine->tensors[t].n_elems;
            engine->segments[n++] = (tw_coll_segment_t){
                .dst = sent_place(engine, unit, t), .n_elems = engine->tensors[t].n_elems, .counts = counts};
        }
    }
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BF16, .segments = engine->segments, .n_segments = n};
    return muon_post(engine, unit, &args);
}

/* ---- what is computed ---------------------------------------------------------------------------------- */

/** Compute m = mu m + g, and write g + mu m (Nesterov's momentum) to `sent`. */
static void add_momentum(const tw_engine_t *engine, const tw_engine_unit_t *unit, size_t tensor,
                         float grad_scale)
{
    const tw_engine_piece_t *piece = &engine->pieces[tensor];
    uint16_t *sent = sent_place(engine, unit, tensor);
    float mu = (float)engine->options->momentum, chunk[CHUNK_ELEMS];
    for (size_t at = 0; at < piece->n_elems; at += CHUNK_ELEMS) {
        size_t left = piece->n_elems - at, n = left < CHUNK_ELEMS ? left : CHUNK_ELEMS;
        tw_convert_to_fp32(engine->grad_type,
                           tw_engine_grad_at(engine, unit->shard_grads, engine->piece_offsets[tensor] + at),
                           chunk, n);
        for (size_t i = 0; i < n; i++) {
            float g = chunk[i] * grad_scale, *m = piece->m + at + i;
            *m = mu * *m + g;
            chunk[i] = g + mu * *m;
        }
        tw_convert_from_fp32(TW_TYPE_BF16, chunk, 1.0f, sent + at, n);
    }
}

/** Copy the pieces of an owned matrix from `owned` to their places in `whole`, or back (is_back). */
static void move_pieces(const tw_engine_t *engine, const tw_engine_unit_t *unit, size_t tensor, float *whole,
                        int is_back)
{
    uint16_t *from = muon_place_of(engine, unit)->owned;
    size_t end = unit->first_tensor + unit->n_tensors;
    for (int r = 0; r < engine->world; r++) {
        tw_hpz_piece_t piece = tw_hpz_piece_of_rank(engine->hpz, tensor, r);
        uint16_t *at = from + count_pieces(engine, unit, engine->rank, r, tensor);
        if (is_back) {
            tw_convert_from_fp32(TW_TYPE_BF16, whole + piece.first, 1.0f, at, piece.n_elems);
        } else {
            tw_convert_to_fp32(TW_TYPE_BF16, at, whole + piece.first, piece.n_elems);
        }
        from += count_pieces(engine, unit, engine->rank, r, end);
    }
}

static tw_status_t muon_orthogonalize(tw_engine_t *engine, const tw_engine_unit_t *unit, size_t tensor)
{
    const tw_model_tensor_t *of = &engine->tensors[tensor];
    float *whole = engine->muon.scratch;
    uint16_t *place = sent_place(engine, unit, tensor);
    if (engine->stage == 0) {
        tw_convert_to_fp32(TW_TYPE_BF16, place, whole, of->n_elems);
    } else {
        move_pieces(engine, unit, tensor, whole, 0);
    }
    TW_TRY(tw_model_orthogonalize(engine->model, of->shape[0], of->shape[1], whole, whole + of->n_elems,
                                  engine->muon.near));
    if (engine->stage == 0) {
        tw_convert_from_fp32(TW_TYPE_BF16, whole, 1.0f, place, of->n_elems);
    } else {
        move_pieces(engine, unit, tensor, whole, 1);
    }
    return TW_OK;
}

/** Return Muon's factor sqrt(max(1, outputs / inputs)). A weight is (in,out) in GPT-2, else (out,in). */
static double shape_factor(const tw_engine_t *engine, size_t tensor)
{
    const size_t *shape = engine->tensors[tensor].shape;
    tw_model_family_t family = tw_model_config_get(engine->model)->family;
    int is_in_out = tw_model_family_get(family)->kind == TW_MODEL_KIND_GPT2;
    double ratio = (double)shape[is_in_out] / (double)shape[!is_in_out];
    return sqrt(fmax(1.0, ratio));
}

static void apply(const tw_engine_t *engine, const tw_engine_unit_t *unit, size_t tensor, double lr)
{
    const tw_engine_piece_t *piece = &engine->pieces[tensor];
    const tw_train_group_t *group = &engine->groups[tensor];
    const uint16_t *update = sent_place(engine, unit, tensor);
    double decay = group->decay >= 0 ? group->decay : engine->options->weight_decay;
    float keep = (float)(1.0 - lr * group->lr * decay);
    float rate = (float)(lr * group->lr * shape_factor(engine, tensor)), chunk[CHUNK_ELEMS];
    for (size_t at = 0; at < piece->n_elems; at += CHUNK_ELEMS) {
        size_t left = piece->n_elems - at, n = left < CHUNK_ELEMS ? left : CHUNK_ELEMS;
        tw_convert_to_fp32(TW_TYPE_BF16, update + at, chunk, n);
        for (size_t i = 0; i < n; i++) {
            piece->master[at + i] = keep * piece->master[at + i] - rate * chunk[i];
        }
    }
}

/* ---- a unit -------------------------------------------------------------------------------------------- */

tw_status_t tw_muon_send(tw_engine_t *engine, size_t unit, float grad_scale)
{
    const tw_engine_unit_t *of = &engine->units[unit];
    if (!has_matrices(engine, of)) {
        return TW_OK;
    }
    for (size_t t = of->first_tensor; t < of->first_tensor + of->n_tensors; t++) {
        if (engine->muon.owners[t] >= 0) {
            add_momentum(engine, of, t, grad_scale);
        }
    }
    return engine->stage > 0 ? muon_exchange(engine, of, 0) : TW_OK;
}

tw_status_t tw_muon_answer(tw_engine_t *engine, size_t unit)
{
    const tw_engine_unit_t *of = &engine->units[unit];
    if (!has_matrices(engine, of)) {
        return TW_OK;
    }
    TW_TRY(tw_engine_wait(engine, &muon_place_of(engine, of)->ops));
    for (size_t t = of->first_tensor; t < of->first_tensor + of->n_tensors; t++) {
        if (engine->muon.owners[t] == engine->rank) {
            TW_TRY(muon_orthogonalize(engine, of, t));
        }
    }
    return engine->stage > 0 ? muon_exchange(engine, of, 1) : hand_round(engine, of);
}

tw_status_t tw_muon_apply(tw_engine_t *engine, size_t unit, double lr)
{
    const tw_engine_unit_t *of = &engine->units[unit];
    double peak = tw_train_lr_peak(engine->options);
    double rate = peak > 0 ? engine->options->muon_lr * lr / peak : 0;
    if (!has_matrices(engine, of)) {
        return TW_OK;
    }
    TW_TRY(tw_engine_wait(engine, &muon_place_of(engine, of)->ops));
    for (size_t t = of->first_tensor; t < of->first_tensor + of->n_tensors; t++) {
        if (engine->muon.owners[t] >= 0) {
            apply(engine, of, t, rate);
        }
    }
    return TW_OK;
}

void tw_muon_give_up(tw_engine_t *engine)
{
    for (size_t i = 0; i < TW_ENGINE_MUON_PLACES; i++) {
        (void)tw_engine_wait(engine, &engine->muon.places[i].ops);
    }
}
