/* Text through Hugging Face's tokenizers: the ids that are held, and what is said where it does not go. */
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "tests/common/process.h"
#include "trainer/data/data.h"

namespace
{

const std::string kFolder = "tests/trainer/data/bpe/"; /* made by reference.py and tokenizer_reference.py */

std::vector<int32_t> read_ids(const std::string &name)
{
    const std::string bytes = process::slurp(kFolder + name);
    const uint16_t *ids = reinterpret_cast<const uint16_t *>(bytes.data());
    return std::vector<int32_t>(ids, ids + bytes.size() / 2);
}

class Encode : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        python_ = process::python_with("tokenizers");
        if (python_.empty()) {
            GTEST_SKIP() << "no Python here has tokenizers: tests/plugin/torch/torch_venv.py makes one";
        }
        set_env("TW_PYTHON", python_);
        folder_ = ::testing::TempDir() + "encode." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
    }
    void TearDown() override
    {
        tw_data_close(data_);
        EXPECT_EQ(0, system(("rm -rf " + folder_ + "/").c_str()));
        tw::Fixture::TearDown();
    }
    std::string write(const std::string &name, const std::string &text)
    {
        std::string path = folder_ + "/" + name;
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }
    /* merges "": vocabulary is a tokenizer.json. */
    tw_status_t open(const std::string &path, const std::string &vocabulary, const std::string &merges = "")
    {
        tw_data_config_t config = {};
        config.path = path.c_str();
        (merges.empty() ? config.tokenizer : config.vocab) = vocabulary.c_str();
        config.merges = merges.c_str();
        config.cache_dir = folder_.c_str();
        config.keeps_vocabulary = 1;
        tw_data_close(data_);
        data_ = nullptr;
        return tw_data_open(&config, &data_);
    }
    tw_status_t open_gpt2(const std::string &path)
    {
        return open(path, kFolder + "vocab.json", kFolder + "merges.txt");
    }
    /* All tokens of what is open. */
    std::vector<int32_t> ids()
    {
        size_t n = tw_data_n_tokens(data_, TW_DATA_TRAIN) - 1;
        tw_data_place_t place = {1, 0, 1, 0, 1, 0, 1, n};
        std::vector<int32_t> tokens(n), targets(n);
        EXPECT_EQ(TW_OK, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens.data(), targets.data()));
        tokens.push_back(targets.back());
        return tokens;
    }
    std::vector<int32_t> ids_of(const std::string &text)
    {
        int32_t *tokens = nullptr;
        size_t n = 0;
        EXPECT_EQ(TW_OK, tw_data_text_tokens(data_, "prompt", text.c_str(), &tokens, &n));
        std::vector<int32_t> all(tokens, tokens + n);
        free(tokens);
        return all;
    }
    std::string text_of(const std::vector<int32_t> &tokens)
    {
        char *out = tw_data_tokens_text(data_, tokens.data(), tokens.size());
        std::string all = out;
        free(out);
        return all;
    }
    void expect_refused(tw_status_t want, const std::string &vocabulary, const std::string &merges,
                        const std::string &said)
    {
        expect_log(said);
        EXPECT_EQ(want, open(kFolder + "more.txt", vocabulary, merges)) << said;
    }
    /* How many files the cache has whose names match a pattern. */
    size_t cached(const std::string &pattern)
    {
        return std::stoul(process::run({"sh", "-c", "ls -d " + folder_ + "/" + pattern + " | wc -l"}).out);
    }

    std::string folder_, python_;
    tw_data_t *data_ = nullptr;
};

TEST_F(Encode, GivesTheIdsOfTransformers)
{
    ASSERT_EQ(TW_OK, open_gpt2(kFolder + "text.txt"));
    EXPECT_EQ(500u, tw_data_vocab_size(data_));
    EXPECT_EQ(read_ids("ids.bin"), ids());
}

/* As Llama 3, Qwen and GPT-2 have theirs: patterns, words before merges, normal form C; and with
 * SentencePiece's blanks, as Llama 2 and Mistral: before each part between added tokens, or before the text
 * alone. */
