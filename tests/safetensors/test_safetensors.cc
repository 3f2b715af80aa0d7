#include "safetensors/safetensors.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

class SafetensorsTest : public tw::Fixture
{
  protected:
    void TearDown() override
    {
        tw_safetensors_close(file_);
        tw::Fixture::TearDown();
    }

    static std::string file_bytes(const std::string &header, size_t data_bytes)
    {
        uint64_t length = header.size();
        std::string bytes(reinterpret_cast<const char *>(&length), sizeof(length));
        bytes += header;
        for (size_t i = 0; i < data_bytes; i++) {
            bytes += static_cast<char>(i);
        }
        return bytes;
    }

    /* The bytes get a heap block of exactly their size, for the address sanitizer to guard. */
    tw_status_t parse(const std::string &bytes)
    {
        held_.assign(bytes.begin(), bytes.end());
        held_.shrink_to_fit();
        tw_safetensors_close(file_);
        file_ = nullptr;
        return tw_safetensors_parse(held_.data(), held_.size(), "x.safetensors", &file_);
    }
    tw_status_t parse(const std::string &header, size_t data_bytes)
    {
        return parse(file_bytes(header, data_bytes));
    }
    /* Refused, in one line that names the file and says what is wrong. */
    void expect_refused(tw_status_t want, const std::string &header, size_t data_bytes,
                        const std::string &said)
    {
        size_t before = log_count(said);
        expect_log(said);
        EXPECT_EQ(want, parse(header, data_bytes)) << header;
        EXPECT_EQ(before + 1, log_count(said)) << header;
        EXPECT_EQ(log_count(""), log_count("x.safetensors: ")) << header;
        EXPECT_EQ(nullptr, file_);
    }

    std::vector<char> held_;
    tw_safetensors_t *file_ = nullptr;
};

constexpr const char *kTwoTensors = R"({"__metadata__": {"format": "pt"},
    "second": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},
    "first": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}} )";

TEST_F(SafetensorsTest, ListsTensorsInFileOrder)
{
    ASSERT_EQ(TW_OK, parse(kTwoTensors, 20));
    ASSERT_EQ(2u, tw_safetensors_count(file_));
    const tw_safetensors_tensor_t *first = tw_safetensors_get(file_, 0);
    EXPECT_STREQ("first", first->name);
    EXPECT_STREQ("BF16", first->dtype);
    EXPECT_EQ(TW_TYPE_BF16, first->type);
    ASSERT_EQ(2, first->n_dims);
    EXPECT_EQ(2u, first->dims[0]);
    EXPECT_EQ(3u, first->dims[1]);
    EXPECT_EQ(6u, first->n_elems);
    EXPECT_EQ(12u, first->bytes);
    EXPECT_EQ(11, static_cast<const unsigned char *>(first->data)[11]);
    const tw_safetensors_tensor_t *second = tw_safetensors_find(file_, "second");
    EXPECT_EQ(second, tw_safetensors_get(file_, 1));
    EXPECT_EQ(TW_TYPE_FP32, second->type);
    EXPECT_EQ(12, static_cast<const unsigned char *>(second->data)[0]);
    EXPECT_EQ(nullptr, tw_safetensors_find(file_, "third"));
    EXPECT_EQ(nullptr, tw_safetensors_get(file_, 2));
}

TEST_F(SafetensorsTest, AcceptsNoTensorsScalarsAndEmptyOnes)
{
    ASSERT_EQ(TW_OK, parse("{}", 0));
    EXPECT_EQ(0u, tw_safetensors_count(file_));
    ASSERT_EQ(TW_OK, parse(R"({"s": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]},
                               "e": {"dtype": "F32", "shape": [3, 0], "data_offsets": [0, 0]},
                               "f": {"dtype": "I64", "shape": [0], "data_offsets": [2, 2]}})",
                           2));
    ASSERT_EQ(3u, tw_safetensors_count(file_));
    EXPECT_STREQ("e", tw_safetensors_get(file_, 0)->name);
    EXPECT_EQ(1u, tw_safetensors_find(file_, "s")->n_elems);
    EXPECT_EQ(TW_TYPE_FP16, tw_safetensors_find(file_, "s")->type);
    EXPECT_EQ(TW_TYPE_BYTE, tw_safetensors_find(file_, "f")->type);
}

