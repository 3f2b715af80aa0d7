/* Opening: which file, what its tokens are, and where training ends and validation begins. */
#include <stdlib.h>
#include <string.h>

#include "trainer/data/encode.h"
#include "trainer/data/kjv.h"
#include "trainer/data/state.h"

#define BYTE_WORDS 256

static int given(const char *text)
{
    return text && *text;
}

static int is_token_file(const char *path)
{
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".bin") == 0;
}

/* What opening needs besides the configuration. */
typedef struct opening {
    const tw_data_config_t *config;
    char folder[TW_DATA_PATH_BYTES]; /* of caches */
    tw_bpe_t *bpe;                   /* NULL: a token per byte */
} opening_t;

static tw_status_t open_text(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    if (!opening->bpe) {
        return tw_data_tokens_of_bytes(path, tokens);
    }
    const tw_data_config_t *config = opening->config;
    tw_data_vocab_t vocab = {.vocab_path = given(config->tokenizer) ? config->tokenizer : config->vocab,
                             .merges_path = given(config->tokenizer) ? NULL : config->merges,
                             .bpe = opening->bpe};
    char encoded[TW_DATA_PATH_BYTES];
    tw_status_t status = tw_data_encode(path, &vocab, opening->folder, encoded);
    return status == TW_OK ? tw_data_tokens_of_words(encoded, tw_data_encoded_bytes(opening->bpe), tokens)
                           : status;
}

static tw_status_t open_given(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    TW_TRY(is_token_file(path) ? tw_data_tokens_of_words(path, opening->config->token_bytes, tokens)
                               : open_text(opening, path, tokens));
    if (tokens->n == 0) {
        tw_error("%s: there is no token in it", path);
        return TW_ERR_FORMAT;
    }
    return TW_OK;
}

static tw_status_t open_file(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    char kjv[TW_DATA_PATH_BYTES];
    if (given(path)) {
        return open_given(opening, path, tokens);
    }
    tw_status_t status = tw_data_kjv(opening->folder, kjv);
    return status == TW_OK ? open_text(opening, kjv, tokens) : status;
}

static size_t vocab_size_of(const tw_data_tokens_t *tokens)
{
    return tokens->bytes ? BYTE_WORDS : tw_data_tokens_vocab_size(tokens);
}

static tw_status_t find_splits(const tw_data_config_t *config, tw_data_t *data)
{
    tw_data_tokens_t *file = &data->files[0], *other = &data->files[1];
    uint64_t n_val = given(config->val_path) ? 0 : (uint64_t)((double)file->n * config->val_share);
    data->splits[TW_DATA_TRAIN] = (tw_data_range_t){file, 0, file->n - n_val};
    data->splits[TW_DATA_VAL] = given(config->val_path) ? (tw_data_range_t){other, 0, other->n}
                                                        : (tw_data_range_t){file, file->n - n_val, n_val};
    size_t sizes[] = {vocab_size_of(file), given(config->val_path) ? vocab_size_of(other) : 0};
    for (int i = 0; i < 2; i++) { /* a vocabulary that is given may be larger */
        if (sizes[i] == SIZE_MAX) {
            tw_error("%s: numbers that are no tokens: from 2147483647 on",
                     i == 0 ? config->path : config->val_path);
            return TW_ERR_FORMAT;
        }
        data->vocab_size = sizes[i] > data->vocab_size ? sizes[i] : data->vocab_size;
    }
    return TW_OK;
}

static tw_status_t check_config(const tw_data_config_t *config)
{
    if (!(config->val_share >= 0.0 && config->val_share <= 0.5)) {
        tw_error("data: val_share is %g, but must be from 0 to 0.5", config->val_share);
        return TW_ERR_INVALID;
    }
    if (given(config->vocab) != given(config->merges)) {
        tw_error("data: a vocabulary needs both of its files, vocab.json and merges.txt");
        return TW_ERR_INVALID;
    }
    if (given(config->tokenizer) && given(config->vocab)) {
        tw_error("data: %s has all of a vocabulary; leave vocab.json and merges.txt out", config->tokenizer);
        return TW_ERR_INVALID;
    }
    if (config->token_bytes != 0 && config->token_bytes != 2 && config->token_bytes != 4) {
        tw_error("data: token_bytes is %zu, but must be 2 or 4", config->token_bytes);
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

/* A folder of caches is made only for those who need one. */
static int needs_folder(const tw_data_config_t *config)
{
    return !given(config->path) || given(config->vocab) || given(config->tokenizer);
}

static tw_status_t open_files(opening_t *opening, tw_data_t *data)
{
    const tw_data_config_t *config = opening->config;
    tw_status_t status =
        needs_folder(config) ? tw_data_cache_folder(config->cache_dir, opening->folder) : TW_OK;
    if (status == TW_OK && (given(config->vocab) || given(config->tokenizer))) {
        status = given(config->tokenizer) ? tw_bpe_create_json(config->tokenizer, &opening->bpe)
                                          : tw_bpe_create(config->vocab, config->merges, &opening->bpe);
        data->vocab_size = status == TW_OK ? tw_bpe_vocab_size(opening->bpe) : 0;
    }
    if (status == TW_OK) {
        status = open_file(opening, config->path, &data->files[0]);
    }
    if (status == TW_OK && given(config->val_path)) {
        status = open_file(opening, config->val_path, &data->files[1]);
    }
    tw_bpe_destroy(opening->bpe);
    return status;
}

tw_status_t tw_data_open(const tw_data_config_t *config, tw_data_t **out)
{
    TW_TRY(check_config(config));
    tw_data_t *data = calloc(1, sizeof(*data));
    if (!data) {
        tw_error("data: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    opening_t opening = {.config = config};
    tw_status_t status = open_files(&opening, data);
    if (status == TW_OK) {
        status = find_splits(config, data);
    }
    if (status != TW_OK) {
        tw_data_close(data);
        return status;
    }
    *out = data;
    return TW_OK;
}

void tw_data_close(tw_data_t *data)
{
    if (data) {
        tw_data_tokens_cleanup(&data->files[0]);
        tw_data_tokens_cleanup(&data->files[1]);
        free(data);
    }
}

size_t tw_data_vocab_size(const tw_data_t *data)
{
    return data->vocab_size;
}

uint64_t tw_data_n_tokens(const tw_data_t *data, tw_data_split_t split)
{
    return data->splits[split].n;
}