TEST_F(Encode, GivesTheIdsThatAreHeld)
{
    for (const char *name : {"llama3", "qwen", "gpt2", "llama2", "mistral"}) {
        ASSERT_EQ(TW_OK, open(kFolder + "more.txt", kFolder + name + ".json")) << name;
        EXPECT_EQ(read_ids(name + std::string(".ids")), ids()) << name;
        EXPECT_TRUE(ids_of("").empty()) << name;
        expect_log("prompt: not UTF-8 at byte 5");
        int32_t *tokens;
        size_t n;
        EXPECT_EQ(TW_ERR_FORMAT, tw_data_text_tokens(data_, "prompt", "good \xff rest", &tokens, &n));
    }
}

/* A text that is longer than what is encoded at once has the tokens that it has in one go, however its pieces
 * end; a word may be longer than a piece. */
TEST_F(Encode, LongTextsAreWhatTheyAreInOneGo)
{
    const std::string more = process::slurp(kFolder + "more.txt");
    for (const char *name : {"qwen", "llama2"}) {
        std::string text, word(100000, '7');
        for (int i = 0; i < 150; i++) {
            text +=
                more + (i % 3 ? "\n" : std::string(static_cast<size_t>(i * 7), ' ')) + (i == 70 ? word : "");
        }
        std::string path = write("long.txt", text), tokenizer = kFolder + name + ".json";
        const process::Result whole = process::run(
            {"env", python_, "-c",
             "import array, sys, tokenizers\n"
             "text = open(sys.argv[1], encoding='utf-8', newline='').read()\n"
             "ids = tokenizers.Tokenizer.from_file(sys.argv[2]).encode(text, add_special_tokens=False).ids\n"
             "array.array('H', ids).tofile(open(sys.argv[3], 'wb'))",
             path, tokenizer, folder_ + "/whole.ids"});
        ASSERT_EQ(0, whole.code) << whole.err;
        ASSERT_EQ(TW_OK, open(path, tokenizer)) << name;
        const std::vector<int32_t> got = ids();
        const std::string bytes = process::slurp(folder_ + "/whole.ids");
        ASSERT_EQ(bytes.size() / 2, got.size()) << name;
        const uint16_t *want = reinterpret_cast<const uint16_t *>(bytes.data());
        EXPECT_EQ(std::vector<int32_t>(want, want + got.size()), got) << name;
    }
}

/* Tokens together are the text that they were made of; SentencePiece's have a blank more. */
TEST_F(Encode, TokensAreTheText)
{
    const std::string text = "In the \xe2\x82\xac \n  \u00e4x <|endoftext|> 12\u00bd";
    for (const char *name : {"llama3", "gpt2", "mistral"}) {
        ASSERT_EQ(TW_OK, open(kFolder + "more.txt", kFolder + name + ".json"));
        const std::string all = text_of(ids_of(text));
        EXPECT_EQ(std::string(name) == "mistral" ? " " + text : text, all) << name;
    }
    ASSERT_EQ(TW_OK, open_gpt2(kFolder + "text.txt"));
    EXPECT_EQ(text, text_of(ids_of(text)));
    EXPECT_EQ("\ufffd", text_of({499999}));
    EXPECT_EQ("\ufffd", text_of({-1}));
}

/* Unigrams and pieces of words, which have no merges. */
TEST_F(Encode, OtherKindsOfTokenizers)
{
    const std::string unigram =
        R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                              "split": true},
            "post_processor": null, "decoder": null,
            "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
                      "vocab": [["<unk>", 0], ["▁the", -1], ["▁", -3], ["t", -4], ["h", -4], ["e", -4],
                                ["▁he", -2]]}})";
    ASSERT_EQ(TW_OK, open(write("text.txt", "the he het the"), write("unigram.json", unigram)));
    EXPECT_EQ((std::vector<int32_t>{1, 6, 6, 3, 1}), ids());
    EXPECT_EQ(" the he het the", text_of(ids()));
    const std::string word_piece =
        R"({"version": "1.0", "truncation": {"direction": "Right", "max_length": 3,
                                                      "strategy": "LongestFirst", "stride": 0},
            "padding": null, "added_tokens": [], "normalizer": {"type": "BertNormalizer",
            "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {"type": "WordPiece", "unk_token": "[UNK]",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "the": 1, "##re": 2, "a": 3}}})";
    ASSERT_EQ(TW_OK, open(write("words.txt", "There a the, the"), write("words.json", word_piece)));
    EXPECT_EQ((std::vector<int32_t>{1, 2, 3, 1, 0, 1}), ids());
    EXPECT_EQ(" there a the [UNK] the", text_of(ids()));
}

