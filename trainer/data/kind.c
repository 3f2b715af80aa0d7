/* Recognizes the kind of a file by its first bytes, its name, and bytes that its kind cannot have. */
#include "trainer/data/kind.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

#define TO_TEXT "write its texts into a file of text, or their tokens into a .bin"
#define UNPACK "unpack it first"

static const struct {
    const char *magic, *what, *to_do;
    size_t n_magic;
} formats[] = {
    {"PAR1", "Parquet", TO_TEXT, 4},
    {"ARROW1", "Arrow", TO_TEXT, 6},
    {"\x89HDF", "HDF5", TO_TEXT, 4},
    {"SQLite format 3", "an SQLite database", TO_TEXT, 15},
    {"%PDF-", "PDF", TO_TEXT, 5},
    {"\x1f\x8b", "packed by gzip", UNPACK, 2},
    {"\x28\xb5\x2f\xfd", "packed by zstd", UNPACK, 4},
    {"\xfd"
     "7zXZ",
     "packed by xz", UNPACK, 5},
    {"BZh", "packed by bzip2", UNPACK, 3},
    {"PK\x03\x04", "a zip archive (.npz and .pt are, too)", UNPACK, 4},
    {"\x93NUMPY", "NumPy's .npy, a header and numbers",
     "write bare tokens: numpy.load(FILE).astype('<u2').tofile('tokens.bin'), or '<u4' with "
     "thinwire.token_bytes=4",
     6},
    {"\x7f"
     "ELF",
     "a program", "give text, or with thinwire.token_bytes=1 any bytes", 4},
};

#define FEWEST_ZEROS 16 /* a text has fewer zeros than one in this many bytes; some texts have a few */

static tw_status_t kind_refuse(const char *path, const char *what, const char *to_do)
{
    return tw_fail(TW_ERR_FORMAT, "%s: this is %s: %s", path, what, to_do);
}

static tw_status_t check_format(const tw_data_map_t *map)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (map->bytes >= formats[i].n_magic && memcmp(map->at, formats[i].magic, formats[i].n_magic) == 0) {
            return kind_refuse(map->path, formats[i].what, formats[i].to_do);
        }
    }
    return TW_OK;
}

/** Return 1 if a file is JSON, by its name, or because its first line is an object. */
static int is_json(const tw_data_map_t *map)
{
    static const char *const ends[] = {".json", ".jsonl", ".ndjson"};
    enum { MOST_BYTES = 1 << 20 };
    size_t length = strlen(map->path), most = map->bytes < MOST_BYTES ? map->bytes : MOST_BYTES;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        size_t n = strlen(ends[i]);
        if (length > n && strcasecmp(map->path + length - n, ends[i]) == 0) {
            return 1;
        }
    }
    const char *end = memchr(map->at, '\n', most);
    json_t *json = map->at[0] == '{' && end
                       ? json_loadb((const char *)map->at, (size_t)(end - (const char *)map->at), 0, NULL)
                       : NULL;
    json_decref(json);
    return json != NULL;
}

size_t tw_data_character_bytes(const unsigned char *at, size_t left)
{
    /* Source: Unicode, table 3-7. */
    size_t n = at[0] < 0x80   ? 1
               : at[0] < 0xc2 ? 0
               : at[0] < 0xe0 ? 2
               : at[0] < 0xf0 ? 3
               : at[0] < 0xf5 ? 4
                              : 0;
    if (n == 0 || n > left) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    int is_wrong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
                   (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f);
    return is_wrong ? 0 : n;
}

/** Return 1 if these eight bytes are ASCII, and none is zero. */
static int kind_is_plain(const unsigned char *at)
{
    const uint64_t high = 0x8080808080808080U, ones = 0x0101010101010101U;
    uint64_t word;
    memcpy(&word, at, sizeof(word));
    return ((word | (word - ones)) & high) == 0;
}

/** Return the place of the first byte that is not UTF-8 text, or map->bytes. Count the zeros before it. */
static size_t find_no_text(const tw_data_map_t *map, size_t *n_zeros)
{
    enum { REST_BYTES = 1 << 24 };
    size_t at = 0, rest = REST_BYTES;
    while (at < map->bytes) {
        size_t n = 8;
        if (map->bytes - at < n || !kind_is_plain(map->at + at)) {
            n = tw_data_character_bytes(map->at + at, map->bytes - at);
        }
        if (n == 0) {
            return at;
        }
        *n_zeros += map->at[at] == 0;
        at += n;
        if (at >= rest) {
            tw_data_rest(map);
            rest += REST_BYTES;
        }
    }
    return at;
}

tw_status_t tw_data_check_text(const tw_data_map_t *map)
{
    if (map->bytes == 0) {
        return TW_OK;
    }
    TW_TRY(check_format(map));
    if (is_json(map)) {
        return kind_refuse(map->path, "JSON", TO_TEXT ", or examples a line into a .jsonl");
    }
    size_t n_zeros = 0, at = find_no_text(map, &n_zeros);
    tw_data_rest(map);
    TW_FAIL_IF(at < map->bytes, TW_ERR_FORMAT,
               "%s: no UTF-8 text: byte 0x%02x at %zu. Convert it (iconv -t UTF-8); a file of tokens is "
               "called NAME.bin; with thinwire.token_bytes=1 any bytes are tokens",
               map->path, map->at[at], at);
    TW_FAIL_IF(n_zeros > map->bytes / FEWEST_ZEROS, TW_ERR_FORMAT,
               "%s: this is no text: %zu of %zu bytes are 0. A file of tokens is called NAME.bin; with "
               "thinwire.token_bytes=1 any bytes are tokens",
               map->path, n_zeros, map->bytes);
    return TW_OK;
}

/** Guess the bytes of a token from the file's first 16-bit words. If tokens have 32 bits, every second word
 *  is almost 0. If they have 64 bits, three of four words are 0. */
static size_t wider_bytes(const tw_data_tokens_t *tokens)
{
    enum { FEW = 8, LEAST = 64, MOST = 65536 };
    uint64_t n = tokens->n < MOST ? tokens->n : MOST;
    unsigned first = 0, second = 0, rest = 0; /* largest word in each place */
    for (uint64_t i = 0; i + 3 < n; i += 4) {
        const uint16_t *at = tokens->words + i;
        first = at[0] > first ? at[0] : first;
        first = at[2] > first ? at[2] : first;
        second = at[1] > second ? at[1] : second;
        second = at[3] > second ? at[3] : second;
        rest = at[2] > rest ? at[2] : rest;
    }
    if (n < LEAST || second >= FEW || first < FEW) {
        return sizeof(uint16_t);
    }
    return second == 0 && rest == 0 ? sizeof(uint64_t) : sizeof(uint32_t);
}

tw_status_t tw_data_check_tokens(const tw_data_tokens_t *tokens, int is_bare)
{
    if (tokens->map.bytes == 0) {
        return TW_OK;
    }
    TW_TRY(check_format(&tokens->map));
    size_t bytes = is_bare && tokens->words ? wider_bytes(tokens) : sizeof(uint16_t);
    if (bytes == sizeof(uint32_t)) {
        return kind_refuse(tokens->map.path,
                           "a file of uint32 tokens, as it seems: every second uint16 is all but 0",
                           "set thinwire.token_bytes=4 (or 2, if they are uint16)");
    }
    if (bytes == sizeof(uint64_t)) {
        return kind_refuse(
            tokens->map.path, "a file of 64-bit tokens, as it seems: three of four uint16 are 0",
            "write them as uint16 or uint32 (or set thinwire.token_bytes=2, if they are uint16)");
    }
    return TW_OK;
}
