/* Encodes text into files that are kept. A file's name is a checksum of text and vocabulary. */
#include "trainer/data/encode.h"

#include <inttypes.h>
#include <unistd.h>

#include <xxhash.h>

static tw_status_t add_checksum(const char *path, uint64_t *checksum)
{
    tw_data_map_t map;
    tw_status_t status = tw_data_map(path, &map);
    if (status == TW_OK) {
        *checksum = XXH3_64bits_withSeed(map.at ? map.at : (const unsigned char *)"", map.bytes, *checksum);
        tw_data_unmap(&map);
    }
    return status;
}

tw_status_t tw_data_encoding_checksum(const char *text_path, const tw_data_vocab_t *vocab, uint64_t *checksum)
{
    *checksum = 1; /* version of the encoding */
    tw_status_t status = add_checksum(vocab->vocab_path, checksum);
    if (status == TW_OK && vocab->merges_path) {
        status = add_checksum(vocab->merges_path, checksum);
    }
    return status == TW_OK ? add_checksum(text_path, checksum) : status;
}

size_t tw_data_encoded_bytes(const tw_bpe_t *bpe)
{
    return tw_bpe_vocab_size(bpe) > (size_t)UINT16_MAX + 1 ? sizeof(uint32_t) : sizeof(uint16_t);
}

/** Write tokens of four bytes. Errors stay in the FILE, and show when it is closed. */
static tw_status_t write_wide(void *ctx, const uint32_t *tokens, size_t n)
{
    fwrite(tokens, sizeof(*tokens), n, ctx);
    return TW_OK;
}

static tw_status_t write_narrow(void *ctx, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t word = (uint16_t)tokens[i];
        fwrite(&word, sizeof(word), 1, ctx);
    }
    return TW_OK;
}

static tw_status_t write_file(const char *text_path, const tw_data_vocab_t *vocab, const char *path)
{
    tw_data_map_t text;
    tw_data_writer_t writer;
    TW_TRY(tw_data_map(text_path, &text));
    tw_status_t status = tw_data_writer_open(&writer, path);
    if (status == TW_OK) {
        int is_wide = tw_data_encoded_bytes(vocab->bpe) == sizeof(uint32_t);
        status = tw_bpe_encode(vocab->bpe, text_path, text.at, text.bytes,
                               is_wide ? write_wide : write_narrow, writer.out);
        status = tw_data_writer_close(&writer, status);
    }
    tw_data_unmap(&text);
    return status;
}

tw_status_t tw_data_encode(const char *text_path, const tw_data_vocab_t *vocab, const char *folder,
                           char *path)
{
    uint64_t checksum;
    TW_TRY(tw_data_encoding_checksum(text_path, vocab, &checksum));
    snprintf(path, TW_DATA_PATH_BYTES, "%.*s/bpe-%016" PRIx64 ".bin", TW_DATA_PATH_BYTES - 32, folder,
             checksum);
    return access(path, R_OK) == 0 ? TW_OK : write_file(text_path, vocab, path);
}
