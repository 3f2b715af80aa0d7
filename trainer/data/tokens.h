/** Private to trainer/data: files of tokens. */
#pragma once

#include "trainer/data/file.h"

TW_C_BEGIN

/** Tokens in a mapped file: of one byte, or little-endian of two or four. */
typedef struct tw_data_tokens {
    tw_data_map_t map;
    const uint8_t *bytes; /**< two of the three are NULL */
    const uint16_t *words;
    const uint32_t *wide;
    uint64_t n;
    tw_data_map_t mask; /**< [n] bytes, 0 for a token that is not learned; nothing mapped: all are learned */
} tw_data_tokens_t;

/** A part of a file's tokens. */
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

/** Return 1 if a token is to be learned, as what follows those before it. */
static inline int tw_data_is_learned(const tw_data_range_t *range, uint64_t index)
{
    const unsigned char *mask = range->tokens->mask.at;
    return !mask || mask[range->first + index] != 0;
}

/** Opens any file with a token per byte. Errors as in tw_data_map. */
tw_status_t tw_data_tokens_of_bytes(const char *path, tw_data_tokens_t *tokens);
/** Open a file of numbers: with llm.c's header of 256 int32 (20240520, 1, number of tokens: uint16; 20240801,
 *  7, number: uint32), or bare (nanoGPT), with token_bytes, 2 or 4, a token; 0: 2. TW_ERR_FORMAT, logged:
 *  half a token at the end, another kind, version or size of tokens, or fewer than the header says. */
tw_status_t tw_data_tokens_of_words(const char *path, size_t token_bytes, tw_data_tokens_t *tokens);
void tw_data_tokens_cleanup(tw_data_tokens_t *tokens);
/** Map NAME.mask beside NAME.bin, which says which tokens are learned. TW_ERR_NOT_FOUND and the like;
 *  TW_ERR_FORMAT: it has not one byte for each token; logged. */
tw_status_t tw_data_tokens_mask(const char *path, tw_data_tokens_t *tokens);
/** Return the largest token + 1, or 0 if there is none; reads all. SIZE_MAX: one does not fit in an int32. */
size_t tw_data_tokens_vocab_size(const tw_data_tokens_t *tokens);

TW_C_END
