/* Reads tokenizer.json, as Hugging Face's tokenizers writes it; what is not supported is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "trainer/data/bpe_state.h"
#include "trainer/input.h"

static tw_status_t bpe_json_refuse(const char *path, const char *what, const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    tw_error("%s: %s is %.100s, which is not done here", path, what, text ? text : "missing");
    free(text);
    return TW_ERR_FORMAT;
}

static int is_type(const json_t *object, const char *type)
{
    const char *name = json_string_value(json_object_get(object, "type"));
    return name && strcmp(name, type) == 0;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

/** Adds a merge: "a b", or ["a", "b"]. */
static tw_status_t add_merge(tw_bpe_t *bpe, const json_t *vocab, const json_t *merge, uint32_t rank)
{
    const char *left = json_string_value(json_array_get(merge, 0));
    const char *right = json_string_value(json_array_get(merge, 1));
    if (left && right) {
        return tw_bpe_add_merge(bpe, vocab, left, right, rank);
    }
    const char *space = json_is_string(merge) ? strchr(json_string_value(merge), ' ') : NULL;
    char *copy = space ? strdup(json_string_value(merge)) : NULL;
    tw_status_t status = TW_ERR_FORMAT;
    if (copy) {
        copy[space - json_string_value(merge)] = '\0';
        status = tw_bpe_add_merge(bpe, vocab, copy, copy + strlen(copy) + 1, rank);
    }
    free(copy);
    return status;
}

static tw_status_t read_merges(tw_bpe_t *bpe, const char *path, const json_t *vocab, const json_t *merges)
{
    size_t i, n = json_array_size(merges);
    const json_t *merge;
    if (!json_is_array(merges) || n >= UINT32_MAX / 4) {
        return bpe_json_refuse(path, "model.merges", merges);
    }
    TW_TRY(tw_merges_init(&bpe->merges, n));
    json_array_foreach(merges, i, merge)
    {
        tw_status_t status = add_merge(bpe, vocab, merge, (uint32_t)i);
        if (status == TW_ERR_FORMAT) {
            tw_error("%s: merge %zu is not of two tokens of the vocabulary", path, i);
        }
        TW_TRY(status);
    }
    return TW_OK;
}

/** Refuse settings that would change the ids. */
static tw_status_t bpe_json_check_model(const char *path, const json_t *model)
{
    static const char *const names[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    if (!is_type(model, "BPE")) {
        return bpe_json_refuse(path, "model.type", json_object_get(model, "type"));
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *value = json_object_get(model, names[i]);
        int is_empty = json_is_string(value) && !*json_string_value(value);
        if (value && !json_is_null(value) && !json_is_false(value) && !is_empty) {
            return bpe_json_refuse(path, names[i], value);
        }
    }
    return TW_OK;
}

/** Refuse blanks inside tokens: SentencePiece's words begin with theirs, so such a token would span two. */
static tw_status_t check_blanks(const char *path, json_t *vocab)
{
    const char *name;
    json_t *id;
    json_object_foreach(vocab, name, id)
    {
        const char *at = name;
        while (strncmp(at, TW_BPE_BLANK, strlen(TW_BPE_BLANK)) == 0) {
            at += strlen(TW_BPE_BLANK);
        }
        TW_FAIL_IF(strstr(at, TW_BPE_BLANK), TW_ERR_FORMAT,
                   "%s: the token '%s' has a blank inside, which is not done here", path, name);
    }
    return TW_OK;
}

static tw_status_t read_model(tw_bpe_t *bpe, const char *path, const json_t *model)
{
    json_t *vocab = json_object_get(model, "vocab");
    TW_TRY(bpe_json_check_model(path, model));
    if (!json_is_object(vocab)) {
        return bpe_json_refuse(path, "model.vocab", vocab);
    }
    if (json_is_true(json_object_get(model, "byte_fallback"))) {
        TW_TRY(check_blanks(path, vocab));
        bpe->characters = json_incref(vocab);
    }
    TW_TRY(tw_bpe_read_vocab(bpe, path, vocab));
    if (json_is_true(json_object_get(model, "ignore_merges"))) {
        if (bpe->characters) {
            return bpe_json_refuse(path, "ignore_merges with byte_fallback",
                                   json_object_get(model, "ignore_merges"));
        }
        bpe->words = json_incref(vocab);
    }
    return read_merges(bpe, path, vocab, json_object_get(model, "merges"));
}

/* ---- what happens before it ---------------------------------------------------------------------------- */

static tw_status_t check_byte_level(const char *path, const json_t *step, int uses_regex)
{
    const json_t *regex = json_object_get(step, "use_regex");
    int uses = !regex || json_is_true(regex);
    int has_prefix = !json_is_false(json_object_get(step, "add_prefix_space"));
    return is_type(step, "ByteLevel") && uses == uses_regex && !has_prefix
               ? TW_OK
               : bpe_json_refuse(path, "pre_tokenizer", step);
}

static tw_status_t read_split(tw_bpe_t *bpe, const char *path, const json_t *split)
{
    const char *pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!is_type(split, "Split") || !pattern || !behavior || strcmp(behavior, "Isolated") != 0 ||
        json_is_true(json_object_get(split, "invert"))) {
        return bpe_json_refuse(path, "pre_tokenizer", split);
    }
    bpe->pattern = strdup(pattern);
    return bpe->pattern ? TW_OK : tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory", path);
}

