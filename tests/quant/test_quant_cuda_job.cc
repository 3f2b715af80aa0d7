/* Jobs on the emulated device: vectors of segments, many inputs, big tiles, AdamW. test_quant_twins has the rest. */
#include <numeric>

#include "quant/quant_cuda_job.h"
#include "tests/common/fixture.h"
#include "tests/quant/cuda_emulated.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;
using tw::emulated::launches;

const tw_quant_codec_t int4 = {4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_STOCHASTIC, 1};
const tw_quant_codec_t int8 = {8, 2048, TW_QUANT_SCALE_FP32, TW_QUANT_ROUND_NEAREST, 0};

tw_quant_args_t args_of(tw_type_t type)
{
    return {type, 42, 7, 0.5f, nullptr};
}

/* Segments of a codec in one buffer, the way that a message holds them. */
struct Message {
    std::vector<size_t> sizes, plain_offsets, encoded_offsets;
    size_t plain_elems = 0, encoded_bytes = 0;

    Message(const tw_quant_codec_t &codec, const std::vector<size_t> &n) : sizes(n)
    {
        for (size_t elems : n) {
            plain_offsets.push_back(plain_elems);
            encoded_offsets.push_back(encoded_bytes);
            plain_elems += elems;
            encoded_bytes += tw_quant_encoded_bytes(&codec, elems);
        }
    }

    std::vector<uint8_t> encode(const tw_quant_codec_t &codec, const char *backend,
                                const std::vector<uint8_t> &plain)
    {
        tw::Codec quant(codec, backend);
        const tw_quant_args_t args = args_of(TW_TYPE_BF16);
        std::vector<uint8_t> encoded(encoded_bytes + 1, 0xee);
        std::vector<tw_quant_segment_t> segments;
        for (size_t i = 0; i < sizes.size(); i++)
            segments.push_back({plain.data() + 2 * plain_offsets[i], nullptr,
                                encoded.data() + encoded_offsets[i], sizes[i], uint32_t(i), i * 3});
        EXPECT_EQ(tw_quant_encode(quant, &args, segments.data(), segments.size()), TW_OK);
        return encoded;
    }
};

class QuantCudaJob : public tw::Fixture
{
  protected:
    void expect_equal_encoding(const tw_quant_codec_t &codec, const std::vector<size_t> &sizes,
                               uint64_t n_launches)
    {
        Message message(codec, sizes);
        const std::vector<uint8_t> plain = tw::make_data(TW_TYPE_BF16, Data::gauss, message.plain_elems, 1);
        const uint64_t before = launches().launches;
        const std::vector<uint8_t> got = message.encode(codec, "cuda_emulated", plain);
        EXPECT_EQ(launches().launches - before, n_launches);
        EXPECT_TRUE(got == message.encode(codec, "ref", plain));
    }
};

TEST_F(QuantCudaJob, HundredsOfSegmentsAreOneLaunch)
{
    std::vector<size_t> sizes;
    for (size_t i = 0; i < 444; i++)
        sizes.push_back(i * 37 % 300);
    expect_equal_encoding(int4, sizes, 1);
    expect_equal_encoding(int8, sizes, 1);
    sizes.push_back(5);
    sizes.push_back(6);
    while (std::count(sizes.begin(), sizes.end(), size_t{0}) < 3)
        sizes.push_back(0);
    sizes.resize(900, 40);
    expect_equal_encoding(int4, sizes, 3);
}

TEST_F(QuantCudaJob, NothingIsNoLaunch)
{
    expect_equal_encoding(int4, {}, 0);
    expect_equal_encoding(int4, {0, 0}, 0);
}

TEST_F(QuantCudaJob, BigTilesAndSmallOnes)
{
    for (uint32_t multiprocessors : {1, 3, 132}) {
        tw::emulated::set_multiprocessors(multiprocessors);
        expect_equal_encoding(int4, {100001}, 1);
        expect_equal_encoding(int8, {3, 70000, 4096, 4095}, 1);
        EXPECT_LE(launches().grid, 16 * multiprocessors);
    }
    tw::emulated::set_multiprocessors(0);
}

