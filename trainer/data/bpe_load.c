/* vocab.json and merges.txt. Both write a byte as a character: a printable one as itself, the others as those from 256 on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "trainer/data/bpe_state.h"

enum { MAX_TOKENS = 65536 };

static tw_status_t bad(const char *path, const char *what, const char *which)
{
    tw_error("%s: %s%s", path, what, which);
    return TW_ERR_FORMAT;
}

static int is_printable(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The character of a byte, as UTF-8 of two bytes at most. */
static void byte_name(unsigned byte, char name[3])
{
    unsigned code = byte;
    if (!is_printable(byte)) {
        code = 256;
        for (unsigned before = 0; before < byte; before++) {
            code += !is_printable(before);
        }
    }
    if (code < 128) {
        name[0] = (char)code;
        name[1] = '\0';
    } else {
        name[0] = (char)(0xc0 | code >> 6);
        name[1] = (char)(0x80 | (code & 0x3f));
        name[2] = '\0';
    }
}

/* A token's id, or -1. */
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
            return bad(path, "no id from 0 to 65535 for token ", token);
        }
        *vocab_size = (size_t)value + 1 > *vocab_size ? (size_t)value + 1 : *vocab_size;
    }
    return TW_OK;
}

static tw_status_t read_bytes(const char *path, const json_t *vocab, tw_bpe_t *bpe)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[3];
        byte_name(byte, name);
        int32_t id = id_of(vocab, name);
        if (id < 0) {
            return bad(path, "no token for the byte that is written ", name);
        }
        bpe->bytes[byte] = (uint16_t)id;
    }
    bpe->end_of_text = id_of(vocab, TW_BPE_END_OF_TEXT);
    return TW_OK;
}

/* ---- merges ---------------------------------------------------------------------------------------------- */

/* One line of merges.txt. */
typedef struct line {
    const char *path;
    size_t number;
    char *text; /* without its end */
} line_t;

static tw_status_t bad_line(const line_t *line, const char *what)
{
    tw_error("%s: line %zu: %s", line->path, line->number, what);
    return TW_ERR_FORMAT;
}

static tw_status_t add_line(const json_t *vocab, const line_t *line, uint32_t rank, tw_merges_t *merges)
{
    char *space = strchr(line->text, ' ');
    if (!space || strchr(space + 1, ' ')) {
        return bad_line(line, "not two tokens");
    }
    *space = '\0';
    int32_t left = id_of(vocab, line->text), right = id_of(vocab, space + 1);
    memmove(space, space + 1, strlen(space + 1) + 1); /* the two as one */
    int32_t merged = id_of(vocab, line->text);
    if (left < 0 || right < 0 || merged < 0) {
        return bad_line(line, "a token that the vocabulary lacks");
    }
    tw_merges_add(merges, (uint16_t)left, (uint16_t)right, rank, (uint16_t)merged);
    return TW_OK;
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

static tw_status_t read_lines(const char *path, FILE *file, const json_t *vocab, tw_merges_t *merges)
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
            status = add_line(vocab, &line, rank++, merges);
        }
    }
    free(line.text);
    return status;
}

static tw_status_t read_merges(const char *path, const json_t *vocab, tw_merges_t *merges)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        int error = errno;
        tw_error("%s: cannot open: %s", path, strerror(error));
        return tw_status_from_errno(error);
    }
    tw_status_t status = tw_merges_init(merges, count_lines(file));
    if (status == TW_OK) {
        status = read_lines(path, file, vocab, merges);
    }
    fclose(file);
    return status;
}

tw_status_t tw_bpe_load(tw_bpe_t *bpe, const char *vocab_path, const char *merges_path)
{
    FILE *file = fopen(vocab_path, "re");
    if (!file) {
        int error = errno;
        tw_error("%s: cannot open: %s", vocab_path, strerror(error));
        return tw_status_from_errno(error);
    }
    json_error_t error;
    json_t *vocab = json_loadf(file, 0, &error);
    fclose(file);
    tw_status_t status =
        json_is_object(vocab) ? TW_OK : bad(vocab_path, "not a JSON object ", vocab ? "" : error.text);
    if (status == TW_OK) {
        status = check_ids(vocab_path, vocab, &bpe->vocab_size);
    }
    if (status == TW_OK) {
        status = read_bytes(vocab_path, vocab, bpe);
    }
    if (status == TW_OK) {
        status = read_merges(merges_path, vocab, &bpe->merges);
    }
    json_decref(vocab);
    return status;
}