TEST_F(Encode, WhatIsNoVocabularyIsRefused)
{
    const std::string vocab = process::slurp(kFolder + "vocab.json");
    auto refused = [&](const std::string &text, const std::string &merges, const std::string &said) {
        expect_refused(TW_ERR_FORMAT, write("vocab.json", text), write("merges.txt", merges), said);
    };
    refused("[]", "", "vocab.json");
    refused("{\"a\": 1", "", "vocab.json");
    refused("{\"a\": -1}", "", "vocab.json");
    refused("{\"a\": 1}", "", "vocab.json: no token for the byte that is written !");
    refused("{\"zq\": 1048576," + vocab.substr(1), "",
            "vocab.json: its largest id is 1048576, but must be from 0");
    refused(vocab, "#version: 0.2\nt h\nt\n", "merges.txt");
    refused(vocab, "Q Q\n", "merges.txt");
    expect_refused(TW_ERR_FORMAT, write("tokenizer.json", "{}"), "", "tokenizer.json: ");
    expect_refused(
        TW_ERR_FORMAT, write("tokenizer.model", "\n\x0e"), "",
        "tokenizer.model: SentencePiece's own file is not read here: transformers writes tokenizer.json");
    expect_refused(TW_ERR_NOT_FOUND, folder_ + "/nothing.json", "", "nothing.json: cannot open");
    expect_refused(TW_ERR_NOT_FOUND, kFolder + "vocab.json", folder_ + "/nothing.txt",
                   "nothing.txt: cannot open");
    EXPECT_EQ(0u, cached("*.bin*")); /* no half a file either */
}

/* Encoded once; then nothing needs Python, whose lack is said with what to install. */
TEST_F(Encode, ATextIsEncodedOnce)
{
    ASSERT_EQ(TW_OK, open_gpt2(kFolder + "text.txt"));
    const std::vector<int32_t> first = ids();
    set_env("TW_PYTHON", folder_ + "/no_python");
    ASSERT_EQ(TW_OK, open_gpt2(kFolder + "text.txt"));
    EXPECT_EQ(first, ids());
    EXPECT_EQ(1u, cached("text-*.bin"));
    EXPECT_EQ(1u, cached("vocabulary-*.bin"));
    expect_log(
        "/no_python: No such file or directory; a vocabulary needs Python and its package tokenizers (pip "
        "install tokenizers); TW_PYTHON names another interpreter");
    EXPECT_EQ(TW_ERR_NOT_FOUND, open_gpt2(kFolder + "more.txt"));
    const std::string bare = write("bare", "#!/bin/sh\nexec " + python_ + " -S \"$@\"\n"); /* no packages */
    ASSERT_EQ(0, system(("chmod +x " + bare).c_str()));
    set_env("TW_PYTHON", bare);
    expect_log("vocab.json: what reads it, Python's package tokenizers, is not there (No module named "
               "'tokenizers'): ");
    EXPECT_EQ(TW_ERR_NOT_FOUND, open_gpt2(kFolder + "more.txt"));
    set_env("TW_PYTHON", "false");
    expect_log("false: ended with status 1");
    EXPECT_EQ(TW_ERR_FORMAT, open_gpt2(kFolder + "more.txt"));
    set_env("TW_PYTHON", "true");
    expect_log(".bin: has not been written");
    EXPECT_EQ(TW_ERR_IO, open_gpt2(kFolder + "more.txt"));
    set_env("TW_PYTHON", python_);
    expect_log("bad: no UTF-8 text: byte 0xff at 0");
    EXPECT_EQ(TW_ERR_FORMAT, open_gpt2(write("bad", "\xff")));
    EXPECT_EQ(1u, cached("text-*")); /* no half a file */
    ASSERT_EQ(0, system(("for name in " + folder_ + "/vocabulary-*; do truncate -s -1 $name; done").c_str()));
    expect_log(".bin: is not whole; remove it");
    EXPECT_EQ(TW_ERR_FORMAT, open_gpt2(kFolder + "text.txt"));
}

