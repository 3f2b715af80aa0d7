/** Private to trainer/data: byte-level BPE, the same ids as transformers' tokenizers give. GPT-2's vocabulary
 *  is vocab.json and merges.txt; tokenizer.json has that of others (Llama 3, Qwen), with a pattern of their
 *  own. SentencePiece's BPE (Llama 2, Mistral), as tokenizer.json has it, has characters for bytes, and bytes
 *  where it lacks one; its words begin with their blanks.
 *
 *  Text is cut into words by a regular expression; a word's bytes are tokens at first, and of the
 *  neighbouring pairs that the merges list, the one that stands highest there becomes one token, again and
 *  again. The vocabulary numbers the tokens. What is a letter and what a digit, PCRE2 knows (10.42: Unicode
 *  14); of characters that are newer, transformers may know better. Source: Radford et al. (2019), section
 *  2.2; Sennrich, Haddow, Birch (arXiv 1508.07909). */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_bpe tw_bpe_t;

/** Errors are logged with the file and, in merges, the line. TW_ERR_NOT_FOUND, TW_ERR_IO; TW_ERR_FORMAT: no
 *  such vocabulary: not JSON, an id beyond 1048575, a byte without a token, a merge of tokens that it lacks;
 *  TW_ERR_NO_MEMORY. */
tw_status_t tw_bpe_create(const char *vocab_path, const char *merges_path, tw_bpe_t **out);
/** The same from a tokenizer.json. TW_ERR_FORMAT, too: what is not done here is named: another model than
 *  byte-level BPE, a pattern that PCRE2 cannot take, another normal form than NFC, added tokens that swallow
 *  blanks. What is put before and after a text (post_processor) is left out. */
tw_status_t tw_bpe_create_json(const char *tokenizer_path, tw_bpe_t **out);
void tw_bpe_destroy(tw_bpe_t *bpe);
/** Returns 1 if it is SentencePiece's, which may put blanks before a text. */
int tw_bpe_puts_blanks(const tw_bpe_t *bpe);
/** Returns the largest id + 1. */
size_t tw_bpe_vocab_size(const tw_bpe_t *bpe);

/** A callback that gets a word's tokens, in order. If it does not return TW_OK, the encoding ends with
 *  that. */
typedef tw_status_t (*tw_bpe_emit_t)(void *ctx, const uint32_t *tokens, size_t n);
/** Added tokens in the text, such as "<|endoftext|>", are the tokens of that name. TW_ERR_FORMAT: the text is
 *  not UTF-8, logged with `label` and the place; TW_ERR_NO_MEMORY; what emit returned. */
tw_status_t tw_bpe_encode(const tw_bpe_t *bpe, const char *label, const unsigned char *text, size_t bytes,
                          tw_bpe_emit_t emit, void *ctx);

/** Returns the bytes that a token stands for, perhaps a part of a character; borrowed. n_bytes 0: there is no
 *  such token. */
const unsigned char *tw_bpe_text(const tw_bpe_t *bpe, uint32_t token, size_t *n_bytes);

TW_C_END
