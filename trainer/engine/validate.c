/* Computes the loss of the validation split, and checks that all copies of weights are equal. */
#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#include "trainer/engine/calls.h"

static tw_status_t forward_losses(tw_engine_t *engine, double *losses)
{
    tw_status_t status = tw_engine_forward(engine, 0);
    status = status == TW_OK ? tw_walk_enter(engine) : status;
    if (status == TW_OK) {
        status = tw_model_losses(engine->model, engine->weight_ptrs, engine->x[engine->n_layer],
                                 engine->targets, losses);
        tw_walk_leave(engine);
    }
    return status;
}

/* The n first sequences of the validation split, dealt to the ranks: in each round every rank takes a
 * micro-batch. n does not depend on the number of ranks. If the last round has room for more than n, further
 * sequences are computed but not counted. */
typedef struct dealt {
    size_t n, n_rounds, micro, world; /* micro: sequences of a micro-batch */
    double *own, *all; /* sequences' losses: this rank's [n_rounds * micro], all ranks' [world] times that */
} dealt_t;

static size_t count_sequences(const tw_engine_t *engine)
{
    uint64_t there = tw_data_n_sequences(engine->data, TW_DATA_VAL, (size_t)engine->options->sequence);
    uint64_t wanted = (uint64_t)engine->options->val_sequences;
    return (size_t)(wanted < there ? wanted : there);
}

static tw_status_t deal(const tw_engine_t *engine, dealt_t *dealt)
{
    *dealt = (dealt_t){.n = count_sequences(engine),
                       .micro = (size_t)engine->options->micro_batch,
                       .world = (size_t)engine->world};
    size_t round = dealt->micro * dealt->world;
    dealt->n_rounds = (dealt->n + round - 1) / round;
    dealt->own = calloc(dealt->n_rounds * dealt->micro + 1, sizeof(*dealt->own));
    dealt->all = calloc(dealt->n_rounds * round + 1, sizeof(*dealt->all));
    TW_FAIL_IF(!dealt->own || !dealt->all, TW_ERR_NO_MEMORY,
               "rank %d: out of memory for the losses of a validation", engine->rank);
    return TW_OK;
}

static tw_status_t validate_round(tw_engine_t *engine, const dealt_t *dealt, size_t round)
{
    tw_data_place_t place = {.step = round,
                             .n_micros = 1,
                             .world = dealt->world,
                             .rank = (size_t)engine->rank,
                             .batch = dealt->micro,
                             .seq_len = (size_t)engine->options->sequence};
    TW_TRY(tw_engine_batch(engine, TW_DATA_VAL, &place));
    return forward_losses(engine, dealt->own + round * dealt->micro);
}

/** Compute the mean over targets that are not masked; NaN if there are none. Losses are summed in the order
 *  of sequences, so the sum does not depend on which rank computed which. */
static tw_status_t mean_of(const tw_engine_t *engine, const dealt_t *dealt, double *loss)
{
    const tw_data_place_t of = {.seq_len = (size_t)engine->options->sequence};
    uint64_t n_targets;
    double sum = 0;
    TW_TRY(tw_data_count_targets(engine->data, TW_DATA_VAL, &of, 0, dealt->n, &n_targets));
    for (size_t i = 0; i < dealt->n; i++) {
        size_t batch = i / dealt->micro, rank = batch % dealt->world, round = batch / dealt->world;
        sum += dealt->all[(rank * dealt->n_rounds + round) * dealt->micro + i % dealt->micro];
    }
    double learned = (double)n_targets / (double)of.seq_len; /* unmasked targets, in units of a sequence */
    *loss = learned > 0 ? sum / learned : NAN;
    return TW_OK;
}

static tw_status_t validate(tw_engine_t *engine, const dealt_t *dealt)
{
    size_t n_bytes = dealt->n_rounds * dealt->micro * sizeof(double);
    tw_coll_segment_t segment = {.src = dealt->own, .dst = dealt->all, .n_elems = dealt->world * n_bytes};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_engine_report_t report = {.loss = 0};
    tw_status_t status = TW_OK;
    tw_walk_begin(engine, dealt->n_rounds, 1);
    for (size_t round = 0; round < dealt->n_rounds && status == TW_OK; round++) {
        status = validate_round(engine, dealt, round);
    }
    status = status == TW_OK ? tw_engine_run(engine, &args) : status;
    return status == TW_OK ? tw_engine_exchange(engine, &report) : status;
}

