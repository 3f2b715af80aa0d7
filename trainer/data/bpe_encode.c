/* Text to tokens. */
#include "trainer/data/bpe.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "trainer/data/bpe_state.h"

/* Unicode's white space, and GPT-2's pattern of words with it: endings after an apostrophe; letters, digits or others, each with
 * a blank before; blanks, of which the last one belongs to the word that follows. */
#define SPACE                                                                                                \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
#define PATTERN                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE \
    "])|[" SPACE "]+"

static tw_status_t compile(tw_bpe_t *bpe)
{
    int error;
    PCRE2_SIZE offset;
    pcre2_code *regex =
        pcre2_compile((PCRE2_SPTR)PATTERN, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, NULL);
    if (!regex) {
        tw_error("data: the pattern of words does not compile: error %d at %zu", error, (size_t)offset);
        return TW_ERR_INTERNAL;
    }
    (void)pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE); /* slower without */
    bpe->regex = regex;
    return TW_OK;
}

tw_status_t tw_bpe_create(const char *vocab_path, const char *merges_path, tw_bpe_t **out)
{
    tw_bpe_t *bpe = calloc(1, sizeof(*bpe));
    if (!bpe) {
        tw_error("%s: out of memory", vocab_path);
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_bpe_load(bpe, vocab_path, merges_path);
    if (status == TW_OK) {
        status = compile(bpe);
    }
    if (status != TW_OK) {
        tw_bpe_destroy(bpe);
        return status;
    }
    *out = bpe;
    return TW_OK;
}

void tw_bpe_destroy(tw_bpe_t *bpe)
{
    if (bpe) {
        pcre2_code_free(bpe->regex);
        tw_merges_cleanup(&bpe->merges);
        free(bpe);
    }
}

size_t tw_bpe_vocab_size(const tw_bpe_t *bpe)
{
    return bpe->vocab_size;
}

/* ---- encoding -------------------------------------------------------------------------------------------- */

typedef struct encoding {
    const tw_bpe_t *bpe;
    const char *label;
    const unsigned char *text; /* all of it */
    tw_bpe_emit_t emit;
    void *ctx;
    uint16_t *tokens; /* of a word */
    size_t room;
    pcre2_match_data *match;
} encoding_t;

static tw_status_t no_memory(const encoding_t *encoding)
{
    tw_error("%s: out of memory for its tokens", encoding->label);
    return TW_ERR_NO_MEMORY;
}

static tw_status_t encode_word(encoding_t *encoding, const unsigned char *word, size_t bytes)
{
    if (bytes > encoding->room) {
        uint16_t *longer = realloc(encoding->tokens, 2 * bytes * sizeof(*longer));
        if (!longer) {
            return no_memory(encoding);
        }
        encoding->tokens = longer;
        encoding->room = 2 * bytes;
    }
    for (size_t i = 0; i < bytes; i++) {
        encoding->tokens[i] = encoding->bpe->bytes[word[i]];
    }
    size_t n = tw_merges_apply(&encoding->bpe->merges, encoding->tokens, bytes);
    return encoding->emit(encoding->ctx, encoding->tokens, n);
}

static tw_status_t no_match(const encoding_t *encoding, const unsigned char *part, size_t at, int code)
{
    size_t place = (size_t)(part - encoding->text) + at;
    if (code <= PCRE2_ERROR_UTF8_ERR1 && code >= PCRE2_ERROR_UTF8_ERR21) {
        place = (size_t)(part - encoding->text) + pcre2_get_startchar(encoding->match);
        tw_error("%s: not UTF-8 at byte %zu", encoding->label, place);
    } else {
        tw_error("%s: no word at byte %zu (error %d)", encoding->label, place, code);
    }
    return TW_ERR_FORMAT;
}

/* Text without end-of-text marks. Its words lie side by side. The first match checks that all of it is UTF-8. */
static tw_status_t encode_part(encoding_t *encoding, const unsigned char *part, size_t bytes)
{
    tw_status_t status = TW_OK;
    for (size_t at = 0; at < bytes && status == TW_OK;) {
        int code = pcre2_match(encoding->bpe->regex, part, bytes, at, at > 0 ? PCRE2_NO_UTF_CHECK : 0,
                               encoding->match, NULL);
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(encoding->match);
        if (code < 1 || ends[0] != at || ends[1] <= at) {
            return no_match(encoding, part, at, code);
        }
        status = encode_word(encoding, part + at, ends[1] - at);
        at = ends[1];
    }
    return status;
}

static tw_status_t encode_parts(encoding_t *encoding, size_t bytes)
{
    const size_t mark_bytes = strlen(TW_BPE_END_OF_TEXT);
    const unsigned char *part = encoding->text, *end = encoding->text + bytes;
    uint16_t token = (uint16_t)encoding->bpe->end_of_text;
    tw_status_t status = TW_OK;
    while (status == TW_OK && part < end) {
        const unsigned char *mark = NULL;
        if (encoding->bpe->end_of_text >= 0) {
            mark = memmem(part, (size_t)(end - part), TW_BPE_END_OF_TEXT, mark_bytes);
        }
        status = encode_part(encoding, part, (size_t)((mark ? mark : end) - part));
        if (status == TW_OK && mark) {
            status = encoding->emit(encoding->ctx, &token, 1);
        }
        part = mark ? mark + mark_bytes : end;
    }
    return status;
}

tw_status_t tw_bpe_encode(const tw_bpe_t *bpe, const char *label, const unsigned char *text, size_t bytes,
                          tw_bpe_emit_t emit, void *ctx)
{
    encoding_t encoding = {.bpe = bpe, .label = label, .text = text, .emit = emit, .ctx = ctx};
    encoding.match = pcre2_match_data_create(1, NULL);
    tw_status_t status = encoding.match ? encode_parts(&encoding, bytes) : no_memory(&encoding);
    pcre2_match_data_free(encoding.match);
    free(encoding.tokens);
    return status;
}
