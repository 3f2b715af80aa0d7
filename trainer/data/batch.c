/* Chooses the sequences of a rank's batch. */
#include "trainer/data/order.h"
#include "trainer/data/state.h"

uint64_t tw_data_n_tokens(const tw_data_t *data, tw_data_split_t split)
{
    uint64_t n = 0;
    for (size_t i = 0; i < data->n_ranges[split]; i++) {
        n += data->ranges[split][i].n;
    }
    return n;
}

static uint64_t sequences_of(const tw_data_range_t *range, size_t seq_len)
{
    return range->n > 0 && seq_len > 0 ? (range->n - 1) / seq_len : 0;
}

static uint64_t sum_sequences(const tw_data_range_t *ranges, size_t n, size_t seq_len)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += sequences_of(&ranges[i], seq_len);
    }
    return sum;
}

uint64_t tw_data_n_sequences(const tw_data_t *data, tw_data_split_t split, size_t seq_len)
{
    return sum_sequences(data->ranges[split], data->n_ranges[split], seq_len);
}

static tw_status_t check_place(const tw_data_place_t *place)
{
    TW_FAIL_IF(place->micro >= place->n_micros || place->rank >= place->world || place->batch < 1 ||
                   place->seq_len < 1,
               TW_ERR_INVALID,
               "data: no micro-batch %zu of %zu, rank %zu of %zu, of %zu sequences of %zu tokens",
               place->micro, place->n_micros, place->rank, place->world, place->batch, place->seq_len);
    return TW_OK;
}

/** Return the number of the micro-batch's first sequence, counted from the first step. No training is long
 *  enough to overflow 64 bits. */
static uint64_t first_sequence(const tw_data_place_t *place)
{
    uint64_t micros = place->step * place->n_micros + place->micro;
    return (micros * place->world + place->rank) * place->batch;
}

/* The place of a sequence: a file, and a token there. */
typedef struct spot {
    const tw_data_range_t *range;
    uint64_t first; /* the sequence's first token */
} spot_t;

/** Find a sequence by its number in several files, one after the other. No sequence spans two files. */
static spot_t find_spot(const tw_data_range_t *ranges, uint64_t sequence, size_t seq_len)
{
    for (;; ranges++) {
        uint64_t n = sequences_of(ranges, seq_len);
        if (sequence < n) {
            return (spot_t){ranges, sequence * seq_len};
        }
        sequence -= n;
    }
}

/** Return the first place in this sequence where a document begins, if a whole sequence fits in from there
 *  on. Otherwise return the sequence's own first token. */
static uint64_t align(const tw_data_t *data, const spot_t *spot, size_t seq_len)
{
    for (uint64_t at = spot->first; data->document >= 0 && at < spot->first + seq_len; at++) {
        if (tw_data_token(spot->range, at) == data->document && at + seq_len < spot->range->n) {
            return at;
        }
    }
    return spot->first;
}

/** Find the k-th sequence of training, counted from the first step. TW_ERR_INVALID, logged: the group of
 *  files that it comes from has no whole sequence. */
static tw_status_t training_spot(const tw_data_t *data, const tw_data_place_t *place, uint64_t k,
                                 spot_t *spot)
{
    tw_data_turn_t turn = data->turns ? data->turns[k % TW_DATA_TURNS] : (tw_data_turn_t){0, 0};
    const tw_data_group_t *group = &data->groups[turn.group];
    const tw_data_range_t *ranges = data->ranges[TW_DATA_TRAIN] + group->first;
    uint64_t n = sum_sequences(ranges, group->n, place->seq_len);
    uint64_t own = data->turns ? k / TW_DATA_TURNS * group->n_turns + turn.before : k;
    TW_FAIL_IF(n == 0, TW_ERR_INVALID, "data: %s: too short for a sequence of %zu tokens",
               ranges->tokens->map.path, place->seq_len);
    uint64_t seed = place->seed ^ (uint64_t)turn.group << 32;
    *spot = find_spot(ranges, tw_data_order(seed, own / n, n, own % n), place->seq_len);
    spot->first = align(data, spot, place->seq_len);
    return TW_OK;
}

static void copy_sequence(const spot_t *spot, size_t seq_len, int32_t *tokens, int32_t *targets)
{
    for (size_t t = 0; t < seq_len; t++) {
        tokens[t] = tw_data_token(spot->range, spot->first + t);
        uint64_t next = spot->first + t + 1;
        targets[t] =
            tw_data_is_learned(spot->range, next) ? tw_data_token(spot->range, next) : TW_DATA_NO_TARGET;
    }
}

static tw_status_t too_short(const tw_data_t *data, tw_data_split_t split, size_t seq_len)
{
    return tw_fail(TW_ERR_INVALID, "data: %llu tokens for %s are too few for a sequence of %zu",
                   (unsigned long long)tw_data_n_tokens(data, split),
                   split == TW_DATA_TRAIN ? "training" : "validation", seq_len);
}

/** Find the k-th sequence that the batches of a split use. */
static tw_status_t spot_of(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *place,
                           uint64_t k, spot_t *spot)
{
    if (split == TW_DATA_TRAIN) {
        return training_spot(data, place, k, spot);
    }
    uint64_t n_sequences = tw_data_n_sequences(data, split, place->seq_len);
    *spot = find_spot(data->ranges[split], k % n_sequences, place->seq_len);
    return TW_OK;
}

int tw_data_has_masks(const tw_data_t *data)
{
    int has = 0;
    for (size_t i = 0; i < data->n_files; i++) {
        has = has || data->files[i].mask.at;
    }
    return has;
}

tw_status_t tw_data_count_targets(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *of,
                                  uint64_t first, uint64_t n, uint64_t *n_targets)
{
    *n_targets = n * of->seq_len;
    for (uint64_t k = first; k < first + n && tw_data_has_masks(data); k++) {
        spot_t spot;
        TW_TRY(spot_of(data, split, of, k, &spot));
        TW_TRY(tw_data_map_check(&spot.range->tokens->mask));
        for (size_t t = 0; t < of->seq_len; t++) {
            *n_targets -= !tw_data_is_learned(spot.range, spot.first + t + 1);
        }
    }
    return TW_OK;
}

tw_status_t tw_data_batch(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *place,
                          int32_t *tokens, int32_t *targets)
{
    TW_TRY(check_place(place));
    size_t seq_len = place->seq_len;
    uint64_t first = first_sequence(place);
    if (tw_data_n_sequences(data, split, seq_len) == 0) {
        return too_short(data, split, seq_len);
    }
    for (size_t b = 0; b < place->batch; b++) {
        spot_t spot;
        TW_TRY(spot_of(data, split, place, first + b, &spot));
        TW_TRY(tw_data_map_check(&spot.range->tokens->map));
        copy_sequence(&spot, seq_len, tokens + b * seq_len, targets + b * seq_len);
        tw_data_rest(&spot.range->tokens->map);
    }
    return TW_OK;
}
