/** Private to trainer/data: encodes text with Hugging Face's tokenizers, in a Python program (encode.py). The
 *  results are kept in the folder of caches, so Python is needed only for what is not there yet. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/file.h"

TW_C_BEGIN

/** A vocabulary: its files, and the text of each token. */
typedef struct tw_data_vocabulary {
    char path[TW_DATA_PATH_BYTES], merges[TW_DATA_PATH_BYTES]; /**< merges "": path is a tokenizer.json */
    char folder[TW_DATA_PATH_BYTES];                           /**< folder of caches */
    tw_data_map_t map;
    const uint64_t *ends; /**< [n], in map: where the bytes of each token end */
    size_t n;             /**< largest id + 1 */
} tw_data_vocabulary_t;

/** Open the vocabulary that config names. `folder` is the folder of caches. Errors, logged: TW_ERR_NOT_FOUND,
 *  a file, Python or its package is missing; TW_ERR_FORMAT, a malformed vocabulary; TW_ERR_IO,
 *  TW_ERR_NO_MEMORY. */
tw_status_t tw_data_vocabulary_create(const tw_data_config_t *config, const char *folder,
                                      tw_data_vocabulary_t **out);
void tw_data_vocabulary_destroy(tw_data_vocabulary_t *vocabulary);
/** Return the bytes per token in files of encoded text: 2, or 4 if the vocabulary needs them. */
size_t tw_data_vocabulary_token_bytes(const tw_data_vocabulary_t *vocabulary);
/** Return a token's text in bytes, which may be a part of a character; borrowed. *n_bytes is 0 if there is no
 *  such token. */
const unsigned char *tw_data_vocabulary_text(const tw_data_vocabulary_t *vocabulary, uint32_t token,
                                             size_t *n_bytes);

/** Write the path of the file with the bare tokens of `source` to `path` [TW_DATA_PATH_BYTES]. Makes the
 *  file, unless the cache has it. chats: the format of a .jsonl file, whose mask is beside `path`; NULL for
 *  text. source NULL: the file has the text of each token, as encode.py writes it. Errors are those of
 *  tw_data_vocabulary_create; TW_ERR_FORMAT also: not UTF-8, or a malformed example, with its line. */
tw_status_t tw_data_encode(const tw_data_vocabulary_t *vocabulary, const char *source,
                           const tw_data_config_t *chats, char *path);

TW_C_END
