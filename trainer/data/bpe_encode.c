/* Encodes text as tokens. */
#include "trainer/data/bpe.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "trainer/data/bpe_state.h"
#include "trainer/data/kind.h"

/* Unicode's white space, and GPT-2's pattern of words with it: endings after an apostrophe; letters, digits
 * or others, each with a blank before; blanks, of which the last one belongs to the word that follows. */
#define SPACE                                                                                                \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
#define PATTERN                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE \
    "])|[" SPACE "]+"

/** Replace `\s` in a pattern of tokenizer.json: it is Unicode's white space there, and PCRE2's has one
 *  character more. Each takes sizeof(SPACE) + 3 bytes at most. */
static void widen_spaces(const char *pattern, char *out)
{
    int in_class = 0;
    for (; *pattern; pattern++) {
        if (*pattern == '\\' && (pattern[1] == 's' || (pattern[1] == 'S' && !in_class))) {
            pattern++;
            out += sprintf(out, in_class ? SPACE : *pattern == 's' ? "[" SPACE "]" : "[^" SPACE "]");
        } else if (*pattern == '\\' && pattern[1]) {
            *out++ = *pattern++;
            *out++ = *pattern;
        } else {
            in_class = *pattern == '[' || (in_class && *pattern != ']');
            *out++ = *pattern;
        }
    }
    *out = '\0';
}

static size_t count_spaces(const char *pattern)
{
    size_t n = 0;
    for (; *pattern; pattern++) {
        n += *pattern == '\\';
    }
    return n;
}

static tw_status_t compile_pattern(tw_bpe_t *bpe, const char *path, const char *pattern)
{
    int error;
    PCRE2_SIZE offset;
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                      &error, &offset, NULL);
    TW_FAIL_IF(!regex, TW_ERR_FORMAT, "%s: the pattern of words does not compile: error %d at %zu", path,
               error, (size_t)offset);
    (void)pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    bpe->regex = regex;
    return TW_OK;
}

