/* Finds the text that each token stands for, from its name in the vocabulary. Names write a byte as a
 * character: a printable one as itself, the others as characters from 256 on. SentencePiece's names write
 * characters as themselves, except blanks, and bytes as "<0x0A>". */
#include <stdlib.h>
#include <string.h>

#include "trainer/data/bpe_state.h"

static int is_printable(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

void tw_bpe_byte_name(unsigned byte, char name[3])
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

/* Characters that stand for bytes are below this one. */
#define MOST_CODES 512

typedef struct table {
    int is_characters;
    short byte_of[MOST_CODES]; /* -1: none */
} table_t;

static unsigned code_of(const unsigned char *name)
{
    return name[0] < 0x80 ? name[0] : (name[0] & 0x1fu) << 6 | (name[1] & 0x3fu);
}

static void make_table(table_t *table)
{
    memset(table->byte_of, 0xff, sizeof(table->byte_of));
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[3];
        tw_bpe_byte_name(byte, name);
        table->byte_of[code_of((const unsigned char *)name)] = (short)byte;
    }
}

/** Reads characters as SentencePiece writes them. */
static size_t read_characters(const char *name, unsigned char *out)
{
    unsigned byte;
    char again[8];
    size_t n = 0, blank = strlen(TW_BPE_BLANK);
    if (sscanf(name, "<0x%2X>", &byte) == 1 && snprintf(again, sizeof(again), TW_BPE_BYTE_NAME, byte) > 0 &&
        strcmp(again, name) == 0) {
        if (out) {
            *out = (unsigned char)byte;
        }
        return 1;
    }
    while (*name) {
        int is_blank = strncmp(name, TW_BPE_BLANK, blank) == 0;
        if (out) {
            out[n] = is_blank ? ' ' : (unsigned char)*name;
        }
        name += is_blank ? blank : 1;
        n++;
    }
    return n;
}

/** Write a name's bytes to `out` unless it is NULL; other characters are copied. Return how many bytes. */
static size_t read_name(const table_t *table, const char *name, unsigned char *out)
{
    const unsigned char *at = (const unsigned char *)name;
    size_t n = 0;
    if (table->is_characters) {
        return read_characters(name, out);
    }
    while (*at) {
        size_t length = *at >= 0xc0 && *at < 0xe0 && at[1] ? 2 : 1;
        unsigned code = code_of(at);
        int is_short = *at < 0x80 || length == 2;
        if (is_short && code < MOST_CODES && table->byte_of[code] >= 0) {
            if (out) {
                out[n] = (unsigned char)table->byte_of[code];
            }
            n++;
        } else {
            if (out) {
                memcpy(out + n, at, length);
            }
            n += length;
        }
        at += length;
    }
    return n;
}

/** Find where each token's text ends. Of two names with one id the later one counts. */
static size_t find_ends(tw_bpe_texts_t *texts, const table_t *table, json_t *vocab)
{
    const char *name;
    json_t *id;
    json_object_foreach(vocab, name, id)
    {
        texts->ends[json_integer_value(id)] = read_name(table, name, NULL);
    }
    size_t sum = 0;
    for (size_t t = 0; t < texts->n; t++) {
        sum += texts->ends[t];
        texts->ends[t] = sum;
    }
    return sum;
}

static size_t begin_of(const tw_bpe_texts_t *texts, size_t token)
{
    return token > 0 ? texts->ends[token - 1] : 0;
}

static void bpe_texts_fill(tw_bpe_texts_t *texts, const table_t *table, json_t *vocab)
{
    const char *name;
    json_t *id;
    json_object_foreach(vocab, name, id)
    {
        size_t token = (size_t)json_integer_value(id), begin = begin_of(texts, token);
        if (read_name(table, name, NULL) == texts->ends[token] - begin) {
            read_name(table, name, texts->bytes + begin);
        }
    }
}

tw_status_t tw_bpe_texts_init(tw_bpe_texts_t *texts, const char *path, json_t *vocab, size_t vocab_size,
                              int is_characters)
{
    table_t table = {.is_characters = is_characters};
    make_table(&table);
    texts->n = vocab_size;
    texts->ends = calloc(vocab_size + 1, sizeof(*texts->ends));
    size_t n_bytes = texts->ends ? find_ends(texts, &table, vocab) : 0;
    texts->bytes = texts->ends ? malloc(n_bytes + 1) : NULL;
    TW_FAIL_IF(!texts->bytes, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    bpe_texts_fill(texts, &table, vocab);
    return TW_OK;
}

void tw_bpe_texts_cleanup(tw_bpe_texts_t *texts)
{
    free(texts->ends);
    free(texts->bytes);
    *texts = (tw_bpe_texts_t){0};
}

const unsigned char *tw_bpe_text(const tw_bpe_t *bpe, uint32_t token, size_t *n_bytes)
{
    const tw_bpe_texts_t *texts = &bpe->texts;
    for (size_t i = 0; i < bpe->n_added; i++) {
        if (bpe->added[i].token == token) {
            *n_bytes = bpe->added[i].bytes;
            return (const unsigned char *)bpe->added[i].text;
        }
    }
    *n_bytes = token < texts->n ? texts->ends[token] - begin_of(texts, token) : 0;
    return texts->bytes + (token < texts->n ? begin_of(texts, token) : 0);
}
