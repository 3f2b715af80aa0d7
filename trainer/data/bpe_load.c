/* Reads vocab.json and merges.txt. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "trainer/data/bpe_state.h"
#include "trainer/input.h"

#define MAX_TOKENS (1 << 20)
#define END_OF_TEXT "<|endoftext|>"

static tw_status_t bad(const char *path, const char *what, const char *which)
{
    return tw_fail(TW_ERR_FORMAT, "%s: %s%s", path, what, which);
}

/** Returns a token's id, or -1. */
static int32_t id_of(const json_t *vocab, const char *token)
{
    const json_t *id = json_object_get(vocab, token);
    return json_is_integer(id) ? (int32_t)json_integer_value(id) : -1;
}

static tw_status_t check_ids(const char *path, json_t *vocab, size_t *vocab_size)
{
    const char *token;
    json_t *id;
    json_object_foreach(vocab, token, id)
    {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= MAX_TOKENS) {
            return bad(path, "no id from 0 to 1048575 for token ", token);
        }
        *vocab_size = (size_t)value + 1 > *vocab_size ? (size_t)value + 1 : *vocab_size;
    }
    return TW_OK;
}

static tw_status_t read_bytes(const char *path, const json_t *vocab, tw_bpe_t *bpe)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        if (bpe->characters) {
            snprintf(name, sizeof(name), TW_BPE_BYTE_NAME, byte);
        } else {
            tw_bpe_byte_name(byte, name);
        }
        int32_t id = id_of(vocab, name);
        if (id < 0) {
            return bad(path, "no token for the byte that is written ", name);
        }
        bpe->bytes[byte] = (uint32_t)id;
    }
    return TW_OK;
}

tw_status_t tw_bpe_read_vocab(tw_bpe_t *bpe, const char *path, json_t *vocab)
{
    TW_TRY(check_ids(path, vocab, &bpe->vocab_size));
    TW_TRY(read_bytes(path, vocab, bpe));
    return tw_bpe_texts_init(&bpe->texts, path, vocab, bpe->vocab_size, bpe->characters != NULL);
}

tw_status_t tw_bpe_add_token(tw_bpe_t *bpe, const char *path, const char *text, uint32_t token)
{
    if (!*text || token >= MAX_TOKENS) {
        return bad(path, "an added token without a text, or of no id from 0 to 1048575: ", text);
    }
    tw_bpe_added_t *longer = realloc(bpe->added, (bpe->n_added + 1) * sizeof(*longer));
    char *copy = strdup(text);
    bpe->added = longer ? longer : bpe->added;
    if (!longer || !copy) {
        free(copy);
        return tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    bpe->added[bpe->n_added++] = (tw_bpe_added_t){.text = copy, .bytes = strlen(text), .token = token};
    bpe->vocab_size = token + 1 > bpe->vocab_size ? token + 1 : bpe->vocab_size;
    return TW_OK;
}

/* ---- merges -------------------------------------------------------------------------------------------- */

/* A line of merges.txt that is read. */
typedef struct line {
    const char *path;
    size_t number;
    char *text; /* the line without its end */
} line_t;

static tw_status_t bad_line(const line_t *line, const char *what)
{
    return tw_fail(TW_ERR_FORMAT, "%s: line %zu: %s", line->path, line->number, what);
}

tw_status_t tw_bpe_add_merge(tw_bpe_t *bpe, const json_t *vocab, const char *left, const char *right,
                             uint32_t rank)
{
    char *both = malloc(strlen(left) + strlen(right) + 1);
    TW_FAIL_IF(!both, TW_ERR_NO_MEMORY, "data: out of memory for a merge");
    stpcpy(stpcpy(both, left), right);
    int32_t left_id = id_of(vocab, left), right_id = id_of(vocab, right), merged = id_of(vocab, both);
    free(both);
    if (left_id < 0 || right_id < 0 || merged < 0) {
        return TW_ERR_FORMAT;
    }
    tw_merges_add(&bpe->merges, (uint32_t)left_id, (uint32_t)right_id, rank, (uint32_t)merged);
    return TW_OK;
}

static tw_status_t bpe_add_line(const json_t *vocab, const line_t *line, uint32_t rank, tw_bpe_t *bpe)
{
    char *space = strchr(line->text, ' ');
    if (!space || strchr(space + 1, ' ')) {
        return bad_line(line, "not two tokens");
    }
    *space = '\0';
    tw_status_t status = tw_bpe_add_merge(bpe, vocab, line->text, space + 1, rank);
    return status == TW_ERR_FORMAT ? bad_line(line, "a token that the vocabulary lacks") : status;
}

static size_t count_lines(FILE *file)
{
    size_t n = 1;
    int c;
    while ((c = getc(file)) != EOF) {
        n += c == '\n';
    }
    rewind(file);
    return n;
}

static tw_status_t read_lines(const char *path, FILE *file, const json_t *vocab, tw_bpe_t *bpe)
{
    line_t line = {.path = path};
    size_t room = 0;
    ssize_t length;
    uint32_t rank = 0;
    tw_status_t status = TW_OK;
    while (status == TW_OK && (length = getline(&line.text, &room, file)) >= 0) {
        line.number++;
        while (length > 0 && (line.text[length - 1] == '\n' || line.text[length - 1] == '\r')) {
            line.text[--length] = '\0';
        }
        int is_head = line.number == 1 && strncmp(line.text, "#version", 8) == 0;
        if (length > 0 && !is_head) {
            status = bpe_add_line(vocab, &line, rank++, bpe);
        }
    }
    free(line.text);
    return status;
}

static tw_status_t read_merges(const char *path, const json_t *vocab, tw_bpe_t *bpe)
{
    FILE *file;
    TW_TRY(tw_input_open(path, &file));
    tw_status_t status = tw_merges_init(&bpe->merges, count_lines(file));
    status = status == TW_OK ? read_lines(path, file, vocab, bpe) : status;
    fclose(file);
    return status;
}

tw_status_t tw_bpe_load(tw_bpe_t *bpe, const char *vocab_path, const char *merges_path)
{
    FILE *file;
    json_error_t error;
    TW_TRY(tw_input_open(vocab_path, &file));
    json_t *vocab = json_loadf(file, 0, &error);
    fclose(file);
    tw_status_t status =
        json_is_object(vocab) ? TW_OK : bad(vocab_path, "not a JSON object ", vocab ? "" : error.text);
    status = status == TW_OK ? tw_bpe_read_vocab(bpe, vocab_path, vocab) : status;
    status = status == TW_OK ? read_merges(merges_path, vocab, bpe) : status;
    int32_t end_of_text = status == TW_OK ? id_of(vocab, END_OF_TEXT) : -1;
    if (end_of_text >= 0) {
        status = tw_bpe_add_token(bpe, vocab_path, END_OF_TEXT, (uint32_t)end_of_text);
    }
    json_decref(vocab);
    return status;
}