static tw_status_t compile(tw_bpe_t *bpe, const char *path)
{
    if (!bpe->pattern) {
        return compile_pattern(bpe, path, PATTERN);
    }
    char *wide = malloc(strlen(bpe->pattern) + count_spaces(bpe->pattern) * (sizeof(SPACE) + 3) + 1);
    TW_FAIL_IF(!wide, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    widen_spaces(bpe->pattern, wide);
    tw_status_t status = compile_pattern(bpe, path, wide);
    free(wide);
    return status;
}

/** Make a vocabulary from two files; vocab_path alone is a tokenizer.json. */
static tw_status_t bpe_create(const char *vocab_path, const char *merges_path, tw_bpe_t **out)
{
    tw_bpe_t *bpe = calloc(1, sizeof(*bpe));
    TW_FAIL_IF(!bpe, TW_ERR_NO_MEMORY, "%s: out of memory", vocab_path);
    tw_status_t status =
        merges_path ? tw_bpe_load(bpe, vocab_path, merges_path) : tw_bpe_load_json(bpe, vocab_path);
    if (status == TW_OK && !bpe->characters) {
        status = compile(bpe, vocab_path);
    }
    if (status != TW_OK) {
        tw_bpe_destroy(bpe);
        return status;
    }
    *out = bpe;
    return TW_OK;
}

tw_status_t tw_bpe_create(const char *vocab_path, const char *merges_path, tw_bpe_t **out)
{
    return bpe_create(vocab_path, merges_path, out);
}

tw_status_t tw_bpe_create_json(const char *tokenizer_path, tw_bpe_t **out)
{
    return bpe_create(tokenizer_path, NULL, out);
}

void tw_bpe_destroy(tw_bpe_t *bpe)
{
    if (bpe) {
        for (size_t i = 0; i < bpe->n_added; i++) {
            free(bpe->added[i].text);
        }
        free(bpe->added);
        free(bpe->pattern);
        json_decref(bpe->words);
        json_decref(bpe->characters);
        pcre2_code_free(bpe->regex);
        tw_merges_cleanup(&bpe->merges);
        tw_bpe_texts_cleanup(&bpe->texts);
        free(bpe);
    }
}

int tw_bpe_puts_blanks(const tw_bpe_t *bpe)
{
    return bpe->characters != NULL;
}

size_t tw_bpe_vocab_size(const tw_bpe_t *bpe)
{
    return bpe->vocab_size;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

typedef struct encoding {
    const tw_bpe_t *bpe;
    const char *label;
    tw_bpe_emit_t emit;
    void *ctx;
    uint32_t *tokens; /* a word's tokens */
    char *name;       /* the word as the vocabulary writes it */
    size_t room;      /* the longest word, in bytes, that both have room for */
    pcre2_match_data *match;
} encoding_t;

static tw_status_t bpe_no_memory(const encoding_t *encoding)
{
    return tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory for its tokens", encoding->label);
}

static tw_status_t bpe_make_room(encoding_t *encoding, size_t bytes)
{
    if (bytes <= encoding->room) {
        return TW_OK;
    }
    uint32_t *tokens = realloc(encoding->tokens, 2 * bytes * sizeof(*tokens));
    encoding->tokens = tokens ? tokens : encoding->tokens;
    char *name = realloc(encoding->name, 4 * bytes + 1);
    encoding->name = name ? name : encoding->name;
    if (!tokens || !name) {
        return bpe_no_memory(encoding);
    }
    encoding->room = 2 * bytes;
    return TW_OK;
}

/** Return the word's own token; NULL if it has none. */
static const json_t *find_whole(const encoding_t *encoding, const unsigned char *word, size_t bytes)
{
    char *end = encoding->name;
    for (size_t i = 0; i < bytes; i++) {
        tw_bpe_byte_name(word[i], end);
        end += strlen(end);
    }
    return json_object_get(encoding->bpe->words, encoding->name);
}

/** Append a character's token, or, if it has none, those of its bytes, to n tokens. Return the new number. */
static size_t add_character(encoding_t *encoding, const unsigned char *character, size_t bytes, size_t n)
{
    char name[8];
    snprintf(name, sizeof(name), "%.*s", (int)bytes, (const char *)character);
    const json_t *token = json_object_get(encoding->bpe->characters, *character == ' ' ? TW_BPE_BLANK : name);
    if (token) {
        encoding->tokens[n++] = (uint32_t)json_integer_value(token);
    }
    for (size_t i = 0; i < bytes && !token; i++) {
        encoding->tokens[n++] = encoding->bpe->bytes[character[i]];
    }
    return n;
}

/** Encode a word of whole characters. has_prefix 1: it gets a blank before, which is not in the text. */
static tw_status_t encode_characters(encoding_t *encoding, const unsigned char *word, size_t bytes,
                                     int has_prefix)
{
    TW_TRY(bpe_make_room(encoding, bytes + 1));
    size_t n = has_prefix ? add_character(encoding, (const unsigned char *)" ", 1, 0) : 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = tw_data_character_bytes(word + at, bytes - at);
        n = add_character(encoding, word + at, length, n);
    }
    n = tw_merges_apply(&encoding->bpe->merges, encoding->tokens, n);
    return encoding->emit(encoding->ctx, encoding->tokens, n);
}

static tw_status_t encode_word(encoding_t *encoding, const unsigned char *word, size_t bytes)
{
    TW_TRY(bpe_make_room(encoding, bytes));
    const json_t *whole = encoding->bpe->words ? find_whole(encoding, word, bytes) : NULL;
    if (whole) {
        uint32_t token = (uint32_t)json_integer_value(whole);
        return encoding->emit(encoding->ctx, &token, 1);
    }
    for (size_t i = 0; i < bytes; i++) {
        encoding->tokens[i] = encoding->bpe->bytes[word[i]];
    }
    size_t n = tw_merges_apply(&encoding->bpe->merges, encoding->tokens, bytes);
    return encoding->emit(encoding->ctx, encoding->tokens, n);
}

/* A part of a text between added tokens. */
typedef struct stretch {
    const unsigned char *at;
    size_t bytes, first;
} stretch_t;

static tw_status_t no_match(const encoding_t *encoding, const stretch_t *stretch, size_t at, int code)
{
    if (code <= PCRE2_ERROR_UTF8_ERR1 && code >= PCRE2_ERROR_UTF8_ERR21) {
        tw_error("%s: not UTF-8 at byte %zu", encoding->label,
                 stretch->first + pcre2_get_startchar(encoding->match));
    } else {
        tw_error("%s: no word at byte %zu (error %d)", encoding->label, stretch->first + at, code);
    }
    return TW_ERR_FORMAT;
}

/** Encode a stretch's words, and what the pattern skips between them. The first match checks UTF-8. */
static tw_status_t encode_words(encoding_t *encoding, const stretch_t *stretch)
{
    tw_status_t status = TW_OK;
    for (size_t at = 0; at < stretch->bytes && status == TW_OK;) {
        int code = pcre2_match(encoding->bpe->regex, stretch->at, stretch->bytes, at,
                               at > 0 ? PCRE2_NO_UTF_CHECK : 0, encoding->match, NULL);
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(encoding->match);
        if (code == PCRE2_ERROR_NOMATCH) {
            return encode_word(encoding, stretch->at + at, stretch->bytes - at);
        }
        if (code < 1 || ends[0] < at || ends[1] <= ends[0]) {
            return no_match(encoding, stretch, at, code);
        }
        if (ends[0] > at) {
            status = encode_word(encoding, stretch->at + at, ends[0] - at);
        }
        status = status == TW_OK ? encode_word(encoding, stretch->at + ends[0], ends[1] - ends[0]) : status;
        at = ends[1];
    }
    return status;
}

/** Return 1 if it is a blank, as a text has it or as the vocabulary writes it. */
static int is_blank(const unsigned char *at, size_t bytes)
{
    size_t length = strlen(TW_BPE_BLANK);
    return bytes > 0 && (*at == ' ' || (bytes >= length && memcmp(at, TW_BPE_BLANK, length) == 0));
}

static int has_prefix(const tw_bpe_t *bpe, const stretch_t *stretch)
{
    return (bpe->prefix == TW_BPE_PREFIX_EACH ||
            (bpe->prefix == TW_BPE_PREFIX_FIRST && stretch->first == 0)) &&
           !(bpe->prefix_is_spared && is_blank(stretch->at, stretch->bytes));
}

/** Encode SentencePiece's words: blanks, and what follows up to the next ones. No token spans two words. */
static tw_status_t encode_after_blanks(encoding_t *encoding, const stretch_t *stretch)
{
    size_t begin = 0, length;
    int was_blank = 1, prefix = has_prefix(encoding->bpe, stretch);
    for (size_t at = 0; at < stretch->bytes; at += length) {
        int blank = is_blank(stretch->at + at, stretch->bytes - at);
        length = tw_data_character_bytes(stretch->at + at, stretch->bytes - at);
        TW_FAIL_IF(length == 0, TW_ERR_FORMAT, "%s: not UTF-8 at byte %zu", encoding->label,
                   stretch->first + at);
        if (blank && !was_blank) {
            TW_TRY(encode_characters(encoding, stretch->at + begin, at - begin, prefix && begin == 0));
            begin = at;
        }
        was_blank = blank;
    }
    return stretch->bytes > 0 ? encode_characters(encoding, stretch->at + begin, stretch->bytes - begin,
                                                  prefix && begin == 0)
                              : TW_OK;
}

static tw_status_t encode_stretch(encoding_t *encoding, stretch_t stretch)
{
    if (encoding->bpe->characters) {
        return encode_after_blanks(encoding, &stretch);
    }
    unsigned char *composed = NULL;
    if (encoding->bpe->is_composed) {
        TW_TRY(tw_bpe_compose(encoding->label, stretch.at, stretch.bytes, &composed, &stretch.bytes));
    }
    stretch.at = composed ? composed : stretch.at;
    tw_status_t status = encode_words(encoding, &stretch);
    free(composed);
    return status;
}

/** Return the longest added token that begins here; NULL if none does. */
static const tw_bpe_added_t *added_at(const tw_bpe_t *bpe, const unsigned char *at, size_t bytes)
{
    const tw_bpe_added_t *longest = NULL;
    for (size_t i = 0; i < bpe->n_added; i++) {
        const tw_bpe_added_t *added = &bpe->added[i];
        if (added->bytes <= bytes && memcmp(added->text, at, added->bytes) == 0 &&
            (!longest || added->bytes > longest->bytes)) {
            longest = added;
        }
    }
    return longest;
}

/** Find the next added token from `at` on; *at becomes its place, or the end. begins [256] is 1 for bytes
 *  that an added token begins with. */
static const tw_bpe_added_t *next_added(const tw_bpe_t *bpe, const unsigned char *text, size_t bytes,
                                        const char *begins, size_t *at)
{
    for (; *at < bytes; (*at)++) {
        const tw_bpe_added_t *added = begins[text[*at]] ? added_at(bpe, text + *at, bytes - *at) : NULL;
        if (added) {
            return added;
        }
    }
    return NULL;
}

static tw_status_t encode_stretches(encoding_t *encoding, const unsigned char *text, size_t bytes)
{
    const tw_bpe_t *bpe = encoding->bpe;
    char begins[256] = {0};
    tw_status_t status = TW_OK;
    for (size_t i = 0; i < bpe->n_added; i++) {
        begins[(unsigned char)bpe->added[i].text[0]] = 1;
    }
    for (size_t first = 0; first < bytes && status == TW_OK;) {
        size_t at = first;
        const tw_bpe_added_t *added = next_added(bpe, text, bytes, begins, &at);
        status = encode_stretch(encoding, (stretch_t){text + first, at - first, first});
        if (status == TW_OK && added) {
            status = encoding->emit(encoding->ctx, &added->token, 1);
        }
        first = at + (added ? added->bytes : 0);
    }
    return status;
}

tw_status_t tw_bpe_encode(const tw_bpe_t *bpe, const char *label, const unsigned char *text, size_t bytes,
                          tw_bpe_emit_t emit, void *ctx)
{
    encoding_t encoding = {.bpe = bpe, .label = label, .emit = emit, .ctx = ctx};
    encoding.match = pcre2_match_data_create(1, NULL);
    tw_status_t status = encoding.match ? encode_stretches(&encoding, text, bytes) : bpe_no_memory(&encoding);
    pcre2_match_data_free(encoding.match);
    free(encoding.tokens);
    free(encoding.name);
    return status;
}
