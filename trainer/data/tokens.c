/* Files of tokens. */
#include "trainer/data/tokens.h"

#include <string.h>

#define LLMC_MAGIC 20240520
#define LLMC_VERSION 1
#define LLMC_HEADER_BYTES 1024u
/* Of the same form, with tokens of four bytes: Llama 3's. */
#define LLMC_MAGIC_WIDE 20240801

tw_status_t tw_data_tokens_of_bytes(const char *path, tw_data_tokens_t *tokens)
{
    *tokens = (tw_data_tokens_t){0};
    tw_status_t status = tw_data_map(path, &tokens->map);
    tokens->bytes = tokens->map.at;
    tokens->n = tokens->map.bytes;
    return status;
}

/* A header of 256 int32 begins with its kind, a date, and a small version. Bare tokens do not look like that: the second would have to be
 * 308 to 320 and the fourth 0, after a first one that makes it a day. */
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
    return header[0] == LLMC_MAGIC || (is_date(header[0]) && header[1] >= 0 && header[1] < 256);
}

static tw_status_t check_kind(const char *path, const int32_t header[3])
{
    if (header[0] == LLMC_MAGIC_WIDE) {
        tw_error("%s: tokens of four bytes, as llm.c writes them for Llama 3 (%d); this reads tokens of two, "
                 "as for GPT-2 (%d)",
                 path, (int)header[0], LLMC_MAGIC);
        return TW_ERR_FORMAT;
    }
    if (header[0] != LLMC_MAGIC) {
        tw_error("%s: a file of kind %d, version %d; this reads token files: bare, or of kind %d", path,
                 (int)header[0], (int)header[1], LLMC_MAGIC);
        return TW_ERR_FORMAT;
    }
    return TW_OK;
}

static tw_status_t read_header(const char *path, tw_data_tokens_t *tokens, const int32_t header[3])
{
    uint64_t there = (tokens->map.bytes - LLMC_HEADER_BYTES) / sizeof(uint16_t);
    TW_TRY(check_kind(path, header));
    if (header[1] != LLMC_VERSION) {
        tw_error("%s: a token file of version %d; this reads version %d", path, (int)header[1], LLMC_VERSION);
        return TW_ERR_FORMAT;
    }
    if (header[2] < 0 || (uint64_t)header[2] != there) {
        tw_error("%s: its header says %d tokens, but %llu follow", path, (int)header[2],
                 (unsigned long long)there);
        return TW_ERR_FORMAT;
    }
    tokens->words = (const uint16_t *)(const void *)(tokens->map.at + LLMC_HEADER_BYTES);
    tokens->n = there;
    return TW_OK;
}

static tw_status_t read_words(const char *path, tw_data_tokens_t *tokens)
{
    int32_t header[3];
    if (tokens->map.bytes % sizeof(uint16_t) != 0) {
        tw_error("%s: %zu bytes are no whole number of tokens of two bytes", path, tokens->map.bytes);
        return TW_ERR_FORMAT;
    }
    if (has_header(&tokens->map, header)) {
        return read_header(path, tokens, header);
    }
    tokens->words = (const uint16_t *)(const void *)tokens->map.at;
    tokens->n = tokens->map.bytes / sizeof(uint16_t);
    return TW_OK;
}

tw_status_t tw_data_tokens_of_words(const char *path, tw_data_tokens_t *tokens)
{
    *tokens = (tw_data_tokens_t){0};
    tw_status_t status = tw_data_map(path, &tokens->map);
    if (status == TW_OK) {
        status = read_words(path, tokens);
    }
    if (status != TW_OK) {
        tw_data_tokens_cleanup(tokens);
    }
    return status;
}

void tw_data_tokens_cleanup(tw_data_tokens_t *tokens)
{
    tw_data_unmap(&tokens->map);
    *tokens = (tw_data_tokens_t){0};
}

size_t tw_data_tokens_vocab_size(const tw_data_tokens_t *tokens)
{
    tw_data_range_t all = {.tokens = tokens, .n = tokens->n};
    size_t size = 0;
    for (uint64_t i = 0; i < all.n; i++) {
        size_t needed = (size_t)tw_data_token(&all, i) + 1;
        size = needed > size ? needed : size;
    }
    tw_data_rest(&tokens->map);
    return size;
}
