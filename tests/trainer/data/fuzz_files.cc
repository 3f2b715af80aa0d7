/* Any bytes as merges.txt ('m' and what follows), vocab.json ('v'), tokenizer.json ('t') or a file of tokens
 * (anything else): what is accepted is used. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "trainer/data/bpe.h"
#include "trainer/data/data.h"

namespace
{

const char *const kVocab = "tests/trainer/data/bpe/vocab.json";
const char *const kMerges = "tests/trainer/data/bpe/merges.txt";

std::string path;
bool is_named;

void look_for_path(void *, tw_log_level_t, const char *, int, const char *text)
{
    /* a vocabulary that lacks a token is an error of the merges that need it */
    is_named |= strstr(text, path.c_str()) || strstr(text, kMerges);
}

void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        abort();
    }
}

/* Ids are below the size that the vocabulary says. */
tw_status_t look_at(void *ctx, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        check(tokens[i] < *static_cast<const size_t *>(ctx), "a token is in the vocabulary");
    }
    return TW_OK;
}

void read_vocabulary(const char *vocab, const char *merges)
{
    static const char text[] =
        "And the earth was without form, <|endoftext|> and void;\n\n it's 1st  \xc3\xa4";
    tw_bpe_t *bpe = nullptr;
    if (tw_bpe_create(vocab, merges, &bpe) != TW_OK) {
        check(is_named, "an error names the file");
        return;
    }
    size_t vocab_size = tw_bpe_vocab_size(bpe);
    check(tw_bpe_encode(bpe, "text", reinterpret_cast<const unsigned char *>(text), strlen(text), look_at,
                        &vocab_size) == TW_OK,
          "text is encoded");
    tw_bpe_destroy(bpe);
}

/* Its pattern may find no word, or too long: an error that names the text. */
void read_tokenizer()
{
    static const char text[] = "And the earth was <|endoftext|> and void;\n\n it's 1st  \xc3\xa4 e\xcc\x81";
    tw_bpe_t *bpe = nullptr;
    if (tw_bpe_create_json(path.c_str(), &bpe) != TW_OK) {
        check(is_named, "an error names the file");
        return;
    }
    size_t vocab_size = tw_bpe_vocab_size(bpe);
    tw_status_t status = tw_bpe_encode(bpe, path.c_str(), reinterpret_cast<const unsigned char *>(text),
                                       strlen(text), look_at, &vocab_size);
    check(status == TW_OK || (status == TW_ERR_FORMAT && is_named), "text is encoded, or an error names it");
    tw_bpe_destroy(bpe);
}

void read_tokens()
{
    tw_data_t *data = nullptr;
    tw_data_config_t config = {};
    config.path = path.c_str();
    config.val_share = 0.3;
    if (tw_data_open(&config, &data) != TW_OK) {
        check(is_named, "an error names the file");
        return;
    }
    for (tw_data_split_t split : {TW_DATA_TRAIN, TW_DATA_VAL}) {
        tw_data_place_t place = {1, 2, 2, 1, 2, 1, 3, 5};
        std::vector<int32_t> tokens(15), targets(15);
        bool has_some = tw_data_n_sequences(data, split, 5) > 0;
        check((tw_data_batch(data, split, &place, tokens.data(), targets.data()) == TW_OK) == has_some,
              "a batch is there if a sequence is");
        for (int32_t token : tokens) {
            check(token >= 0 && (!has_some || (size_t)token < tw_data_vocab_size(data)),
                  "a token is in the vocabulary");
        }
    }
    tw_data_close(data);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (path.empty()) {
        const char *folder = getenv("TEST_TMPDIR");
        path = std::string(folder ? folder : "/tmp") + "/data." + std::to_string(getpid()) + ".bin";
        tw_log_set_sink(look_for_path, nullptr);
    }
    bool is_merges = size > 0 && data[0] == 'm', is_vocab = size > 0 && data[0] == 'v';
    bool is_tokenizer = size > 0 && data[0] == 't';
    size_t skip = is_merges || is_vocab || is_tokenizer ? 1 : 0;
    FILE *file = fopen(path.c_str(), "w");
    check(file && fwrite(data + skip, 1, size - skip, file) == size - skip && fclose(file) == 0,
          "the file is written");
    is_named = false;
    if (is_merges || is_vocab) {
        read_vocabulary(is_vocab ? path.c_str() : kVocab, is_merges ? path.c_str() : kMerges);
    } else if (is_tokenizer) {
        read_tokenizer();
    } else {
        read_tokens();
    }
    unlink(path.c_str());
    return 0;
}
