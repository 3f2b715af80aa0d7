/** Private to trainer/data: byte-level BPE, with the same ids as transformers' tokenizers. GPT-2's vocabulary
 *  is vocab.json and merges.txt; others (Llama 3, Qwen) have a tokenizer.json, with a pattern of their own.
 *  SentencePiece's BPE (Llama 2, Mistral) comes in tokenizer.json, too: its tokens begin as characters, or as
 *  bytes for characters that it lacks, and its words begin with their blanks.
 *
 *  A regular expression cuts text into words. At first a word's bytes are its tokens; then, again and again,
 *  of all neighbouring pairs in the list of merges, the one that comes first in the list becomes one token.
 *  The vocabulary numbers the tokens. PCRE2 decides what is a letter or a digit (10.42: Unicode 14); for
 *  newer characters transformers may differ. Source: Radford et al. (2019), section 2.2; Sennrich, Haddow,
 *  Birch (arXiv 1508.07909). */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_bpe tw_bpe_t;

/** Read vocab.json and merges.txt. Errors are logged with the file and, in merges, the line.
 *  TW_ERR_NOT_FOUND, TW_ERR_IO; TW_ERR_FORMAT: no such vocabulary: not JSON, an id beyond 1048575, a byte
 *  without a token, a merge of tokens that it lacks; TW_ERR_NO_MEMORY. */
tw_status_t tw_bpe_create(const char *vocab_path, const char *merges_path, tw_bpe_t **out);
/** Read a tokenizer.json. TW_ERR_FORMAT also if it needs what is not supported, which is logged: another
 *  model than BPE, a pattern that PCRE2 cannot compile, another normal form than NFC, added tokens that
 *  swallow blanks. Its post_processor, which puts tokens before and after a text, is ignored. */
tw_status_t tw_bpe_create_json(const char *tokenizer_path, tw_bpe_t **out);
void tw_bpe_destroy(tw_bpe_t *bpe);
/** Return 1 if it is SentencePiece's, which may put blanks before a text. */
int tw_bpe_puts_blanks(const tw_bpe_t *bpe);
/** Returns the largest id + 1. */
size_t tw_bpe_vocab_size(const tw_bpe_t *bpe);

/** A callback that gets a word's tokens, in order. If it does not return TW_OK, the encoding ends with
 *  that. */
typedef tw_status_t (*tw_bpe_emit_t)(void *ctx, const uint32_t *tokens, size_t n);
/** Encode a text. Added tokens in it, such as "<|endoftext|>", become the tokens of that name. TW_ERR_FORMAT:
 *  the text is not UTF-8, logged with `label` and the place; TW_ERR_NO_MEMORY; what emit returned. */
tw_status_t tw_bpe_encode(const tw_bpe_t *bpe, const char *label, const unsigned char *text, size_t bytes,
                          tw_bpe_emit_t emit, void *ctx);

/** Return the bytes that a token stands for, perhaps part of a character; borrowed. *n_bytes 0: there is no
 *  such token. */
const unsigned char *tw_bpe_text(const tw_bpe_t *bpe, uint32_t token, size_t *n_bytes);

TW_C_END
