/** Private to trainer/data: what a file is that is given as text or as tokens. Whatever is read as something
 *  else trains without an error, to a model of nothing. */
#pragma once

#include "trainer/data/tokens.h"

TW_C_BEGIN

/** A mapped file is UTF-8 text: not packed, no JSON, not full of zero bytes. TW_ERR_FORMAT, logged with what
 *  to do. */
tw_status_t tw_data_check_text(const tw_data_map_t *map);
/** A file of tokens is none of another format. is_bare: nobody said how many bytes a token has: it is not of
 *  twice as many or more. TW_ERR_FORMAT, logged with what to do. */
tw_status_t tw_data_check_tokens(const tw_data_tokens_t *tokens, int is_bare);
/** Bytes of the character that begins here; 0: none does, or not all of it is there. */
size_t tw_data_character_bytes(const unsigned char *at, size_t left);

TW_C_END
