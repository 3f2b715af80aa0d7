/* Opens files of tokens. */
#include "trainer/data/tokens.h"

#include <string.h>

#define LLMC_HEADER_BYTES 1024u
/* The kinds of llm.c's token files: GPT-2's and Llama 3's. */
static const struct {
    int32_t magic, version;
    size_t token_bytes;
} kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

tw_status_t tw_data_tokens_of_bytes(const char *path, tw_data_tokens_t *tokens)
{
    *tokens = (tw_data_tokens_t){0};
    tw_status_t status = tw_data_map(path, &tokens->map);
    tokens->bytes = tokens->map.at;
    tokens->n = tokens->map.bytes;
    return status;
}

/** Return 1 if a number is a date. llm.c's header of 256 int32 begins with its kind, which is a date, and a
 *  small version. Bare uint16 tokens hardly look like that: the second one would have to be 308 to 320, the
 *  fourth 0, and the first two a valid date together. */
static int is_date(int32_t number)
{
    int year = number / 10000, month = number / 100 % 100, day = number % 100;
    return year >= 2020 && year < 2100 && month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

static int has_header(const tw_data_map_t *map, int32_t header[3])
{
    if (map->bytes < LLMC_HEADER_BYTES) {
        return 0;
    }
    memcpy(header, map->at, 3 * sizeof(header[0]));
    return header[0] == kinds[0].magic || (is_date(header[0]) && header[1] >= 0 && header[1] < 256);
}

static tw_status_t check_kind(const char *path, const int32_t header[3], size_t *token_bytes)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        if (header[0] != kinds[i].magic) {
            continue;
        }
        if (header[1] != kinds[i].version) {
            return tw_fail(TW_ERR_FORMAT, "%s: a token file of version %d; this reads version %d", path,
                           (int)header[1], (int)kinds[i].version);
        }
        TW_FAIL_IF(*token_bytes != 0 && *token_bytes != kinds[i].token_bytes, TW_ERR_FORMAT,
                   "%s: tokens of %zu bytes, not %zu (thinwire.token_bytes)", path, kinds[i].token_bytes,
                   *token_bytes);
        *token_bytes = kinds[i].token_bytes;
        return TW_OK;
    }
    return tw_fail(TW_ERR_FORMAT,
                   "%s: a file of kind %d, version %d; this reads token files: bare, or of kind %d or %d",
                   path, (int)header[0], (int)header[1], (int)kinds[0].magic, (int)kinds[1].magic);
}

/** Set the tokens to the file's bytes from `first` to the end. */
static tw_status_t set_words(const char *path, size_t first, size_t token_bytes, tw_data_tokens_t *tokens)
{
    const void *at = tokens->map.at + first;
    size_t bytes = tokens->map.bytes - first;
    TW_FAIL_IF(bytes % token_bytes != 0, TW_ERR_FORMAT,
               "%s: %zu bytes are no whole number of tokens of %s bytes", path, tokens->map.bytes,
               token_bytes == 2 ? "two" : "four");
    tokens->words = token_bytes == 2 ? at : NULL;
    tokens->wide = token_bytes == 4 ? at : NULL;
    tokens->n = bytes / token_bytes;
    return TW_OK;
}

static tw_status_t read_words(const char *path, size_t token_bytes, tw_data_tokens_t *tokens)
{
    int32_t header[3];
    if (tokens->map.bytes % sizeof(uint16_t) != 0 || !has_header(&tokens->map, header)) {
        return set_words(path, 0, token_bytes == 4 ? 4 : 2, tokens);
    }
    TW_TRY(check_kind(path, header, &token_bytes));
    TW_TRY(set_words(path, LLMC_HEADER_BYTES, token_bytes, tokens));
    TW_FAIL_IF(header[2] < 0 || (uint64_t)header[2] != tokens->n, TW_ERR_FORMAT,
               "%s: its header says %d tokens, but %llu follow", path, (int)header[2],
               (unsigned long long)tokens->n);
    return TW_OK;
}

tw_status_t tw_data_tokens_of_words(const char *path, size_t token_bytes, tw_data_tokens_t *tokens)
{
    *tokens = (tw_data_tokens_t){0};
    tw_status_t status = tw_data_map(path, &tokens->map);
    status = status == TW_OK ? read_words(path, token_bytes, tokens) : status;
    if (status != TW_OK) {
        tw_data_tokens_cleanup(tokens);
    }
    return status;
}

tw_status_t tw_data_tokens_mask(const char *path, tw_data_tokens_t *tokens)
{
    char mask[TW_DATA_PATH_BYTES];
    size_t stem = strlen(path) - strlen(".bin");
    TW_FAIL_IF(snprintf(mask, sizeof(mask), "%.*s.mask", (int)stem, path) >= (int)sizeof(mask),
               TW_ERR_INVALID, "%s: the name is too long", path);
    TW_TRY(tw_data_map(mask, &tokens->mask));
    TW_FAIL_IF(tokens->mask.bytes != tokens->n, TW_ERR_FORMAT,
               "%s: %zu bytes for the %llu tokens of %s: it needs one for each", mask, tokens->mask.bytes,
               (unsigned long long)tokens->n, path);
    return TW_OK;
}

void tw_data_tokens_cleanup(tw_data_tokens_t *tokens)
{
    tw_data_unmap(&tokens->mask);
    tw_data_unmap(&tokens->map);
    *tokens = (tw_data_tokens_t){0};
}

size_t tw_data_tokens_vocab_size(const tw_data_tokens_t *tokens)
{
    tw_data_range_t all = {.tokens = tokens, .n = tokens->n};
    size_t size = 0;
    for (uint64_t i = 0; i < all.n; i++) {
        int32_t token = tw_data_token(&all, i);
        size_t needed = token >= 0 && token < INT32_MAX ? (size_t)token + 1 : SIZE_MAX;
        size = needed > size ? needed : size;
    }
    tw_data_rest(&tokens->map);
    return size;
}