static int is_text(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value && strcmp(value, text) == 0;
}

/** Read where SentencePiece puts blanks; a normalizer (Llama 2) or the pre-tokenizer (Mistral) says it. */
static tw_status_t read_blanks(tw_bpe_t *bpe, const char *path, const json_t *normalizer,
                               const json_t *pre_tokenizer)
{
    const json_t *steps = json_object_get(normalizer, "normalizers"), *first = json_array_get(steps, 0);
    const json_t *second = json_array_get(steps, 1);
    const json_t *pattern = json_object_get(second, "pattern");
    int has_pre_tokenizer = pre_tokenizer && !json_is_null(pre_tokenizer);
    if (json_array_size(steps) == 2 && is_type(first, "Prepend") && is_text(first, "prepend", TW_BPE_BLANK) &&
        is_type(second, "Replace") && is_text(pattern, "String", " ") &&
        is_text(second, "content", TW_BPE_BLANK) && !has_pre_tokenizer) {
        bpe->prefix = TW_BPE_PREFIX_EACH;
        return TW_OK;
    }
    if (normalizer && !json_is_null(normalizer)) {
        return bpe_json_refuse(path, has_pre_tokenizer ? "pre_tokenizer besides a normalizer" : "normalizer",
                               has_pre_tokenizer ? pre_tokenizer : normalizer);
    }
    if (!is_type(pre_tokenizer, "Metaspace") || !is_text(pre_tokenizer, "replacement", TW_BPE_BLANK) ||
        !json_is_false(json_object_get(pre_tokenizer, "split"))) {
        return bpe_json_refuse(path, "pre_tokenizer", pre_tokenizer);
    }
    bpe->prefix_is_spared = 1;
    bpe->prefix = is_text(pre_tokenizer, "prepend_scheme", "first")    ? TW_BPE_PREFIX_FIRST
                  : is_text(pre_tokenizer, "prepend_scheme", "always") ? TW_BPE_PREFIX_EACH
                                                                       : TW_BPE_NO_PREFIX;
    return TW_OK;
}

/** Read the pattern of words: GPT-2's own, or another one that a step to bytes follows. */
static tw_status_t read_pre_tokenizer(tw_bpe_t *bpe, const char *path, const json_t *json)
{
    const json_t *steps = json_object_get(json, "pretokenizers");
    if (is_type(json, "ByteLevel")) {
        return check_byte_level(path, json, 1);
    }
    if (!is_type(json, "Sequence") || json_array_size(steps) != 2) {
        return bpe_json_refuse(path, "pre_tokenizer", json);
    }
    TW_TRY(read_split(bpe, path, json_array_get(steps, 0)));
    return check_byte_level(path, json_array_get(steps, 1), 0);
}

static tw_status_t read_normalizer(tw_bpe_t *bpe, const char *path, const json_t *json)
{
    bpe->is_composed = is_type(json, "NFC");
    return !json || json_is_null(json) || bpe->is_composed ? TW_OK
                                                           : bpe_json_refuse(path, "normalizer", json);
}

static tw_status_t read_added(tw_bpe_t *bpe, const char *path, const json_t *list)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    size_t i;
    const json_t *added;
    json_array_foreach(list, i, added)
    {
        const char *text = json_string_value(json_object_get(added, "content"));
        json_int_t id = json_integer_value(json_object_get(added, "id"));
        int is_plain = text && id >= 0 && id < INT32_MAX;
        for (size_t f = 0; f < sizeof(flags) / sizeof(flags[0]); f++) {
            is_plain = is_plain && !json_is_true(json_object_get(added, flags[f]));
        }
        is_plain = is_plain && !(bpe->characters && json_is_true(json_object_get(added, "normalized")));
        if (!is_plain) {
            return bpe_json_refuse(path, "an added token", added);
        }
        TW_TRY(tw_bpe_add_token(bpe, path, text, (uint32_t)id));
    }
    return TW_OK;
}

tw_status_t tw_bpe_load_json(tw_bpe_t *bpe, const char *path)
{
    FILE *file;
    json_error_t error;
    TW_TRY(tw_input_open(path, &file));
    json_t *json = json_loadf(file, 0, &error);
    fclose(file);
    if (!json) {
        size_t length = strlen(path);
        int is_model = length > 6 && strcmp(path + length - 6, ".model") == 0;
        return tw_fail(
            TW_ERR_FORMAT, "%s:%d:%d: %s%s", path, error.line, error.column, error.text,
            is_model ? "; SentencePiece's own file is not read here: transformers writes tokenizer.json "
                       "beside it (AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER))"
                     : "");
    }
    const json_t *normalizer = json_object_get(json, "normalizer");
    const json_t *pre_tokenizer = json_object_get(json, "pre_tokenizer");
    tw_status_t status = read_model(bpe, path, json_object_get(json, "model"));
    if (status == TW_OK && bpe->characters) {
        status = read_blanks(bpe, path, normalizer, pre_tokenizer);
    } else if (status == TW_OK) {
        status = read_normalizer(bpe, path, normalizer);
        status = status == TW_OK ? read_pre_tokenizer(bpe, path, pre_tokenizer) : status;
    }
    status = status == TW_OK ? read_added(bpe, path, json_object_get(json, "added_tokens")) : status;
    json_decref(json);
    return status;
}
