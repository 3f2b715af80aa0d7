/* Converts tokens to text and back, for people to read. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/data/kind.h"
#include "trainer/data/state.h"

int tw_data_has_text(const tw_data_t *data)
{
    return data->bpe || data->is_bytes;
}

/* ---- text to tokens ------------------------------------------------------------------------------------ */

typedef struct words {
    int32_t *tokens;
    size_t n, room;
} words_t;

static tw_status_t add_words(void *ctx, const uint32_t *tokens, size_t n)
{
    words_t *words = ctx;
    if (words->n + n > words->room) {
        size_t room = 2 * (words->n + n);
        int32_t *longer = realloc(words->tokens, room * sizeof(*longer));
        TW_FAIL_IF(!longer, TW_ERR_NO_MEMORY, "data: out of memory");
        words->tokens = longer;
        words->room = room;
    }
    for (size_t i = 0; i < n; i++) {
        words->tokens[words->n++] = (int32_t)tokens[i];
    }
    return TW_OK;
}

static tw_status_t text_add_bytes(words_t *words, const char *text)
{
    tw_status_t status = TW_OK;
    for (; *text && status == TW_OK; text++) {
        uint32_t byte = (unsigned char)*text;
        status = add_words(words, &byte, 1);
    }
    return status;
}

tw_status_t tw_data_text_tokens(const tw_data_t *data, const char *label, const char *text, int32_t **tokens,
                                size_t *n)
{
    words_t words = {0};
    tw_status_t status = data->bpe ? tw_bpe_encode(data->bpe, label, (const unsigned char *)text,
                                                   strlen(text), add_words, &words)
                                   : text_add_bytes(&words, text);
    if (status != TW_OK) {
        free(words.tokens);
        return status;
    }
    *tokens = words.tokens;
    *n = words.n;
    return TW_OK;
}

/* ---- tokens to text ------------------------------------------------------------------------------------ */

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

/** Return what a token stands for; a byte 0xff, which is never text, if it stands for nothing. */
static const unsigned char *text_of(const tw_data_t *data, int32_t token, unsigned char *byte, size_t *n)
{
    static const unsigned char none = 0xff;
    const unsigned char *text = byte;
    *byte = token >= 0 && token < 256 ? (unsigned char)token : none;
    *n = 1;
    if (data->bpe) {
        text = tw_bpe_text(data->bpe, (uint32_t)token, n);
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
