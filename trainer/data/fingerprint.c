/* Computes the fingerprint of a source from all its bytes. That takes about 0.25 s for each GB that is in the
 * system's cache. */
#include <xxhash.h>

#include "trainer/data/state.h"

static tw_status_t add_file(const tw_data_tokens_t *tokens, uint64_t *checksum)
{
    const void *at = tokens->words  ? (const void *)tokens->words
                     : tokens->wide ? (const void *)tokens->wide
                                    : tokens->bytes;
    size_t token_bytes = tokens->words ? sizeof(*tokens->words) : tokens->wide ? sizeof(*tokens->wide) : 1;
    TW_TRY(tw_data_map_check(&tokens->map));
    *checksum = XXH3_64bits_withSeed(at ? at : "", tokens->n * token_bytes, *checksum);
    tw_data_rest(&tokens->map);
    if (tokens->mask.at) {
        TW_TRY(tw_data_map_check(&tokens->mask));
        *checksum = XXH3_64bits_withSeed(tokens->mask.at, tokens->mask.bytes, *checksum);
        tw_data_rest(&tokens->mask);
    }
    return TW_OK;
}

tw_status_t tw_data_fingerprint_get(const tw_data_t *data, tw_data_fingerprint_t *out)
{
    *out = (tw_data_fingerprint_t){.n_train = tw_data_n_tokens(data, TW_DATA_TRAIN),
                                   .n_val = tw_data_n_tokens(data, TW_DATA_VAL),
                                   .vocab_size = data->vocab_size};
    const tw_data_tokens_t none = {0}; /* an empty file, in place of files that are for validation only */
    for (size_t i = 0; i < data->n_files; i++) {
        TW_TRY(add_file(&data->files[i], &out->checksum));
    }
    TW_TRY(data->n_files == data->n_train_files ? add_file(&none, &out->checksum) : TW_OK);
    for (size_t g = 0; g < data->n_groups && data->n_groups > 1; g++) {
        out->checksum = XXH3_64bits_withSeed(&data->groups[g].weight, sizeof(double), out->checksum);
    }
    return TW_OK;
}
