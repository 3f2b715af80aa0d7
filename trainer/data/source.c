/* Opens a source: its files, their tokens, and the ranges for training and validation. */
#include <stdlib.h>
#include <string.h>

#include "trainer/data/encode.h"
#include "trainer/data/files.h"
#include "trainer/data/kind.h"
#include "trainer/data/kjv.h"
#include "trainer/data/state.h"

#define BYTE_WORDS 256
#define MOST_WORDS 1048576 /* the maximum of model.vocab_size */

static tw_status_t source_no_memory(void)
{
    return tw_fail(TW_ERR_NO_MEMORY, "data: out of memory");
}

static int given(const char *text)
{
    return text && *text;
}

static int has_end(const char *path, const char *end)
{
    size_t length = strlen(path), n = strlen(end);
    return length > n && strcmp(path + length - n, end) == 0;
}

/* What the functions that open files need. */
typedef struct opening {
    const tw_data_config_t *config;
    char folder[TW_DATA_PATH_BYTES];  /* folder of caches */
    tw_data_vocabulary_t *vocabulary; /* NULL: a token per byte */
} opening_t;

static tw_status_t open_bytes(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    TW_TRY(tw_data_tokens_of_bytes(path, tokens));
    return opening->config->token_bytes == 1 ? TW_OK : tw_data_check_text(&tokens->map);
}

/** Open the encoded tokens of a file. If chats is NULL, the file is text. */
static tw_status_t open_encoded(const opening_t *opening, const char *path, const tw_data_config_t *chats,
                                tw_data_tokens_t *tokens)
{
    const tw_data_vocabulary_t *vocabulary = opening->vocabulary;
    char encoded[TW_DATA_PATH_BYTES];
    TW_TRY(tw_data_encode(vocabulary, path, chats, encoded));
    TW_TRY(tw_data_tokens_of_words(encoded, tw_data_vocabulary_token_bytes(vocabulary), tokens));
    return chats ? tw_data_tokens_mask(encoded, tokens) : TW_OK;
}

/** Open a .jsonl file. Its mask is made with its tokens. */
static tw_status_t open_chats(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    TW_FAIL_IF(!opening->vocabulary, TW_ERR_INVALID,
               "%s: lines of JSON need a vocabulary (thinwire.tokenizer)", path);
    return open_encoded(opening, path, opening->config, tokens);
}

static tw_status_t open_text(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    tw_data_map_t text;
    if (!opening->vocabulary) {
        return open_bytes(opening, path, tokens);
    }
    TW_TRY(tw_data_map(path, &text));
    tw_status_t status = tw_data_check_text(&text);
    tw_data_unmap(&text);
    return status == TW_OK ? open_encoded(opening, path, NULL, tokens) : status;
}

static tw_status_t open_words(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    size_t token_bytes = opening->config->token_bytes;
    TW_TRY(tw_data_tokens_of_words(path, token_bytes, tokens));
    TW_TRY(tw_data_check_tokens(tokens, token_bytes == 0));
    return opening->config->has_masks ? tw_data_tokens_mask(path, tokens) : TW_OK;
}

