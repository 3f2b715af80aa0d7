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
     *  Several, with commas between them, and patterns ("train_*.bin") are read as one text;
     *  "web_*.bin:0.7,books.bin:0.3" gives each its share of every 1,024 sequences. NULL or "": the King
     *  James text (Debian's bible-kjv) */
    const char *path;
    const char *val_path; /**< data for validation, of the same kind; NULL or "": the end of `path` */
    const char *vocab;    /**< GPT-2's vocab.json, with merges.txt; both NULL or "": a token per byte */
    const char *merges;
    const char *tokenizer; /**< instead of both: tokenizer.json; NULL or "": none */
    /** Bytes of a token in a bare token file: 2 or 4; 0: 2, if it does not look like 4. 1: any file's bytes
     *  are its tokens, unless there is a vocabulary. */
    size_t token_bytes;
    tw_data_style_t chat_style; /**< style of messages in "NAME.jsonl" */
    const char *chat_end;       /**< text that follows a text or a completion there; NULL or "": none */
    int has_masks; /**< 1: NAME.mask beside each NAME.bin says which tokens are learned; text has no masks */
    /** NULL or "": $XDG_CACHE_HOME/thinwire, ~/.cache/thinwire or the system's temporary folder */
    const char *cache_dir;
    int keeps_vocabulary; /**< 1: tw_data_text_tokens and tw_data_tokens_text may be called */
    double val_share; /**< without val_path: this share of each file, from 0 up to 0.5, is for validation */
    /** 1: training sequences begin where a document does, at document_token, if one comes in their length. */
    int is_aligned;
    int64_t document_token;
} tw_data_config_t;

typedef struct tw_data tw_data_t;

/** Open a source. All errors are logged with the file's name. TW_ERR_NOT_FOUND, TW_ERR_IO: it cannot be read
 *  (or the cache not written); TW_ERR_FORMAT: no such vocabulary or token file, no text, or no token in it;
 *  TW_ERR_INVALID: config; TW_ERR_NO_MEMORY. */
tw_status_t tw_data_open(const tw_data_config_t *config, tw_data_t **out);
void tw_data_close(tw_data_t *data);

/** Return the size of the vocabulary, which all tokens are below: 256 for bytes; for a token file at least
 *  the largest token + 1. */
size_t tw_data_vocab_size(const tw_data_t *data);
uint64_t tw_data_n_tokens(const tw_data_t *data, tw_data_split_t split);
/** Return how many sequences of seq_len tokens, with targets, the split holds; 0 if it is too short. */
uint64_t tw_data_n_sequences(const tw_data_t *data, tw_data_split_t split, size_t seq_len);

/** Sizes and checksum that tell one source from another. */
typedef struct tw_data_fingerprint {
    uint64_t n_train, n_val, vocab_size; /**< tokens of each split; vocab_size as above */
    uint64_t checksum;                   /**< checksum of all tokens of all files, which are read whole */
} tw_data_fingerprint_t;

/** Compute the fingerprint. TW_ERR_TRUNCATED, logged: a file has become shorter since it was opened. */
tw_status_t tw_data_fingerprint_get(const tw_data_t *data, tw_data_fingerprint_t *out);

/** The place of a micro-batch: number `micro` of n_micros in `step` (0 is the first), for `rank` of
 *  `world`; `batch` sequences of seq_len tokens. Sequence b is number (micro * world + rank) * batch + b of
 *  the step. */
typedef struct tw_data_place {
    uint64_t seed, step;
    size_t n_micros, micro, world, rank, batch, seq_len;
} tw_data_place_t;

#define TW_DATA_NO_TARGET (-1)
/** Get a micro-batch: tokens and targets are int32 [batch * seq_len], the caller's. A target is the token
 *  that follows, or TW_DATA_NO_TARGET if a mask says that it is not learned. The training split is shuffled;
 *  the validation split is in order, and ignores the seed; both begin again at their end. TW_ERR_INVALID,
 *  logged: a place outside its ranges, or a split too short for one sequence; TW_ERR_TRUNCATED, logged: the
 *  file has become shorter since it was opened. */
tw_status_t tw_data_batch(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *place,
                          int32_t *tokens, int32_t *targets);

/** Count the targets of n sequences from number `first` on, in the order in which batches take them; for
 *  training, numbers count from the first step, and `seed` gives the order. Without masks each has seq_len
 *  targets. TW_ERR_INVALID, logged, as above. */
tw_status_t tw_data_count_targets(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *of,
                                  uint64_t first, uint64_t n, uint64_t *n_targets);
int tw_data_has_masks(const tw_data_t *data);

/* ---- text ---------------------------------------------------------------------------------------------- */

/** Return 1 if tokens can be written as text: those of token files without a vocabulary cannot. Needs
 *  tw_data_config_t.keeps_vocabulary. */
int tw_data_has_text(const tw_data_t *data);
/** Encode a text as tokens [*n], which the caller frees. Call it only if tw_data_has_text. TW_ERR_FORMAT: not
 *  UTF-8; TW_ERR_NO_MEMORY; logged with label. */
tw_status_t tw_data_text_tokens(const tw_data_t *data, const char *label, const char *text, int32_t **tokens,
                                size_t *n);
/** Write tokens as valid UTF-8: U+FFFD stands for invalid bytes, zeros and tokens without a text. Without a
 *  vocabulary it writes their numbers, with blanks between. The caller frees it. NULL: out of memory
 *  (logged). */
char *tw_data_tokens_text(const tw_data_t *data, const int32_t *tokens, size_t n);

TW_C_END
