/** Private to trainer/data: a vocabulary in memory. */
#pragma once

#include <jansson.h>

#include "trainer/data/bpe.h"
#include "trainer/data/merges.h"

TW_C_BEGIN

/** A token that stands for a text as it is. */
typedef struct tw_bpe_added {
    char *text; /* the text, which is not empty */
    size_t bytes;
    uint32_t token;
} tw_bpe_added_t;

/** What tokens stand for: token t for bytes ends[t - 1] .. ends[t] - 1 of all. */
typedef struct tw_bpe_texts {
    unsigned char *bytes;
    size_t *ends; /* [n] */
    size_t n;
} tw_bpe_texts_t;

/** SentencePiece's BPE: where a blank is put before a text. */
typedef enum tw_bpe_prefix { TW_BPE_NO_PREFIX, TW_BPE_PREFIX_FIRST, TW_BPE_PREFIX_EACH } tw_bpe_prefix_t;
/** How SentencePiece writes a blank. */
#define TW_BPE_BLANK "\xe2\x96\x81"

struct tw_bpe {
    uint32_t bytes[256]; /* the token of each byte */
    size_t vocab_size;
    tw_bpe_texts_t texts; /* texts of the vocabulary's tokens, without added ones */
    tw_merges_t merges;
    tw_bpe_added_t *added; /* [n_added] */
    size_t n_added;
    char *pattern; /* the pattern of words; NULL: GPT-2's */
    void *regex;   /* pcre2_code */
    json_t *words; /* words that are one token, whatever the merges say; NULL: none */
    /* SentencePiece's token of each character; characters that it lacks become bytes. NULL: byte-level BPE */
    json_t *characters;
    tw_bpe_prefix_t prefix;
    int prefix_is_spared; /* 1: no blank is put before a text that begins with one */
    int is_composed;      /* 1: text is converted to Unicode's normal form C first */
};

/** Read what both kinds of files have: the vocabulary, into bpe->bytes and vocab_size; a merge of two tokens
 *  by name, at place `rank`. TW_ERR_FORMAT, logged with `path`; that of tw_bpe_add_merge is not logged. */
tw_status_t tw_bpe_read_vocab(tw_bpe_t *bpe, const char *path, json_t *vocab);
tw_status_t tw_bpe_add_merge(tw_bpe_t *bpe, const json_t *vocab, const char *left, const char *right,
                             uint32_t rank);
/** Add a token that stands for a text as it is. TW_ERR_NO_MEMORY, TW_ERR_FORMAT (an empty text); logged. */
tw_status_t tw_bpe_add_token(tw_bpe_t *bpe, const char *path, const char *text, uint32_t token);
/** Writes the character that stands for a byte, as UTF-8 of two bytes at most. */
void tw_bpe_byte_name(unsigned byte, char name[3]);
#define TW_BPE_BYTE_NAME "<0x%02X>" /* SentencePiece's name of a byte */
/** Read the texts of the vocabulary's tokens; ids are below vocab_size. is_characters 1: SentencePiece's
 *  spelling. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_bpe_texts_init(tw_bpe_texts_t *texts, const char *path, json_t *vocab, size_t vocab_size,
                              int is_characters);
void tw_bpe_texts_cleanup(tw_bpe_texts_t *texts);
/** Fill `bpe` from the two files, or from tokenizer.json. Errors of tw_bpe_create, tw_bpe_create_json. */
tw_status_t tw_bpe_load(tw_bpe_t *bpe, const char *vocab_path, const char *merges_path);
tw_status_t tw_bpe_load_json(tw_bpe_t *bpe, const char *path);

/** Convert a text of `bytes` to normal form C. The caller frees *composed; NULL: the text is in that form
 *  already, or not UTF-8. TW_ERR_FORMAT: it is too long, or memory is short; logged with label. */
tw_status_t tw_bpe_compose(const char *label, const unsigned char *text, size_t bytes,
                           unsigned char **composed, size_t *n_composed);

TW_C_END
