/* Any text through a vocabulary: either it is not UTF-8, or its tokens, written out, are the text again. */
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <jansson.h>

#include "core/core.h"
#include "trainer/data/bpe.h"

namespace
{

const char *const kVocab = "tests/trainer/data/bpe/vocab.json";
const char *const kMerges = "tests/trainer/data/bpe/merges.txt";

/* What each token stands for: vocab.json writes bytes as characters, those that do not print from U+0100
 * on. */
std::vector<std::string> read_tokens()
{
    std::vector<unsigned> byte_of(512, 0);
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        byte_of[prints ? byte : next++] = byte;
    }
    std::vector<std::string> tokens(65536);
    json_t *vocab = json_load_file(kVocab, 0, nullptr);
    const char *name;
    json_t *id;
    json_object_foreach(vocab, name, id)
    {
        std::string bytes;
        for (const char *c = name; *c; c++) {
            unsigned first = static_cast<unsigned char>(*c);
            unsigned code =
                first < 128 ? first : (first & 0x1f) << 6 | (static_cast<unsigned char>(*++c) & 0x3f);
            bytes += static_cast<char>(byte_of[code]);
        }
        tokens[static_cast<size_t>(json_integer_value(id))] = bytes;
    }
    json_decref(vocab);
    return tokens;
}

void drop(void *, tw_log_level_t, const char *, int, const char *)
{
}

struct Vocabulary {
    Vocabulary() : tokens(read_tokens())
    {
        tw_log_set_sink(drop, nullptr);
        if (tw_bpe_create(kVocab, kMerges, &bpe) != TW_OK) {
            abort();
        }
    }
    ~Vocabulary()
    {
        tw_bpe_destroy(bpe);
    }
    std::vector<std::string> tokens;
    tw_bpe_t *bpe = nullptr;
};

struct Written {
    const Vocabulary *vocabulary;
    std::string text;
};

tw_status_t write_out(void *ctx, const uint32_t *tokens, size_t n)
{
    auto *written = static_cast<Written *>(ctx);
    for (size_t i = 0; i < n; i++) {
        written->text += written->vocabulary->tokens[tokens[i]];
    }
    return TW_OK;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const Vocabulary vocabulary;
    Written written = {&vocabulary, ""};
    tw_status_t status = tw_bpe_encode(vocabulary.bpe, "text", data, size, write_out, &written);
    if (status == TW_OK ? written.text != std::string(data, data + size) : status != TW_ERR_FORMAT) {
        abort();
    }
    return 0;
}
