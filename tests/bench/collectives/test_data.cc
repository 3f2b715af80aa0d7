#include "bench/collectives/data.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "quant/quant.h"
#include "tests/common/fixture.h"

namespace
{

class DataTest : public tw::Fixture
{
  protected:
    void TearDown() override
    {
        tw_bench_data_destroy(data_);
        tw::Fixture::TearDown();
    }

    void create(size_t n_elems, tw_type_t type = TW_TYPE_FP32, uint64_t seed = 1,
                const char *tensors = nullptr)
    {
        tw_bench_data_destroy(data_);
        data_ = nullptr;
        tw_bench_data_params_t params = {type, n_elems, seed, tensors};
        ASSERT_EQ(TW_OK, tw_bench_data_create(&params, &data_));
    }
    std::vector<float> values(size_t tensor, int version, size_t first, size_t n) const
    {
        std::vector<float> out(n);
        tw_bench_data_fill(data_, tensor, version, first, n, out.data());
        return out;
    }
    std::vector<float> whole(size_t tensor, int version = 0) const
    {
        return values(tensor, version, 0, tw_bench_data_tensor(data_, tensor)->n_elems);
    }

    tw_bench_data_t *data_ = nullptr;
};

TEST_F(DataTest, TensorsFillTheSizeExactlyAndDoNotOverlap)
{
    for (size_t n : {size_t(0), size_t(1), size_t(2), size_t(31), size_t(4097), size_t(32768),
                     size_t(1) << 20, size_t(32) << 20}) {
        for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
            create(n, type);
            size_t sum = 0, at = 0, bytes = tw_type_bytes(type);
            for (size_t t = 0; t < tw_bench_data_count(data_); t++) {
                const tw_bench_tensor_t *tensor = tw_bench_data_tensor(data_, t);
                EXPECT_GT(tensor->n_elems, 0u);
                EXPECT_GE(tensor->offset, at);
                EXPECT_EQ(0u, tensor->offset * bytes % 64);
                at = tensor->offset + tensor->n_elems;
                sum += tensor->n_elems;
            }
            EXPECT_EQ(n, sum);
            EXPECT_LE(at, tw_bench_data_buffer_elems(data_));
        }
    }
    EXPECT_GE(tw_bench_data_count(data_), 48u) << "four layers of twelve tensors in 64 MiB of bf16";
}

TEST_F(DataTest, AnyPartIsTheSameAsInTheWhole)
{
    create(100000);
    for (size_t t = 0; t < tw_bench_data_count(data_); t++) {
        std::vector<float> all = whole(t, 3);
        for (size_t first : {size_t(0), size_t(1), size_t(1023), size_t(1500)}) {
            size_t n = first < all.size() ? std::min<size_t>(all.size() - first, 2000) : 0;
            std::vector<float> part = values(t, 3, first, n);
            ASSERT_TRUE(n == 0 || memcmp(part.data(), &all[first], n * sizeof(float)) == 0)
                << t << " " << first;
        }
    }
}

TEST_F(DataTest, SeedsTensorsAndVersionsDiffer)
{
    create(100000, TW_TYPE_FP32, 1);
    std::vector<float> one = whole(2);
    EXPECT_NE(one, whole(2, 1));
    EXPECT_NE(std::vector<float>(one.begin(), one.begin() + 64), values(8, 0, 0, 64));
    create(100000, TW_TYPE_FP32, 2);
    EXPECT_NE(one, whole(2));
    create(100000, TW_TYPE_FP32, 1);
    EXPECT_EQ(one, whole(2));
}

TEST_F(DataTest, ValuesAreWeightsWithOutliers)
{
    create(4 << 20);
    std::vector<float> weights = whole(2);
    double sum2 = 0, most = 0;
    for (float w : weights) {
        ASSERT_TRUE(std::isfinite(w));
        sum2 += double(w) * w;
        most = std::max(most, std::fabs(double(w)));
    }
    double sigma = std::sqrt(sum2 / double(weights.size()));
    EXPECT_GT(sigma, 0.01);
    EXPECT_LT(sigma, 0.08);
    EXPECT_GT(most, 8 * sigma) << "no outlier";
}

