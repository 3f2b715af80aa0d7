/* Which sequences a rank gets. */
#include "trainer/data/order.h"
#include "trainer/data/state.h"

uint64_t tw_data_n_sequences(const tw_data_t *data, tw_data_split_t split, size_t seq_len)
{
    uint64_t n = data->splits[split].n;
    return n > 0 && seq_len > 0 ? (n - 1) / seq_len : 0;
}

static tw_status_t check_place(const tw_data_place_t *place)
{
    if (place->micro >= place->n_micros || place->rank >= place->n_ranks || place->batch < 1 ||
        place->seq_len < 1) {
        tw_error("data: no micro-batch %zu of %zu, rank %zu of %zu, of %zu sequences of %zu tokens",
                 place->micro, place->n_micros, place->rank, place->n_ranks, place->batch, place->seq_len);
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

/* Number of the micro-batch's first sequence since the beginning of time; 2^64 is beyond any training. */
static uint64_t first_sequence(const tw_data_place_t *place)
{
    uint64_t micros = place->step * place->n_micros + place->micro;
    return (micros * place->n_ranks + place->rank) * place->batch;
}

static void copy_sequence(const tw_data_range_t *range, uint64_t first, size_t seq_len, int32_t *tokens,
                          int32_t *targets)
{
    for (size_t t = 0; t < seq_len; t++) {
        tokens[t] = tw_data_token(range, first + t);
        targets[t] = tw_data_token(range, first + t + 1);
    }
}

tw_status_t tw_data_batch(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *place,
                          int32_t *tokens, int32_t *targets)
{
    TW_TRY(check_place(place));
    size_t seq_len = place->seq_len;
    uint64_t n_sequences = tw_data_n_sequences(data, split, seq_len), first = first_sequence(place);
    if (n_sequences == 0) {
        tw_error("data: %llu tokens for %s are too few for a sequence of %zu",
                 (unsigned long long)data->splits[split].n,
                 split == TW_DATA_TRAIN ? "training" : "validation", seq_len);
        return TW_ERR_INVALID;
    }
    TW_TRY(tw_data_map_check(&data->splits[split].tokens->map));
    for (size_t b = 0; b < place->batch; b++) {
        uint64_t epoch = (first + b) / n_sequences, at = (first + b) % n_sequences;
        uint64_t sequence = split == TW_DATA_TRAIN ? tw_data_order(place->seed, epoch, n_sequences, at) : at;
        copy_sequence(&data->splits[split], sequence * seq_len, seq_len, tokens + b * seq_len,
                      targets + b * seq_len);
    }
    tw_data_rest(&data->splits[split].tokens->map);
    return TW_OK;
}
