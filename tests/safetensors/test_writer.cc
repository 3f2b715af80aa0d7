#include "safetensors/safetensors.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

class SafetensorsWriter : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        path_ = ::testing::TempDir() + "writer." + std::to_string(getpid()) + ".safetensors";
    }
    void TearDown() override
    {
        tw_safetensors_close(file_);
        EXPECT_NE(0, access((path_ + ".tmp").c_str(), F_OK)); /* nothing is left over */
        unlink(path_.c_str());
        tw::Fixture::TearDown();
    }
    tw_status_t create(const std::vector<tw_safetensors_spec_t> &specs, const char *const *metadata = nullptr)
    {
        return tw_safetensors_writer_create(path_.c_str(), specs.data(), specs.size(), metadata, &writer_);
    }
    bool exists() const
    {
        return access(path_.c_str(), F_OK) == 0;
    }

    std::string path_;
    tw_safetensors_writer_t *writer_ = nullptr;
    tw_safetensors_t *file_ = nullptr;
};

TEST_F(SafetensorsWriter, WhatIsWrittenIsRead)
{
    const char *const metadata[] = {"format", "pt", nullptr};
    const float b[6] = {1, 2, 3, 4, 5, 6};
    const uint16_t a[1] = {0x3f80};
    ASSERT_EQ(TW_OK, create({{"b", TW_TYPE_FP32, 2, {2, 3}},
                             {"empty", TW_TYPE_FP16, 1, {0}},
                             {"a \"quoted\" \xc3\xa4", TW_TYPE_BF16, 0, {}}},
                            metadata));
    EXPECT_EQ(TW_OK, tw_safetensors_writer_write(writer_, b, 10));
    EXPECT_EQ(TW_OK, tw_safetensors_writer_write(writer_, reinterpret_cast<const char *>(b) + 10, 14));
    EXPECT_EQ(TW_OK, tw_safetensors_writer_write(writer_, nullptr, 0));
    EXPECT_EQ(TW_OK, tw_safetensors_writer_write(writer_, a, 2));
    EXPECT_FALSE(exists());
    ASSERT_EQ(TW_OK, tw_safetensors_writer_finish(writer_));

    ASSERT_EQ(TW_OK, tw_safetensors_open(path_.c_str(), &file_));
    ASSERT_EQ(3u, tw_safetensors_count(file_));
    const tw_safetensors_tensor_t *tensor = tw_safetensors_find(file_, "b");
    ASSERT_NE(nullptr, tensor);
    EXPECT_EQ(TW_TYPE_FP32, tensor->type);
    ASSERT_EQ(2, tensor->n_dims);
    EXPECT_EQ(3u, tensor->dims[1]);
    EXPECT_EQ(0, std::memcmp(b, tensor->data, sizeof(b)));
    EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(tensor->data) % 8); /* the header is padded */
    tensor = tw_safetensors_find(file_, "a \"quoted\" \xc3\xa4");
    ASSERT_NE(nullptr, tensor);
    EXPECT_EQ(0, tensor->n_dims);
    EXPECT_EQ(0, std::memcmp(a, tensor->data, sizeof(a)));
    EXPECT_EQ(0u, tw_safetensors_find(file_, "empty")->n_elems);
}

TEST_F(SafetensorsWriter, AFileWithoutTensors)
{
    ASSERT_EQ(TW_OK, create({}));
    ASSERT_EQ(TW_OK, tw_safetensors_writer_finish(writer_));
    ASSERT_EQ(TW_OK, tw_safetensors_open(path_.c_str(), &file_));
    EXPECT_EQ(0u, tw_safetensors_count(file_));
}

TEST_F(SafetensorsWriter, TooFewAndTooManyBytes)
{
    const float one = 1.0f;
    ASSERT_EQ(TW_OK, create({{"x", TW_TYPE_FP32, 1, {2}}}));
    ASSERT_EQ(TW_OK, tw_safetensors_writer_write(writer_, &one, 4));
    expect_log("4 of its 8 bytes were never written");
    EXPECT_EQ(TW_ERR_INVALID, tw_safetensors_writer_finish(writer_));
    EXPECT_FALSE(exists());

    ASSERT_EQ(TW_OK, create({{"x", TW_TYPE_FP32, 1, {0}}}));
    expect_log("4 bytes more than its tensors have");
    EXPECT_EQ(TW_ERR_INVALID, tw_safetensors_writer_write(writer_, &one, 4));
    tw_safetensors_writer_destroy(writer_);
    EXPECT_FALSE(exists());
}

TEST_F(SafetensorsWriter, AnUnfinishedFileLeavesTheOldOne)
{
    ASSERT_EQ(TW_OK, create({}));
    ASSERT_EQ(TW_OK, tw_safetensors_writer_finish(writer_));
    ASSERT_EQ(TW_OK, create({{"x", TW_TYPE_FP32, 1, {2}}}));
    tw_safetensors_writer_destroy(writer_);
    ASSERT_EQ(TW_OK, tw_safetensors_open(path_.c_str(), &file_));
    EXPECT_EQ(0u, tw_safetensors_count(file_));
}

TEST_F(SafetensorsWriter, WhatCannotBeIsRefused)
{
    const struct {
        std::vector<tw_safetensors_spec_t> specs;
        const char *said;
    } wrong[] = {{{{"x", TW_TYPE_FP32, 0, {}}, {"x", TW_TYPE_FP32, 0, {}}}, "tensor 'x': this name is taken"},
                 {{{"__metadata__", TW_TYPE_FP32, 0, {}}}, "this name is taken"},
                 {{{"x", TW_TYPE_BYTE, 0, {}}}, "cannot be written"},
                 {{{"x", TW_TYPE_FP32, 9, {}}}, "9 dimensions"},
                 {{{"x", TW_TYPE_FP32, 2, {SIZE_MAX / 2, 3}}}, "too many elements"},
                 {{{"x", TW_TYPE_FP32, 2, {SIZE_MAX, 0}}}, "tensor 'x': too many elements"},
                 {{{"x", TW_TYPE_FP32, 1, {(size_t)1 << 46}}, {"y", TW_TYPE_FP32, 1, {1}}},
                  "tensor 'y': with those before it, too many elements"},
                 {{{"\xff", TW_TYPE_FP32, 0, {}}}, "not UTF-8"}};
    for (const auto &one : wrong) {
        expect_log(one.said);
        EXPECT_EQ(TW_ERR_INVALID, create(one.specs)) << one.said;
    }
    path_ = "/nonexistent/folder/x.safetensors";
    expect_log("/nonexistent/folder/x.safetensors.tmp: cannot write it");
    EXPECT_EQ(TW_ERR_NOT_FOUND, create({}));
}

} // namespace
