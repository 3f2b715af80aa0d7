/** Private to trainer/data: checks that a file has the kind of data that its name or a key says. Otherwise
 *  training on the wrong bytes would run without an error. */
#pragma once

#include "trainer/data/tokens.h"

TW_C_BEGIN

/** Check that a mapped file is UTF-8 text, not compressed, not JSON, and not full of zeros. TW_ERR_FORMAT,
 *  logged with advice. */
tw_status_t tw_data_check_text(const tw_data_map_t *map);
/** Check that a file of tokens has no other format. If is_bare is 1, the user gave no token_bytes, so check
 *  also that the tokens do not look wider than 2 bytes. TW_ERR_FORMAT, logged with advice. */
tw_status_t tw_data_check_tokens(const tw_data_tokens_t *tokens, int is_bare);
/** Return the bytes of the UTF-8 character at `at`; 0 if it is malformed, or longer than the `left` bytes. */
size_t tw_data_character_bytes(const unsigned char *at, size_t left);

TW_C_END
