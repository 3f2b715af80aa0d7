/** Private to trainer/data: files of tokens. */
#pragma once

#include "trainer/data/file.h"

TW_C_BEGIN

/** The tokens of a mapped file: 1 byte each, or little-endian 2 or 4 bytes. */
typedef struct tw_data_tokens {
    tw_data_map_t map;
    const uint8_t *bytes; /**< the member that fits the width is set, the other two are NULL */
    const uint16_t *words;
    const uint32_t *wide;
    uint64_t n;
    tw_data_map_t mask; /**< [n] bytes, 0: not learned; no file mapped: all tokens are learned */
} tw_data_tokens_t;

/** Tokens first .. first + n - 1 of a file. */
typedef struct tw_data_range {
    const tw_data_tokens_t *tokens;
    uint64_t first, n;
} tw_data_range_t;

static inline int32_t tw_data_token(const tw_data_range_t *range, uint64_t index)
{
    const tw_data_tokens_t *tokens = range->tokens;
    uint64_t at = range->first + index;
    return tokens->words ? tokens->words[at] : tokens->bytes ? tokens->bytes[at] : (int32_t)tokens->wide[at];
}

/** Return 1 if this token is to be learned, that is, predicted from the tokens before it. */
static inline int tw_data_is_learned(const tw_data_range_t *range, uint64_t index)
{
    const unsigned char *mask = range->tokens->mask.at;
    return !mask || mask[range->first + index] != 0;
}

/** Open any file with a token per byte. Errors are those of tw_data_map. */
tw_status_t tw_data_tokens_of_bytes(const char *path, tw_data_tokens_t *tokens);
/** Open a file of tokens: bare, as nanoGPT writes it, or with llm.c's header of 256 int32, which begins with
 *  20240520, 1, number of tokens (of uint16), or 20240801, 7, number (of uint32). token_bytes: 2 or 4; 0: 2
 *  if bare. TW_ERR_FORMAT, logged: an incomplete token, another kind, version or width, too few tokens. */
tw_status_t tw_data_tokens_of_words(const char *path, size_t token_bytes, tw_data_tokens_t *tokens);
void tw_data_tokens_cleanup(tw_data_tokens_t *tokens);
/** Map NAME.mask, the file beside `path` (NAME.bin) that marks learned tokens. Errors, logged:
 *  TW_ERR_NOT_FOUND and the like; TW_ERR_FORMAT: the mask does not have one byte for each token. */
tw_status_t tw_data_tokens_mask(const char *path, tw_data_tokens_t *tokens);
/** Return the largest token + 1, or 0 without tokens. SIZE_MAX: a token does not fit into an int32. */
size_t tw_data_tokens_vocab_size(const tw_data_tokens_t *tokens);

TW_C_END
