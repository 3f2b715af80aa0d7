/* Converts tokens to text and back, for people to read. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "trainer/data/kind.h"
#include "trainer/data/state.h"

int tw_data_has_text(const tw_data_t *data)
{
    return data->vocabulary || data->is_bytes;
}

static tw_status_t check_utf8(const char *label, const char *text, size_t bytes)
{
    for (size_t at = 0, length; at < bytes; at += length) {
        length = tw_data_character_bytes((const unsigned char *)text + at, bytes - at);
        TW_FAIL_IF(length == 0, TW_ERR_FORMAT, "%s: not UTF-8 at byte %zu", label, at);
    }
    return TW_OK;
}

/** Encode a text: write it to a file in the folder of caches, and encode that file. */
static tw_status_t open_prompt(const tw_data_vocabulary_t *vocabulary, const char *text,
                               tw_data_tokens_t *tokens)
{
    tw_data_writer_t writer;
    char path[TW_DATA_PATH_BYTES], encoded[TW_DATA_PATH_BYTES];
    snprintf(path, sizeof(path), "%.*s/prompt-%016" PRIx64 ".txt", (int)sizeof(path) - 32, vocabulary->folder,
             XXH3_64bits(text, strlen(text)));
    TW_TRY(tw_data_writer_open(&writer, path));
    fputs(text, writer.out);
    TW_TRY(tw_data_writer_close(&writer, TW_OK));
    TW_TRY(tw_data_encode(vocabulary, path, NULL, encoded));
    return tw_data_tokens_of_words(encoded, tw_data_vocabulary_token_bytes(vocabulary), tokens);
}

tw_status_t tw_data_text_tokens(const tw_data_t *data, const char *label, const char *text, int32_t **tokens,
                                size_t *n)
{
    tw_data_tokens_t read = {.bytes = (const uint8_t *)text, .n = strlen(text)};
    if (data->vocabulary) {
        TW_TRY(check_utf8(label, text, strlen(text)));
        TW_TRY(open_prompt(data->vocabulary, text, &read));
    }
    const tw_data_range_t all = {&read, 0, read.n};
    *tokens = malloc((read.n + 1) * sizeof(**tokens));
    for (*n = 0; *tokens && *n < read.n; (*n)++) {
        (*tokens)[*n] = tw_data_token(&all, *n);
    }
    tw_data_tokens_cleanup(&read);
    return *tokens ? TW_OK : tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory", label);
}

#define REPLACEMENT "\xef\xbf\xbd"

static char *make_valid(const unsigned char *bytes, size_t n)
{
    char *text = malloc(n * strlen(REPLACEMENT) + 1), *to = text;
    for (size_t i = 0; i < n && text;) {
        size_t length = bytes[i] ? tw_data_character_bytes(bytes + i, n - i) : 0;
        const void *from = length > 0 ? (const void *)(bytes + i) : REPLACEMENT;
        size_t written = length > 0 ? length : strlen(REPLACEMENT);
        memcpy(to, from, written);
        to += written;
        i += length > 0 ? length : 1;
    }
    if (text) {
        *to = '\0';
    }
    return text;
}

/** Return a token's text in bytes. A token without a text gives the byte 0xff, which UTF-8 never has. */
static const unsigned char *text_of(const tw_data_t *data, int32_t token, unsigned char *byte, size_t *n)
{
    static const unsigned char none = 0xff;
    const unsigned char *text = byte;
    *byte = token >= 0 && token < 256 ? (unsigned char)token : none;
    *n = 1;
    if (data->vocabulary) {
        text = tw_data_vocabulary_text(data->vocabulary, (uint32_t)token, n);
    }
    if (*n == 0) {
        *n = 1;
        text = &none;
    }
    return text;
}

static char *write_words(const tw_data_t *data, const int32_t *tokens, size_t n)
{
    size_t n_bytes = 0, length, at = 0;
    unsigned char byte;
    for (size_t i = 0; i < n; i++) {
        (void)text_of(data, tokens[i], &byte, &length);
        n_bytes += length;
    }
    unsigned char *bytes = malloc(n_bytes + 1);
    for (size_t i = 0; i < n && bytes; i++) {
        const unsigned char *text = text_of(data, tokens[i], &byte, &length);
        memcpy(bytes + at, text, length);
        at += length;
    }
    char *valid = bytes ? make_valid(bytes, n_bytes) : NULL;
    free(bytes);
    return valid;
}

static char *write_numbers(const int32_t *tokens, size_t n)
{
    enum { MOST_BYTES = 12 };
    char *text = malloc(n * MOST_BYTES + 1), *at = text;
    if (text) {
        *text = '\0';
    }
    for (size_t i = 0; i < n && text; i++) {
        at += sprintf(at, "%s%" PRId32, i > 0 ? " " : "", tokens[i]);
    }
    return text;
}

char *tw_data_tokens_text(const tw_data_t *data, const int32_t *tokens, size_t n)
{
    char *text = tw_data_has_text(data) ? write_words(data, tokens, n) : write_numbers(tokens, n);
    if (!text) {
        tw_error("data: out of memory for a text of %zu tokens", n);
    }
    return text;
}
