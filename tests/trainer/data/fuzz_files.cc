/* Any bytes as a file of tokens: what is accepted is used. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "trainer/data/data.h"

namespace
{

std::string path;
bool is_named;

void look_for_path(void *, tw_log_level_t, const char *, int, const char *text)
{
    is_named |= strstr(text, path.c_str()) != nullptr;
}

void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        abort();
    }
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
    FILE *file = fopen(path.c_str(), "w");
    check(file && fwrite(data, 1, size, file) == size && fclose(file) == 0, "the file is written");
    is_named = false;
    read_tokens();
    unlink(path.c_str());
    return 0;
}
