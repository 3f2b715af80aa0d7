/** Private to trainer/data: checks that a file is the text or the tokens that it is given as. A file that is
 *  read as something else would train without an error, and teach nothing. */
#pragma once

#include "trainer/data/tokens.h"

TW_C_BEGIN

/** Check that a mapped file is UTF-8 text: not compressed, no JSON, not full of zeros. TW_ERR_FORMAT, logged
 *  with advice. */
tw_status_t tw_data_check_text(const tw_data_map_t *map);
/** Check that a file of tokens is in no other format. is_bare: the user gave no width, so check also that
 *  tokens are not wider than the assumed width. TW_ERR_FORMAT, logged with what to do. */
tw_status_t tw_data_check_tokens(const tw_data_tokens_t *tokens, int is_bare);
/** Return the bytes of the character that begins here; 0 if none does, or it is cut off. */
size_t tw_data_character_bytes(const unsigned char *at, size_t left);

TW_C_END