/* Of F4 two numbers share a byte. */
TEST_F(SafetensorsTest, TypesOfEightBitsAndFewer)
{
    for (const char *dtype : {"F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4"}) {
        const bool is_half = std::string(dtype) == "F4";
        const std::string shape = is_half ? "[3, 16]" : "[3, 8]";
        const std::string header = std::string(R"({"a": {"dtype": ")") + dtype + R"(", "shape": )" + shape +
                                   R"(, "data_offsets": [0, 24]}})";
        ASSERT_EQ(TW_OK, parse(header.c_str(), 24)) << dtype;
        const tw_safetensors_tensor_t *tensor = tw_safetensors_get(file_, 0);
        EXPECT_STREQ(dtype, tensor->dtype);
        EXPECT_EQ(TW_TYPE_BYTE, tensor->type);
        EXPECT_EQ(24u, tensor->bytes);
        EXPECT_EQ(is_half ? 48u : 24u, tensor->n_elems);
    }
}

TEST_F(SafetensorsTest, RefusesEveryTruncation)
{
    const std::string whole = file_bytes(kTwoTensors, 20);
    expect_log("too few for a safetensors file");
    expect_log("the header's");
    expect_log("lie outside");
    for (size_t n = 0; n < whole.size(); n++) {
        EXPECT_EQ(TW_ERR_TRUNCATED, parse(whole.substr(0, n))) << n;
    }
    EXPECT_EQ(TW_OK, parse(whole));
}

TEST_F(SafetensorsTest, RefusesHeadersThatAreNoHeaders)
{
    expect_refused(TW_ERR_FORMAT, "", 0, "not a JSON object");
    expect_refused(TW_ERR_FORMAT, "[]", 0, "not a JSON object");
    expect_refused(TW_ERR_FORMAT, "{", 0, "not a JSON object");
    expect_refused(TW_ERR_FORMAT, R"({"t": 1})", 0, "'t'");
    expect_log("not a safetensors file");
    std::string huge(8, '\xff');
    EXPECT_EQ(TW_ERR_FORMAT, parse(huge));
    uint64_t beyond = 100000001;
    EXPECT_EQ(TW_ERR_FORMAT, parse(std::string(reinterpret_cast<char *>(&beyond), 8)));
}

TEST_F(SafetensorsTest, RefusesBadTensorsAndNamesThem)
{
    struct {
        tw_status_t status;
        const char *entry, *said;
    } cases[] = {
        {TW_ERR_FORMAT, R"({"shape": [2], "data_offsets": [0, 8]})", "dtype"},
        {TW_ERR_FORMAT, R"({"dtype": "F33", "shape": [2], "data_offsets": [0, 8]})", "'F33'"},
        {TW_ERR_FORMAT, R"({"dtype": 3, "shape": [2], "data_offsets": [0, 8]})", "dtype"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "data_offsets": [0, 8]})", "shape"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,2], "data_offsets": [0, 8]})", "shape"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]})", "dimension 0"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]})", "dimension 0"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]})",
         "dimension 1"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 0]})",
         "fill"},
        {TW_ERR_FORMAT, R"({"dtype": "F4", "shape": [17], "data_offsets": [0, 8]})", "fill"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]})", "fill"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [2]})", "data_offsets"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [2], "data_offsets": [0]})", "data_offsets"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [2], "data_offsets": ["0", 8]})", "data_offsets"},
        {TW_ERR_TRUNCATED, R"({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]})", "data_offsets"},
        {TW_ERR_TRUNCATED, R"({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]})", "data_offsets"},
        {TW_ERR_TRUNCATED, R"({"dtype": "F32", "shape": [2], "data_offsets": [1, 9]})", "data_offsets"},
        {TW_ERR_TRUNCATED, R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 9223372036854775807]})",
         "data_offsets"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]})", "right after"},
        {TW_ERR_FORMAT, R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})", "belong to none"},
    };
    for (const auto &c : cases) {
        expect_refused(c.status, std::string(R"({"the.tensor": )") + c.entry + "}", 8, c.said);
    }
    EXPECT_EQ(sizeof(cases) / sizeof(cases[0]) - 1, log_count("'the.tensor'"));
}

TEST_F(SafetensorsTest, RefusesOverlapsAndDuplicateNames)
{
    expect_refused(TW_ERR_FORMAT, R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                       "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                   8, "'b': starts at 4, inside");
    expect_refused(TW_ERR_FORMAT, R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                       "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                   8, "duplicate");
}

TEST_F(SafetensorsTest, OpensFilesAndNamesThoseItCannot)
{
    const std::string path = ::testing::TempDir() + "tw_safetensors." + std::to_string(getpid());
    const std::string bytes = file_bytes(kTwoTensors, 20);
    std::ofstream(path, std::ios::binary) << bytes;
    ASSERT_EQ(TW_OK, tw_safetensors_open(path.c_str(), &file_));
    EXPECT_EQ(2u, tw_safetensors_count(file_));
    EXPECT_EQ(7, static_cast<const unsigned char *>(tw_safetensors_get(file_, 0)->data)[7]);
    tw_safetensors_close(file_);
    file_ = nullptr;

    expect_log(path + ": 5 bytes are too few");
    expect_log(path + ": cannot open");
    expect_log("/: not a regular file");
    std::ofstream(path, std::ios::binary) << bytes.substr(0, 5);
    EXPECT_EQ(TW_ERR_TRUNCATED, tw_safetensors_open(path.c_str(), &file_));
    unlink(path.c_str());
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_safetensors_open(path.c_str(), &file_));
    EXPECT_EQ(TW_ERR_INVALID, tw_safetensors_open("/", &file_));
    EXPECT_EQ(nullptr, file_);
    tw_safetensors_close(nullptr);
}

} // namespace