/** Open a file as the kind that its name says, or, if token_bytes is 1, as bytes. */
static tw_status_t open_given(const opening_t *opening, const char *path, tw_data_tokens_t *tokens)
{
    int is_bytes = opening->config->token_bytes == 1;
    if (!is_bytes && has_end(path, ".bin")) {
        TW_TRY(open_words(opening, path, tokens));
    } else if (!is_bytes && has_end(path, ".jsonl")) {
        TW_TRY(open_chats(opening, path, tokens));
    } else if (opening->config->has_masks) {
        return tw_fail(
            TW_ERR_INVALID,
            "%s: text has no mask (thinwire.loss_mask): write its tokens to NAME.bin, and NAME.mask", path);
    } else {
        TW_TRY(open_text(opening, path, tokens));
    }
    return tokens->n == 0 ? tw_fail(TW_ERR_FORMAT, "%s: there is no token in it", path) : TW_OK;
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

static tw_status_t open_range(tw_data_t *data, size_t file, uint64_t n_val)
{
    const tw_data_tokens_t *tokens = &data->files[file];
    int is_train = file < data->n_train_files;
    size_t size = vocab_size_of(tokens);
    TW_FAIL_IF(size == SIZE_MAX, TW_ERR_FORMAT, "%s: numbers that are no tokens: from 2147483647 on",
               tokens->map.path);
    TW_FAIL_IF(size > MOST_WORDS, TW_ERR_FORMAT,
               "%s: tokens up to %zu, where no vocabulary has more than %d: are they of two bytes "
               "(thinwire.token_bytes)?",
               tokens->map.path, size - 1, MOST_WORDS);
    /* the vocabulary may have more tokens than the data use */
    data->vocab_size = size > data->vocab_size ? size : data->vocab_size;
    if (is_train) {
        data->ranges[TW_DATA_TRAIN][data->n_ranges[TW_DATA_TRAIN]++] =
            (tw_data_range_t){tokens, 0, tokens->n - n_val};
    }
    if (!is_train || n_val > 0) {
        data->ranges[TW_DATA_VAL][data->n_ranges[TW_DATA_VAL]++] =
            (tw_data_range_t){tokens, tokens->n - n_val, n_val};
    }
    return TW_OK;
}

/** Divide the files between training and validation. Validation has its own files, or each file's end. */
static tw_status_t find_splits(const tw_data_config_t *config, tw_data_t *data)
{
    for (int split = 0; split < 2; split++) {
        data->ranges[split] = calloc(data->n_files + 1, sizeof(*data->ranges[split]));
        if (!data->ranges[split]) {
            return source_no_memory();
        }
    }
    for (size_t i = 0; i < data->n_files; i++) {
        uint64_t n = data->files[i].n;
        int is_train = i < data->n_train_files;
        double share = given(config->val_path) ? 0 : config->val_share;
        TW_TRY(open_range(data, i, is_train ? (uint64_t)((double)n * share) : n));
    }
    return TW_OK;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/** Distribute the turns over the groups. Each turn goes to the group that is furthest behind its share. */
static void deal_turns(tw_data_t *data, double sum)
{
    for (uint32_t turn = 0; turn < TW_DATA_TURNS; turn++) {
        size_t next = 0;
        double most = -1;
        for (size_t g = 0; g < data->n_groups; g++) {
            const tw_data_group_t *group = &data->groups[g];
            double behind = (turn + 1) * group->weight / sum - group->n_turns;
            next = behind > most ? g : next;
            most = behind > most ? behind : most;
        }
        data->turns[turn] = (tw_data_turn_t){.group = (uint32_t)next, .before = data->groups[next].n_turns++};
    }
}

static tw_status_t make_turns(tw_data_t *data)
{
    double sum = 0;
    data->turns = calloc(TW_DATA_TURNS, sizeof(*data->turns));
    if (!data->turns) {
        return source_no_memory();
    }
    for (size_t g = 0; g < data->n_groups; g++) {
        sum += data->groups[g].weight;
    }
    deal_turns(data, sum);
    for (size_t g = 0; g < data->n_groups; g++) {
        TW_FAIL_IF(data->groups[g].n_turns == 0, TW_ERR_INVALID,
                   "data: %s: a weight of %g is less than 1/%d of all",
                   data->files[data->groups[g].first].map.path, data->groups[g].weight, TW_DATA_TURNS);
    }
    return TW_OK;
}

static tw_status_t find_groups(const tw_data_names_t *names, tw_data_t *data)
{
    data->groups = calloc(names->n_groups + 1, sizeof(*data->groups));
    if (!data->groups) {
        return source_no_memory();
    }
    data->n_groups = names->n_groups;
    for (size_t i = 0; i < names->n; i++) {
        tw_data_group_t *group = &data->groups[names->at[i].group];
        group->first = group->n == 0 ? i : group->first;
        group->weight = names->at[i].weight;
        group->n++;
    }
    return data->n_groups > 1 ? make_turns(data) : TW_OK;
}

/* ---- opening a source ---------------------------------------------------------------------------------- */

static tw_status_t check_config(const tw_data_config_t *config)
{
    TW_FAIL_IF(!(config->val_share >= 0.0 && config->val_share <= 0.5), TW_ERR_INVALID,
               "data: val_share is %g, but must be from 0 to 0.5", config->val_share);
    TW_FAIL_IF(given(config->vocab) != given(config->merges), TW_ERR_INVALID,
               "data: a vocabulary needs both of its files, vocab.json and merges.txt");
    TW_FAIL_IF(given(config->tokenizer) && given(config->vocab), TW_ERR_INVALID,
               "data: %s has all of a vocabulary; leave vocab.json and merges.txt out", config->tokenizer);
    TW_FAIL_IF(config->token_bytes == 3 || config->token_bytes > 4, TW_ERR_INVALID,
               "data: token_bytes is %zu, but must be 1, 2 or 4", config->token_bytes);
    return TW_OK;
}

static int needs_folder(const tw_data_config_t *config)
{
    return !given(config->path) || given(config->vocab) || given(config->tokenizer);
}

static tw_status_t open_vocabulary(opening_t *opening, tw_data_t *data)
{
    const tw_data_config_t *config = opening->config;
    TW_TRY(needs_folder(config) ? tw_data_cache_folder(config->cache_dir, opening->folder) : TW_OK);
    if (given(config->vocab) || given(config->tokenizer)) {
        TW_TRY(tw_data_vocabulary_create(config, opening->folder, &opening->vocabulary));
        data->vocab_size = opening->vocabulary->n;
    }
    return TW_OK;
}

static tw_status_t open_named(const opening_t *opening, const tw_data_names_t *names, tw_data_t *data)
{
    size_t n = data->n_files + names->n;
    tw_data_tokens_t *longer = realloc(data->files, (n + 1) * sizeof(*longer));
    if (!longer) {
        return source_no_memory();
    }
    data->files = longer;
    for (size_t i = 0; i < names->n; i++) {
        longer[data->n_files] = (tw_data_tokens_t){0};
        TW_TRY(open_file(opening, names->at[i].path, &longer[data->n_files++]));
    }
    return TW_OK;
}

/** Open the files of a list of names, and append them to the open ones. */
static tw_status_t open_text_of_names(const opening_t *opening, const char *text, int is_train,
                                      tw_data_t *data)
{
    tw_data_names_t names;
    TW_TRY(tw_data_names(given(text) ? text : "", &names));
    tw_status_t status = open_named(opening, &names, data);
    if (status == TW_OK && is_train) {
        data->n_train_files = data->n_files;
        status = find_groups(&names, data);
    } else if (status == TW_OK && names.n_groups > 1) {
        tw_error("data: %s: a validation goes through its files in order, without weights", text);
        status = TW_ERR_INVALID;
    }
    tw_data_names_cleanup(&names);
    return status;
}

static int is_all_bytes(const tw_data_t *data)
{
    int is_all = 1;
    for (size_t i = 0; i < data->n_files; i++) {
        is_all = is_all && data->files[i].bytes;
    }
    return is_all;
}

static tw_status_t open_all(opening_t *opening, tw_data_t *data)
{
    const tw_data_config_t *config = opening->config;
    tw_status_t status = open_vocabulary(opening, data);
    status = status == TW_OK ? open_text_of_names(opening, config->path, 1, data) : status;
    if (status == TW_OK && given(config->val_path)) {
        status = open_text_of_names(opening, config->val_path, 0, data);
    }
    if (config->keeps_vocabulary) {
        data->vocabulary = opening->vocabulary;
        data->is_bytes = !data->vocabulary && is_all_bytes(data);
    } else {
        tw_data_vocabulary_destroy(opening->vocabulary);
    }
    return status == TW_OK ? find_splits(config, data) : status;
}

tw_status_t tw_data_open(const tw_data_config_t *config, tw_data_t **out)
{
    TW_TRY(check_config(config));
    tw_data_t *data = calloc(1, sizeof(*data));
    TW_FAIL_IF(!data, TW_ERR_NO_MEMORY, "data: out of memory");
    opening_t opening = {.config = config};
    data->document = config->is_aligned ? config->document_token : -1;
    tw_status_t status = open_all(&opening, data);
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
        for (size_t i = 0; i < data->n_files; i++) {
            tw_data_tokens_cleanup(&data->files[i]);
        }
        tw_data_vocabulary_destroy(data->vocabulary);
        free(data->files);
        free(data->ranges[0]);
        free(data->ranges[1]);
        free(data->groups);
        free(data->turns);
        free(data);
    }
}

size_t tw_data_vocab_size(const tw_data_t *data)
{
    return data->vocab_size;
}