TEST_F(Encode, NothingIsImportedFromTheUsersFolder)
{
    write("json.py", "raise SystemExit('a file of the user')\n");
    const std::string there = write("there", "#!/bin/sh\ncd " + folder_ + "\nexec " + python_ + " \"$@\"\n");
    ASSERT_EQ(0, system(("chmod +x " + there).c_str()));
    set_env("TW_PYTHON", there);
    const std::string whole = std::filesystem::current_path().string() + "/" + kFolder;
    EXPECT_EQ(TW_OK, open(whole + "text.txt", whole + "vocab.json", whole + "merges.txt"));
}

/* Ranks of a node begin at the same time: who comes later waits, and finds what the first one has made. */
TEST_F(Encode, OneRankEncodesForAll)
{
    const std::string text = write("text.txt", "In the beginning");
    ASSERT_EQ(TW_OK, open_gpt2(text));
    const std::string cached = process::run({"sh", "-c", "printf %s " + folder_ + "/text-*.bin"}).out;
    ASSERT_EQ(0, unlink(cached.c_str()));
    struct stat info;
    const int fd = ::open(text.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(0, fstat(fd, &info));
    ASSERT_EQ(0, flock(fd, LOCK_EX)); /* as if another one were at it */
    std::thread rank([&] { EXPECT_EQ(TW_OK, open_gpt2(text)); });
    const std::string waits = "grep -q -e '-> FLOCK.*:" + std::to_string(info.st_ino) + " ' /proc/locks";
    while (system(waits.c_str()) != 0) {
        usleep(10000);
    }
    const uint16_t tokens[] = {7, 8, 9};
    write(cached.substr(folder_.size() + 1),
          std::string(reinterpret_cast<const char *>(tokens), sizeof(tokens)));
    ASSERT_EQ(0, flock(fd, LOCK_UN));
    rank.join();
    close(fd);
    EXPECT_EQ((std::vector<int32_t>{7, 8, 9}), ids());
}

/* Of a vocabulary too large for two bytes the cache has tokens of four. */
TEST_F(Encode, LargeVocabulariesAreKeptWide)
{
    std::string json = process::slurp(kFolder + "gpt2.json");
    const size_t at = json.find("\"a\": 64");
    ASSERT_NE(std::string::npos, at);
    json.replace(at, 7, "\"a\": 128000");
    const std::string tokenizer = write("tokenizer.json", json), text = write("text", "a<|end|>a");
    for (int time = 0; time < 2; time++) {
        ASSERT_EQ(TW_OK, open(text, tokenizer));
        EXPECT_EQ(128001u, tw_data_vocab_size(data_));
        EXPECT_EQ((std::vector<int32_t>{128000, 401, 128000}), ids());
    }
    tw_data_config_t config = {};
    config.path = text.c_str();
    config.vocab = config.merges = config.tokenizer = tokenizer.c_str();
    tw_data_t *data;
    expect_log("tokenizer.json has all of a vocabulary");
    EXPECT_EQ(TW_ERR_INVALID, tw_data_open(&config, &data));
}

/* What is no character is said so: half of one, zeros. Without a vocabulary there is no Python either. */
TEST_F(Encode, BytesAndNumbersAreWrittenAsText)
{
    set_env("TW_PYTHON", "false");
    ASSERT_EQ(TW_OK, open(write("text", "abc \u00e4"), ""));
    EXPECT_TRUE(tw_data_has_text(data_));
    EXPECT_EQ("a\n\u00e4\ufffd\ufffd\ufffdb", text_of({'a', '\n', 0xc3, 0xa4, 0xc3, 0, 300, 'b'}));
    EXPECT_EQ("\ufffd\ufffd\ufffd", text_of({0xed, 0xa0, 0x80})); /* half of a pair of UTF-16 */
    EXPECT_EQ("", text_of({}));
    EXPECT_EQ((std::vector<int32_t>{'a', 0xc3, 0xa4}), ids_of("a\u00e4"));
    ASSERT_EQ(TW_OK, open(write("bare.bin", std::string("\1\0\2\0", 4)), ""));
    EXPECT_FALSE(tw_data_has_text(data_));
    EXPECT_EQ("1 -2 70000", text_of({1, -2, 70000}));
}

} // namespace