tw_status_t tw_engine_validate(tw_engine_t *engine, double *loss)
{
    dealt_t dealt;
    *loss = NAN;
    if (count_sequences(engine) == 0) {
        return TW_OK;
    }
    tw_status_t status = tw_engine_drain(engine);
    tw_engine_totals_t begin = tw_engine_totals_get(engine);
    if (status == TW_OK) {
        status = deal(engine, &dealt);
        status = status == TW_OK ? validate(engine, &dealt) : status;
        status = status == TW_OK ? mean_of(engine, &dealt, loss) : status;
        free(dealt.own);
        free(dealt.all);
    }
    tw_engine_aside_end(engine, TW_ENGINE_VALIDATION, &begin);
    return status;
}

/** Compare the ranks' checksums [world][n_tensors] of whole tensors, which all ranks hold in stages 0 to
 *  2. */
static tw_status_t compare_hashes(const tw_engine_t *engine, const uint64_t *hashes)
{
    for (size_t r = 1; r < (size_t)engine->world; r++) {
        for (size_t t = 0; t < engine->n_tensors; t++) {
            TW_FAIL_IF(hashes[r * engine->n_tensors + t] != hashes[t], TW_ERR_MISMATCH,
                       "rank %d: the weights of rank %zu are not those of rank 0, in %s", engine->rank, r,
                       engine->tensors[t].name);
        }
    }
    return TW_OK;
}

static tw_status_t check_weights(tw_engine_t *engine)
{
    size_t n = (size_t)engine->world * engine->n_tensors;
    uint64_t *hashes = calloc(n, sizeof(*hashes));
    TW_FAIL_IF(!hashes, TW_ERR_NO_MEMORY, "rank %d: out of memory for a check of weights", engine->rank);
    for (size_t t = 0; t < engine->n_tensors; t++) {
        tw_hpz_piece_t whole = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), t);
        const void *weights =
            tw_engine_weight_at(engine, engine->units[engine->tensors[t].unit].weights, whole.offset);
        hashes[(size_t)engine->rank * engine->n_tensors + t] =
            XXH64(weights, whole.n_elems * tw_type_bytes(engine->weight_type), t);
    }
    tw_coll_segment_t segment = {.dst = hashes, .n_elems = n * sizeof(*hashes)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_status_t status = tw_coll_run(engine->coll, &args);
    status = status == TW_OK ? compare_hashes(engine, hashes) : status;
    free(hashes);
    return status;
}

/** Check that all copies are equal. Add the check's bytes to engine->base, which leaves them out of the
 *  counts, as they are not planned. */
static tw_status_t check_copies(tw_engine_t *engine)
{
    tw_coll_counters_t before, after;
    tw_coll_counters_get(engine->coll, &before);
    tw_status_t status =
        engine->has_replicas ? tw_hpz_check(engine->hpz, engine->version) : check_weights(engine);
    tw_coll_counters_get(engine->coll, &after);
    engine->base.inter_node_bytes += after.inter_node_bytes - before.inter_node_bytes;
    engine->base.in_node_bytes += after.in_node_bytes - before.in_node_bytes;
    return status;
}

tw_status_t tw_engine_check(tw_engine_t *engine, int *equal)
{
    *equal = 0;
    tw_status_t status = tw_engine_drain(engine);
    if (status == TW_OK && (engine->has_replicas || engine->stage < 3)) {
        tw_engine_totals_t begin = tw_engine_totals_get(engine);
        /* hpZ's replicas are filled by the first gathers after an update, so gather once before the check */
        status = engine->has_replicas && !engine->codecs.has_delta ? tw_walk_all(engine, NULL) : TW_OK;
        status = status == TW_OK ? check_copies(engine) : status;
        tw_engine_aside_end(engine, TW_ENGINE_UPKEEP, &begin);
    }
    *equal = status == TW_OK;
    return status == TW_ERR_MISMATCH ? TW_OK : status;
}

int tw_engine_check_due(const tw_engine_t *engine)
{
    return (engine->codecs.has_delta || engine->stage < 3) && tw_hpz_check_due(engine->hpz, engine->version);
}

double tw_engine_lag(const tw_engine_t *engine, uint64_t *n_blocks)
{
    tw_hpz_counters_t counters;
    tw_hpz_counters_get(engine->hpz, &counters);
    *n_blocks = counters.lag_blocks;
    return counters.lag_max;
}