TEST_F(DataTest, BytesAreNoFloats)
{
    tw_bench_data_params_t params = {TW_TYPE_BYTE, 10, 1, nullptr};
    expect_log("no float type");
    EXPECT_EQ(TW_ERR_INVALID, tw_bench_data_create(&params, &data_));
    EXPECT_EQ(nullptr, data_);
}

/* A file with an integer tensor between two float ones, the second at an odd address. */
class DataFileTest : public DataTest
{
  protected:
    void SetUp() override
    {
        DataTest::SetUp();
        path_ = ::testing::TempDir() + "tw_data." + std::to_string(getpid());
    }
    void TearDown() override
    {
        unlink(path_.c_str());
        DataTest::TearDown();
    }
    void write(const std::string &header, const std::string &data)
    {
        uint64_t length = header.size();
        std::string bytes(reinterpret_cast<const char *>(&length), sizeof(length));
        std::ofstream(path_, std::ios::binary) << bytes << header << data;
    }
    void write_two()
    {
        std::string bytes;
        for (int i = 0; i < 5; i++) {
            float value = float(i) + 0.5f;
            bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
        }
        bytes += "x";
        for (int i = 0; i < 3; i++) {
            uint16_t value = uint16_t(0x3f80 + i);
            bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
        }
        write(R"({"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]},
                  "i": {"dtype": "U8", "shape": [1], "data_offsets": [20, 21]},
                  "b": {"dtype": "BF16", "shape": [3, 1], "data_offsets": [21, 27]}})",
              bytes);
    }
    std::string path_;
};

TEST_F(DataFileTest, TensorsAreRepeatedAndCut)
{
    write_two();
    create(18, TW_TYPE_FP32, 1, path_.c_str());
    ASSERT_EQ(5u, tw_bench_data_count(data_));
    const size_t want[] = {5, 3, 5, 3, 2};
    for (size_t t = 0; t < 5; t++) {
        EXPECT_EQ(want[t], tw_bench_data_tensor(data_, t)->n_elems);
    }
    EXPECT_EQ((std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f, 4.5f}), whole(0));
    EXPECT_EQ((std::vector<float>{1.0f, 1.0f + 1 / 128.0f, 1.0f + 2 / 128.0f}), whole(1));
    EXPECT_EQ(whole(0), whole(2));
    EXPECT_EQ((std::vector<float>{0.5f, 1.5f}), whole(4));
    EXPECT_NE(nullptr, strstr(tw_bench_data_describe(data_), path_.c_str()));
}

TEST_F(DataFileTest, VersionsAreRotations)
{
    write_two();
    create(8, TW_TYPE_FP32, 1, path_.c_str());
    /* 7919 = 4 mod 5 */
    EXPECT_EQ((std::vector<float>{4.5f, 0.5f, 1.5f, 2.5f, 3.5f}), whole(0, 1));
    EXPECT_EQ((std::vector<float>{2.5f, 3.5f}), values(0, 1, 3, 2));
}

TEST_F(DataFileTest, ValuesAreRoundedIntoTheTypeAskedFor)
{
    write_two();
    create(8, TW_TYPE_BF16, 1, path_.c_str());
    uint16_t bits[3];
    tw_bench_data_fill(data_, 1, 0, 0, 3, bits);
    EXPECT_EQ(0x3f82, bits[2]);
}

TEST_F(DataFileTest, FilesWithoutFloatsOrWithoutTensorsAreRefused)
{
    tw_bench_data_params_t params = {TW_TYPE_FP32, 10, 1, path_.c_str()};
    write("{}", "");
    expect_log("holds no tensor");
    EXPECT_EQ(TW_ERR_INVALID, tw_bench_data_create(&params, &data_));
    write(R"({"i": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})", "x");
    expect_log("holds no tensor");
    EXPECT_EQ(TW_ERR_INVALID, tw_bench_data_create(&params, &data_));
    unlink(path_.c_str());
    expect_log("cannot open");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_bench_data_create(&params, &data_));
}

} // namespace
