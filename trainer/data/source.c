/* Opening: which file, what its tokens are, and where training ends and validation begins. */
#include <stdlib.h>
#include <string.h>

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

static tw_status_t open_file(const tw_data_config_t *config, const char *path, tw_data_tokens_t *tokens)
{
    char kjv[TW_DATA_PATH_BYTES], folder[TW_DATA_PATH_BYTES];
    if (!given(path)) {
        tw_status_t status = tw_data_cache_folder(config->cache_dir, folder);
        if (status == TW_OK) {
            status = tw_data_kjv(folder, kjv);
        }
        if (status != TW_OK) {
            return status;
        }
        path = kjv;
    }
    return is_token_file(path) ? tw_data_tokens_of_words(path, tokens)
                               : tw_data_tokens_of_bytes(path, tokens);
}

static size_t vocab_size_of(const tw_data_tokens_t *tokens)
{
    return tokens->bytes ? BYTE_WORDS : tw_data_tokens_vocab_size(tokens);
}

static void find_splits(const tw_data_config_t *config, tw_data_t *data)
{
    tw_data_tokens_t *file = &data->files[0], *other = &data->files[1];
    uint64_t n_val = given(config->val_path) ? 0 : (uint64_t)((double)file->n * config->val_share);
    data->splits[TW_DATA_TRAIN] = (tw_data_range_t){file, 0, file->n - n_val};
    data->splits[TW_DATA_VAL] = given(config->val_path) ? (tw_data_range_t){other, 0, other->n}
                                                        : (tw_data_range_t){file, file->n - n_val, n_val};
    size_t size = vocab_size_of(file), val_size = given(config->val_path) ? vocab_size_of(other) : 0;
    data->vocab_size = size > val_size ? size : val_size;
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
    if (given(config->vocab)) {
        tw_error("%s: vocabularies are not read yet: give a file of tokens", config->vocab);
        return TW_ERR_UNSUPPORTED;
    }
    return TW_OK;
}

static tw_status_t open_files(const tw_data_config_t *config, tw_data_t *data)
{
    tw_status_t status = open_file(config, config->path, &data->files[0]);
    if (status == TW_OK && given(config->val_path)) {
        status = open_file(config, config->val_path, &data->files[1]);
    }
    return status;
}

tw_status_t tw_data_open(const tw_data_config_t *config, tw_data_t **out)
{
    tw_status_t status = check_config(config);
    if (status != TW_OK) {
        return status;
    }
    tw_data_t *data = calloc(1, sizeof(*data));
    if (!data) {
        tw_error("data: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    status = open_files(config, data);
    if (status != TW_OK) {
        tw_data_close(data);
        return status;
    }
    find_splits(config, data);
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
