/** trainer/data: the tokens to train on, and which of them a rank gets in a step.
 *
 *  A source is UTF-8 text, or a file of uint16 or uint32 tokens, as nanoGPT and llm.c write them. The file is
 *  mapped. Text has a token per byte, or is encoded with a vocabulary; then its tokens are kept in a folder
 *  of caches. An open source is only read, so any threads may use it at once.
 *
 *  Order: each file's training part is cut into sequences of T tokens. An epoch visits all of them once, in a
 *  random order drawn from (seed, epoch). Entries with weights have epochs of their own. A rank's
 *  sequences are a function of (seed, step, place in the step) alone. So nothing needs to be saved to resume
 *  in mid-epoch. With the same global batch, any number of ranks has the same sequences in the same steps. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef enum tw_data_split { TW_DATA_TRAIN = 0, TW_DATA_VAL = 1 } tw_data_split_t;

/** The format of a chat's messages. */
typedef enum tw_data_style { TW_DATA_STYLE_NONE, TW_DATA_STYLE_CHATML, TW_DATA_STYLE_LLAMA3 } tw_data_style_t;

typedef struct tw_data_config {
    /** "NAME.bin" has tokens. "NAME.jsonl" has lines {"text"}, {"prompt", "completion"}, or {"messages":
     *  [{"role", "content"}, ...]}. Texts, completions and the assistant's messages are learned. Other files
     *  are text. Several names with commas between them, and patterns ("train_*.bin"), are read as one text.
     *  "web_*.bin:0.7,books.bin:0.3" gives each entry its share of every 1,024 sequences. NULL or "": the
     *  King James Bible (Debian's bible-kjv) */
    const char *path;
    const char *val_path; /**< validation data, same forms; NULL or "": the end of each file of `path` */
    const char *vocab;    /**< GPT-2's vocab.json, used with `merges`; both NULL or "": a token per byte */
    const char *merges;
    const char *tokenizer; /**< tokenizer.json, instead of vocab and merges; NULL or "": none */
    /** Bytes of a token in a bare token file: 2 or 4. 0: 2, and a file that looks wider is refused. 1: the
     *  bytes of any file are its tokens, unless there is a vocabulary. */
    size_t token_bytes;
    tw_data_style_t chat_style; /**< format of messages in "NAME.jsonl" */
    const char *chat_end;       /**< added to each text or completion in "NAME.jsonl"; NULL or "": nothing */
    int has_masks;              /**< 1: NAME.mask beside NAME.bin marks learned tokens; text has no masks */
    /** Folder of caches. NULL or "": $XDG_CACHE_HOME/thinwire, ~/.cache/thinwire or the temporary folder */
    const char *cache_dir;
    int keeps_vocabulary; /**< 1: tw_data_text_tokens and tw_data_tokens_text may be called */
    /** Without val_path: the share of each file, 0 to 0.5, that is for validation */
    double val_share;
    /** 1: a training sequence begins at the first document_token within its length */
    int is_aligned;
    int64_t document_token;
} tw_data_config_t;

typedef struct tw_data tw_data_t;

/** Open a source. All errors are logged with the file's name. TW_ERR_NOT_FOUND, TW_ERR_IO: a file cannot be
 *  read, or the cache not written; TW_ERR_FORMAT: a malformed vocabulary or token file, or no text or token
 *  in it; TW_ERR_INVALID: config; TW_ERR_NO_MEMORY. */
tw_status_t tw_data_open(const tw_data_config_t *config, tw_data_t **out);
void tw_data_close(tw_data_t *data);

/** Return the size of the vocabulary; all tokens are below it. For bytes it is 256. For a token file without
 *  a vocabulary it is at least the largest token + 1. */
size_t tw_data_vocab_size(const tw_data_t *data);
uint64_t tw_data_n_tokens(const tw_data_t *data, tw_data_split_t split);
/** Return how many sequences of seq_len tokens, with their targets, the split has; 0 if it is too short. */
uint64_t tw_data_n_sequences(const tw_data_t *data, tw_data_split_t split, size_t seq_len);

/** Sizes and a checksum that identify a source. */
typedef struct tw_data_fingerprint {
    uint64_t n_train, n_val, vocab_size; /**< tokens of each split; tw_data_vocab_size */
    /** of all files' tokens, masks and weights; computing it reads the files whole */
    uint64_t checksum;
} tw_data_fingerprint_t;

/** Compute the fingerprint. TW_ERR_TRUNCATED, logged: a file has become shorter since it was opened. */
tw_status_t tw_data_fingerprint_get(const tw_data_t *data, tw_data_fingerprint_t *out);

/** The place of a micro-batch: number `micro` of n_micros in `step` (the first is 0), for `rank` of `world`.
 *  It has `batch` sequences of seq_len tokens. Its sequence b is number (micro * world + rank) * batch + b of
 *  the step. */
typedef struct tw_data_place {
    uint64_t seed, step;
    size_t n_micros, micro, world, rank, batch, seq_len;
} tw_data_place_t;

#define TW_DATA_NO_TARGET (-1)
/** Get a micro-batch. tokens and targets are the caller's int32 [batch * seq_len]. A target is the token that
 *  follows, or TW_DATA_NO_TARGET if a mask says that it is not learned. The training split is shuffled. The
 *  validation split is in order and ignores the seed. Both start again at their end. Errors, logged:
 *  TW_ERR_INVALID, a place outside its ranges, or a split too short for one sequence; TW_ERR_TRUNCATED, the
 *  file has become shorter since it was opened. */
tw_status_t tw_data_batch(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *place,
                          int32_t *tokens, int32_t *targets);

/** Count the targets of n sequences from number `first` on, in the order in which batches take them. For
 *  training, numbers count from the first step, and of->seed gives the order. Without masks each sequence has
 *  seq_len targets. TW_ERR_INVALID, logged, as for tw_data_batch. */
tw_status_t tw_data_count_targets(const tw_data_t *data, tw_data_split_t split, const tw_data_place_t *of,
                                  uint64_t first, uint64_t n, uint64_t *n_targets);
int tw_data_has_masks(const tw_data_t *data);

/* ---- text ---------------------------------------------------------------------------------------------- */

/** Return 1 if tokens can be written as text. Token files without a vocabulary cannot. Needs
 *  tw_data_config_t.keeps_vocabulary. */
int tw_data_has_text(const tw_data_t *data);
/** Encode a text as tokens [*n], which the caller frees. Call it only if tw_data_has_text. TW_ERR_FORMAT: not
 *  UTF-8; TW_ERR_NO_MEMORY; both logged with `label`. */
tw_status_t tw_data_text_tokens(const tw_data_t *data, const char *label, const char *text, int32_t **tokens,
                                size_t *n);
/** Write tokens as valid UTF-8. U+FFFD replaces invalid bytes, zeros and tokens without a text. Without a
 *  vocabulary it writes the tokens' numbers, with blanks between them. The caller frees the text. NULL: out
 *  of memory (logged). */
char *tw_data_tokens_text(const tw_data_t *data, const int32_t *tokens, size_t n);

TW_C_END
