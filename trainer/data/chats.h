/** Private to trainer/data: encodes chats and completions, a JSON object a line, as tokens and a mask. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/encode.h"

TW_C_BEGIN

/** How messages are written, and what is put after other examples. */
typedef struct tw_data_chat {
    tw_data_style_t style;
    const char *end; /**< NULL or "": nothing */
} tw_data_chat_t;

/** As tw_data_encode, for a file of examples (see data.h); the mask lies beside `path`. TW_ERR_FORMAT, logged
 *  with the line: no such example, or a message without a style; also for SentencePiece's vocabulary. */
tw_status_t tw_data_encode_chats(const char *chats_path, const tw_data_vocab_t *vocab,
                                 const tw_data_chat_t *chat, const char *folder, char *path);

TW_C_END
