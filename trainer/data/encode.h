/** Private to trainer/data: encodes text as a file of tokens. */
#pragma once

#include "trainer/data/bpe.h"
#include "trainer/data/file.h"

TW_C_BEGIN

typedef struct tw_data_vocab {
    const char *vocab_path, *merges_path; /* merges_path NULL: vocab_path is a tokenizer.json */
    const tw_bpe_t *bpe;
} tw_data_vocab_t;

/** Return the bytes of a token in files of encoded text: 2, or 4 if the vocabulary needs them. */
size_t tw_data_encoded_bytes(const tw_bpe_t *bpe);

/** Compute the checksum of what a file of tokens is made of: text and vocabulary. Errors of tw_data_map. */
tw_status_t tw_data_encoding_checksum(const char *text_path, const tw_data_vocab_t *vocab,
                                      uint64_t *checksum);
/** Write the path of a text's bare tokens, in `folder`, to `path` [TW_DATA_PATH_BYTES]. The text is encoded,
 *  unless the file is there from before. Errors of tw_data_map, tw_bpe_encode and tw_data_writer_close. */
tw_status_t tw_data_encode(const char *text_path, const tw_data_vocab_t *vocab, const char *folder,
                           char *path);

TW_C_END
