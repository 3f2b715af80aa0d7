/** Private to trainer/data: examples of what to answer, a JSON object a line, as tokens and a mask. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/encode.h"

TW_C_BEGIN

/** What messages are written with, and what comes after other examples. */
typedef struct tw_data_chat {
    tw_data_style_t style;
    const char *end; /**< NULL or "": nothing */
} tw_data_chat_t;

/** As tw_data_encode, of a file of examples (see data.h): beside `path` lies its mask. TW_ERR_FORMAT, logged
 *  with the line: none of these, or a message without a style; SentencePiece's vocabulary. */
tw_status_t tw_data_encode_chats(const char *chats_path, const tw_data_vocab_t *vocab,
                                 const tw_data_chat_t *chat, const char *folder, char *path);

TW_C_END