/* Inputs laid out in one of the ways that a job tells apart. */
class QuantCudaReduce : public QuantCudaJob
{
  protected:
    std::vector<uint8_t> reduce(const char *backend, const std::vector<const void *> &srcs, size_t n)
    {
        tw::Codec in(int8, backend), out(int4, backend);
        const tw_quant_args_t args = args_of(TW_TYPE_BF16);
        std::vector<uint8_t> dst(tw_quant_encoded_bytes(&int4, n));
        const tw_quant_reduce_segment_t segment = {srcs.data(), srcs.size(), dst.data(), n, 1, 0};
        EXPECT_EQ(tw_quant_reduce_encode(in, out, &args, &segment, 1), TW_OK);
        return dst;
    }

    void expect_equal_sums(size_t n, size_t n_srcs, bool strided)
    {
        Message message(int8, std::vector<size_t>(4, n));
        const std::vector<uint8_t> plain =
            tw::make_data(TW_TYPE_BF16, Data::gauss, message.plain_elems, n_srcs);
        const std::vector<uint8_t> encoded = message.encode(int8, "ref", plain);
        std::vector<const void *> srcs;
        for (size_t k = 0; k < n_srcs; k++)
            srcs.push_back(encoded.data() + message.encoded_offsets[strided ? 3 - k % 4 : k * k % 3]);
        EXPECT_TRUE(reduce("cuda_emulated", srcs, n) == reduce("ref", srcs, n)) << n << " x " << n_srcs;
    }
};

TEST_F(QuantCudaReduce, StridedBackwards)
{
    for (size_t k : {1, 2, 3, 4})
        expect_equal_sums(5000, k, true);
}

TEST_F(QuantCudaReduce, Listed)
{
    const uint64_t tables = launches().tables;
    for (size_t k : {3, 8, 17, 3000})
        expect_equal_sums(k < 100 ? 5000 : 70, k, false);
    EXPECT_EQ(launches().tables, tables);
}

TEST_F(QuantCudaReduce, MoreInputsThanParametersHold)
{
    const uint64_t tables = launches().tables;
    expect_equal_sums(70, 9001, false);
    EXPECT_EQ(launches().tables, tables + 1);
}

/* Several segments: listed ones between strided ones, and one with a table, in the order given. */
TEST_F(QuantCudaReduce, ManySegments)
{
    const size_t n = 300;
    Message message(int8, std::vector<size_t>(3, n));
    const std::vector<uint8_t> plain = tw::make_data(TW_TYPE_BF16, Data::gauss, message.plain_elems, 9);
    const std::vector<uint8_t> encoded = message.encode(int8, "ref", plain);
    std::vector<std::vector<const void *>> lists;
    for (size_t k : {2, 5, 8, 4001, 1, 3999, 7, 2, 3000, 3000})
        for (lists.emplace_back(); lists.back().size() < k;)
            lists.back().push_back(encoded.data() + message.encoded_offsets[lists.back().size() * k % 3]);
    std::vector<uint8_t> results[2];
    const char *const backends[] = {"cuda_emulated", "ref"};
    for (int b = 0; b < 2; b++) {
        tw::Codec quant(int8, backends[b]);
        const tw_quant_args_t args = args_of(TW_TYPE_FP32);
        results[b].resize(lists.size() * n * 4);
        std::vector<tw_quant_reduce_segment_t> segments;
        for (size_t i = 0; i < lists.size(); i++)
            segments.push_back({lists[i].data(), lists[i].size(), results[b].data() + i * n * 4, n, 0, 0});
        EXPECT_EQ(tw_quant_reduce_decode(quant, &args, segments.data(), segments.size()), TW_OK);
    }
    EXPECT_TRUE(results[0] == results[1]);
}

} // namespace
