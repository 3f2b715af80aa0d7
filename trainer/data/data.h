/** trainer/data: the tokens that are trained on, and which of them a rank gets in a step.
 *
 *  A source is UTF-8 text, one token per byte or by a byte-level BPE vocabulary, or a file of uint16 or
 *  uint32 tokens as nanoGPT and llm.c write them; it is mapped, never read whole. Text that goes through a
 *  vocabulary is encoded once and kept beside others in a folder of caches. An open source is only read: any
 *  threads may use it at once.
 *
 *  Order: each file's training part is cut into sequences of T tokens; an epoch goes through all of them once
 *  in an order drawn from (seed, epoch). What a rank gets is a function of (seed, step, place in the step)
 *  alone: nothing needs to be saved to resume in mid-epoch, and with the same global batch another number of
 *  ranks trains on the same sequences in the same steps. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef enum tw_data_split { TW_DATA_TRAIN = 0, TW_DATA_VAL = 1 } tw_data_split_t;

/** How messages of chats are written. */
typedef enum tw_data_style { TW_DATA_STYLE_NONE, TW_DATA_STYLE_CHATML, TW_DATA_STYLE_LLAMA3 } tw_data_style_t;

typedef struct tw_data_config {
    /** "NAME.bin": tokens; "NAME.jsonl": lines {"text"}, {"prompt", "completion"}, or {"messages": [{"role",
     *  "content"}, ...]}, of which texts, completions and what the assistant says are learned; else text.
     *  Several, with commas between them, and patterns ("train_*.bin") are one text;
     *  "web_*.bin:0.7,books.bin:0.3": so much of each in every 1,024 sequences. NULL or "": the King James
     *  text (Debian's bible-kjv) */
    const char *path;
    const char *val_path; /**< data for validation, of the same kind; NULL or "": the end of `path` */
    const char *vocab;    /**< GPT-2's vocab.json, with merges.txt; both NULL or "": a token per byte */
    const char *merges;
    const char *tokenizer; /**< instead of both: tokenizer.json; NULL or "": none */
    /** of a token in a bare token file: 2 or 4; 0: 2, if they do not look like 4. 1: any file's bytes are its
     *  tokens, unless there is a vocabulary */
    size_t token_bytes;
    tw_data_style_t chat_style; /**< of messages in "NAME.jsonl" */
    const char *chat_end;       /**< what comes after a text and a completion there; NULL or "": nothing */
    int has_masks; /**< NAME.mask beside each NAME.bin says which tokens are learned; text has none */
    /** NULL or "": $XDG_CACHE_HOME/thinwire, ~/.cache/thinwire or the system's temporary folder */
    const char *cache_dir;
    int keeps_vocabulary; /**< 1: tw_data_text_tokens and tw_data_tokens_text may be called */
    double val_share; /**< without val_path: this share of each file, from 0 up to 0.5, is for validation */
    /** Sequences of training begin where a document does: at this token, if one comes within their length. */
    int is_aligned;
    int64_t document_token;
} tw_data_config_t;

typedef struct tw_data tw_data_t;

/** All errors are logged with the file's name. TW_ERR_NOT_FOUND, TW_ERR_IO: it cannot be read (or the cache
 *  not written); TW_ERR_FORMAT: no such vocabulary or token file, no text, or no token in it; TW_ERR_INVALID:
 *  config; TW_ERR_NO_MEMORY. */
tw_status_t tw_data_open(const tw_data_config_t *config, tw_data_t **out);
void tw_data_close(tw_data_t *data);

/** Tokens are below it: 256 for bytes, the vocabulary's, and for a token file at least the largest token +
 *  1. */
size_t tw_data_vocab_size(const tw_data_t *data);
uint64_t tw_data_n_tokens(const tw_data_t *data, tw_data_split_t split);
/** Sequences of seq_len tokens and their targets that the split holds; 0 if it is too short for one. */
uint64_t tw_data_n_sequences(const tw_data_t *data, tw_data_split_t split, size_t seq_len);

/** What tells one source from another. */
typedef struct tw_data_fingerprint {
    uint64_t n_train, n_val, vocab_size; /**< tokens; see above */
    uint64_t checksum;                   /**< of all tokens of all files, each of which is read whole */
} tw_data_fingerprint_t;

/** TW_ERR_TRUNCATED, logged: a file has been cut since it was opened. */
tw_status_t tw_data_fingerprint_get(const tw_data_t *data, tw_data_fingerprint_t *out);

/** Which micro-batch: of `step` (0 is the first), number `micro` of n_micros, of `rank` of `world`, `batch`
 *  sequences of seq_len tokens. Sequence b of it is number (micro * world + rank) * batch + b of the
 *  step's. */
typedef struct tw_data_place {
    uint64_t seed, step;
    size_t n_micros, micro, world, rank, batch, seq_len;
} tw_data_place_t;

#define TW_DATA_NO_TARGET (-1)
/** tokens, targets int32 [batch * seq_len], the caller's; a target is the token that follows, or
 *  TW_DATA_NO_TARGET where a mask says that it is not learned. The training
 *  split is shuffled; the validation split is in order, its seed not used; both begin again at their end.
 *  TW_ERR_INVALID, logged: a place outside its ranges, or a split too short for one sequence;
 *  TW_ERR_TRUNCATED, logged: the file has been cut since it was opened. */
tw_status_t tw_data_batch(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *place,
                          int32_t *tokens, int32_t *targets);

/** How many targets n sequences from number `first` on have, in the order in which batches take them; of
 *  training: since the beginning of time, by seed. Without masks each has seq_len. TW_ERR_INVALID, logged, as
 *  above. */
tw_status_t tw_data_count_targets(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *of,
                                  uint64_t first, uint64_t n, uint64_t *n_targets);
int tw_data_has_masks(const tw_data_t *data);

/* ---- text ---------------------------------------------------------------------------------------------- */

/** Can tokens be written as text? Not those of token files without a vocabulary. With
 *  tw_data_config_t.keeps_vocabulary. */
int tw_data_has_text(const tw_data_t *data);
/** Makes a text's tokens [*n], which are the caller's to free. Only if tw_data_has_text. TW_ERR_FORMAT: not
 *  UTF-8; TW_ERR_NO_MEMORY; logged with label. */
tw_status_t tw_data_text_tokens(const tw_data_t *data, const char *label, const char *text, int32_t **tokens,
                                size_t *n);
/** Tokens as text: valid UTF-8, where U+FFFD stands for what is none, for zeros and for tokens without a
 *  text; without a vocabulary their numbers, with blanks between. malloc'd, the caller's. NULL: out of memory
 *  (logged). */
char *tw_data_tokens_text(const tw_data_t *data, const int32_t *tokens, size_t n);

TW_C_END
