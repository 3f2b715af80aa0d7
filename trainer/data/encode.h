/** Private to trainer/data: encodes text by Hugging Face's tokenizers, in a program of Python's (encode.py).
 *  What it writes is kept in the folder of caches: Python is needed only for what is not there yet. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/file.h"

TW_C_BEGIN

/** A vocabulary: the files that it is read from, and what its tokens stand for. */
typedef struct tw_data_vocabulary {
    char path[TW_DATA_PATH_BYTES], merges[TW_DATA_PATH_BYTES]; /**< merges "": path is a tokenizer.json */
    char folder[TW_DATA_PATH_BYTES];                           /**< folder of caches */
    tw_data_map_t map;
    const uint64_t *ends; /**< [n], in map: where the bytes of each token end */
    size_t n;             /**< largest id + 1 */
} tw_data_vocabulary_t;

/** Open the vocabulary that config names, which keeps what it encodes in `folder`. TW_ERR_NOT_FOUND: a file,
 *  Python or its package is not there; TW_ERR_FORMAT: no such vocabulary; TW_ERR_IO, TW_ERR_NO_MEMORY;
 *  logged. */
tw_status_t tw_data_vocabulary_create(const tw_data_config_t *config, const char *folder,
                                      tw_data_vocabulary_t **out);
void tw_data_vocabulary_destroy(tw_data_vocabulary_t *vocabulary);
/** Return the bytes of a token in files of encoded text: 2, or 4 if the vocabulary needs them. */
size_t tw_data_vocabulary_token_bytes(const tw_data_vocabulary_t *vocabulary);
/** Return the bytes that a token stands for, perhaps part of a character; borrowed. *n_bytes 0: there is no
 *  such token. */
const unsigned char *tw_data_vocabulary_text(const tw_data_vocabulary_t *vocabulary, uint32_t token,
                                             size_t *n_bytes);

/** Write the path of a file's bare tokens to `path` [TW_DATA_PATH_BYTES], after they have been made unless
 *  they are there from before. chats: how the examples in it are written, whose mask lies beside `path`;
 *  NULL: it is a text. source NULL: what the vocabulary's tokens stand for, as encode.py writes it. Errors
 *  as above; TW_ERR_FORMAT: not UTF-8, or no such example, with its line. */
tw_status_t tw_data_encode(const tw_data_vocabulary_t *vocabulary, const char *source,
                           const tw_data_config_t *chats, char *path);

TW_C_END
