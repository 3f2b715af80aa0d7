/* Jobs on the emulated device: vectors of segments, many inputs, big tiles, AdamW. test_quant_twins has the
 * rest. */
#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "quant/cuda/job.h"
#include "tests/common/fixture.h"
#include "tests/quant/cuda/emulated.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;
using tw::emulated::launches;

const tw_quant_codec_t int4 = {TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_STOCHASTIC, 1, 0};
const tw_quant_codec_t int8 = {TW_QUANT_INT8, 2048, TW_QUANT_SCALE_FP32, TW_QUANT_ROUND_NEAREST, 0, 0};

tw_quant_args_t args_of(tw_type_t type)
{
    return {type, 42, 7, 0.5f, nullptr, nullptr, 0, 0};
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
        for (size_t i = 0; i < sizes.size(); i++) {
            segments.push_back({plain.data() + 2 * plain_offsets[i], nullptr,
                                encoded.data() + encoded_offsets[i], sizes[i], uint32_t(i), i * 3});
        }
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
    for (size_t i = 0; i < 444; i++) {
        sizes.push_back(i * 37 % 300);
    }
    expect_equal_encoding(int4, sizes, 1);
    expect_equal_encoding(int8, sizes, 1);
    sizes.push_back(5);
    sizes.push_back(6);
    while (std::count(sizes.begin(), sizes.end(), size_t{0}) < 3) {
        sizes.push_back(0);
    }
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

/* Tiles get smaller until each multiprocessor has four, which hide the time that memory takes. */
TEST_F(QuantCudaJob, LittleWorkIsSpreadOverTheDevice)
{
    tw::emulated::set_multiprocessors(3);
    expect_equal_encoding(int4, {9 * 4096}, 1);
    EXPECT_GE(launches().grid, 12u);
    tw::emulated::set_multiprocessors(0);
}

/* Of two inputs one is aligned: the other must not be read as if it were. */
TEST_F(QuantCudaJob, WholeTilesOfInputsThatAreNotAligned)
{
    const size_t n = 3 * 4096;
    tw::emulated::set_multiprocessors(1);
    for (const tw_quant_codec_t &codec : {int4, int8}) {
        tw::Codec reference(codec, "ref"), quant(codec, "cuda_emulated");
        const std::vector<uint8_t> encoded =
            tw::encode(reference, TW_TYPE_BF16, tw::make_data(TW_TYPE_BF16, Data::gauss, n, 1));
        const tw_quant_args_t args = args_of(TW_TYPE_FP32);
        for (size_t offset : {0, 1, 8}) {
            tw::Guarded first(encoded, 0), second(encoded, offset), expected(4 * n, 0), got(4 * n, 0);
            const void *srcs[] = {second.data(), first.data(), second.data(), first.data()};
            tw_quant_reduce_segment_t segment = {srcs, 4, expected.data(), n, 0, 0};
            ASSERT_EQ(tw_quant_reduce_decode(reference, &args, &segment, 1), TW_OK);
            segment.dst = got.data();
            ASSERT_EQ(tw_quant_reduce_decode(quant, &args, &segment, 1), TW_OK);
            EXPECT_EQ(expected.content(), got.content()) << codec << " offset " << offset;
        }
    }
    tw::emulated::set_multiprocessors(0);
}

/* Memory that is there only where it is touched. */
class Sparse
{
  public:
    explicit Sparse(size_t bytes)
        : bytes_(bytes),
          data_(static_cast<uint8_t *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)))
    {
    }
    ~Sparse()
    {
        if (data_ != MAP_FAILED) {
            munmap(data_, bytes_);
        }
    }
    Sparse(const Sparse &) = delete;
    Sparse &operator=(const Sparse &) = delete;
    uint8_t *data() const
    {
        return data_ == MAP_FAILED ? nullptr : data_;
    }

  private:
    size_t bytes_;
    uint8_t *data_;
};

/* More elements than 32 bits count: the frames around 2^31 and 2^32 elements, the first and the last, encoded
 * and decoded where they lie in a long segment, are what they are by themselves. */
class QuantCudaLong : public QuantCudaJob
{
  protected:
    static constexpr size_t n = (size_t{1} << 32) + 3 * 16384 + 4801;

    void TearDown() override
    {
        tw::emulated::set_ranges({});
        tw::emulated::set_multiprocessors(0);
        QuantCudaJob::TearDown();
    }

    static void expect_frames_alone(const tw_quant_codec_t &codec)
    {
        const size_t frame = tw_quant_frame_elems(&codec), frame_bytes = tw_quant_frame_bytes(&codec);
        Sparse plain(2 * n), encoded(tw_quant_encoded_bytes(&codec, n)), decoded(2 * n);
        ASSERT_TRUE(plain.data() && encoded.data() && decoded.data()) << "no address space";
        std::vector<tw::emulated::Range> ranges;
        for (size_t f : {size_t{0}, (size_t{1} << 31) / frame - 1, (size_t{1} << 31) / frame,
                         (size_t{1} << 32) / frame - 1, (size_t{1} << 32) / frame, n / frame}) {
            ranges.push_back({f * frame, std::min(n, (f + 1) * frame)});
        }
        for (const tw::emulated::Range &r : ranges) {
            const std::vector<uint8_t> data =
                tw::make_data(TW_TYPE_BF16, Data::gauss, r.end - r.first, r.first);
            memcpy(plain.data() + 2 * r.first, data.data(), data.size());
        }

        tw::emulated::set_multiprocessors(1 << 20);
        tw::emulated::set_ranges(ranges);
        tw::Codec quant(codec, "cuda_emulated"), ref(codec, "ref");
        const tw_quant_args_t args = args_of(TW_TYPE_BF16);
        const tw_quant_segment_t there = {plain.data(), nullptr, encoded.data(), n, 5, 0},
                                 back = {encoded.data(), nullptr, decoded.data(), n, 5, 0};
        ASSERT_EQ(tw_quant_encode(quant, &args, &there, 1), TW_OK);
        ASSERT_EQ(tw_quant_decode(quant, &args, &back, 1), TW_OK);
        for (const tw::emulated::Range &r : ranges) {
            const size_t elems = r.end - r.first, bytes = tw_quant_encoded_bytes(&codec, elems);
            std::vector<uint8_t> own(bytes), own_decoded(2 * elems);
            const tw_quant_segment_t alone = {
                plain.data() + 2 * r.first, nullptr, own.data(), elems, 5, r.first};
            const tw_quant_segment_t alone_back = {own.data(), nullptr, own_decoded.data(), elems, 5, 0};
            ASSERT_EQ(tw_quant_encode(ref, &args, &alone, 1), TW_OK);
            ASSERT_EQ(tw_quant_decode(ref, &args, &alone_back, 1), TW_OK);
            EXPECT_EQ(memcmp(own.data(), encoded.data() + r.first / frame * frame_bytes, bytes), 0)
                << "encoded, from element " << r.first;
            EXPECT_EQ(memcmp(own_decoded.data(), decoded.data() + 2 * r.first, 2 * elems), 0)
                << "decoded, from element " << r.first;
        }
    }
};

TEST_F(QuantCudaLong, Int8)
{
    expect_frames_alone(int8);
}

TEST_F(QuantCudaLong, Int4HadamardStochastic)
{
    expect_frames_alone(int4);
}

/* Inputs laid out in one of the ways that a job tells apart. */
class QuantCudaReduce : public QuantCudaJob
{
  protected:
    /* The workspace that is asked for, and not a word more. */
    static std::vector<uint64_t> provide(tw_quant_t *quant, const tw_quant_reduce_segment_t *segments,
                                         size_t n_segments, tw_quant_args_t *args)
    {
        args->workspace_bytes = tw_quant_reduce_workspace_bytes(quant, segments, n_segments);
        std::vector<uint64_t> workspace(args->workspace_bytes / sizeof(uint64_t));
        args->workspace = workspace.empty() ? nullptr : workspace.data();
        return workspace;
    }

    std::vector<uint8_t> reduce(const char *backend, const std::vector<const void *> &srcs, size_t n)
    {
        tw::Codec in(int8, backend), out(int4, backend);
        tw_quant_args_t args = args_of(TW_TYPE_BF16);
        std::vector<uint8_t> dst(tw_quant_encoded_bytes(&int4, n));
        const tw_quant_reduce_segment_t segment = {srcs.data(), srcs.size(), dst.data(), n, 1, 0};
        const std::vector<uint64_t> workspace = provide(in, &segment, 1, &args);
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
        for (size_t k = 0; k < n_srcs; k++) {
            srcs.push_back(encoded.data() + message.encoded_offsets[strided ? 3 - k % 4 : k * k % 3]);
        }
        EXPECT_TRUE(reduce("cuda_emulated", srcs, n) == reduce("ref", srcs, n)) << n << " x " << n_srcs;
    }
};

TEST_F(QuantCudaReduce, StridedBackwards)
{
    for (size_t k : {1, 2, 3, 4}) {
        expect_equal_sums(5000, k, true);
    }
}

TEST_F(QuantCudaReduce, Listed)
{
    const uint64_t tables = launches().tables;
    for (size_t k : {3, 8, 17, 3000}) {
        expect_equal_sums(k < 100 ? 5000 : 70, k, false);
    }
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
    for (size_t k : {2, 5, 8, 4001, 1, 3999, 7, 2, 3000, 3000}) {
        for (lists.emplace_back(); lists.back().size() < k;) {
            lists.back().push_back(encoded.data() + message.encoded_offsets[lists.back().size() * k % 3]);
        }
    }
    std::vector<uint8_t> results[2];
    const char *const backends[] = {"cuda_emulated", "ref"};
    for (int b = 0; b < 2; b++) {
        tw::Codec quant(int8, backends[b]);
        tw_quant_args_t args = args_of(TW_TYPE_FP32);
        results[b].resize(lists.size() * n * 4);
        std::vector<tw_quant_reduce_segment_t> segments;
        for (size_t i = 0; i < lists.size(); i++) {
            segments.push_back({lists[i].data(), lists[i].size(), results[b].data() + i * n * 4, n, 0, 0});
        }
        const std::vector<uint64_t> workspace = provide(quant, segments.data(), segments.size(), &args);
        EXPECT_EQ(workspace.size(), b == 0 ? 4001u + 3999u : 0u) << "lists that parameters do not hold";
        EXPECT_EQ(tw_quant_reduce_decode(quant, &args, segments.data(), segments.size()), TW_OK);
    }
    EXPECT_TRUE(results[0] == results[1]);
}

TEST_F(QuantCudaReduce, WorkspaceIsAskedForAndChecked)
{
    const size_t n = 64, bytes = tw_quant_encoded_bytes(&int8, n);
    tw::Codec quant(int8, "cuda_emulated");
    tw_quant_args_t args = args_of(TW_TYPE_FP32);
    std::vector<uint8_t> encoded(3 * bytes);
    std::vector<float> dst(n);
    std::vector<const void *> scattered(5000), in_line(5000, encoded.data());
    for (size_t k = 0; k < scattered.size(); k++) {
        scattered[k] = encoded.data() + k * k % 3 * bytes;
    }
    tw_quant_reduce_segment_t segments[] = {{scattered.data(), 3991, dst.data(), n, 0, 0},
                                            {scattered.data(), 3992, dst.data(), n, 0, 0},
                                            {scattered.data(), 5000, dst.data(), 0, 0, 0}};
    EXPECT_EQ(tw_quant_reduce_workspace_bytes(quant, &segments[0], 1), 0u);
    EXPECT_EQ(tw_quant_reduce_workspace_bytes(quant, &segments[1], 1), 3992 * 8u);
    EXPECT_EQ(tw_quant_reduce_workspace_bytes(quant, &segments[2], 1), 0u) << "no elements";
    EXPECT_EQ(tw_quant_reduce_workspace_bytes(quant, segments, 3), 3992 * 8u);
    const tw_quant_reduce_segment_t endless[] = {{scattered.data(), SIZE_MAX / 8 + 2, dst.data(), n, 0, 0},
                                                 {scattered.data(), SIZE_MAX - 5000, dst.data(), n, 0, 0}};
    EXPECT_EQ(tw_quant_reduce_workspace_bytes(quant, endless, 1), SIZE_MAX) << "as no memory has";
    EXPECT_EQ(tw_quant_reduce_workspace_bytes(quant, endless, 2), SIZE_MAX);
    EXPECT_EQ(tw_quant_reduce_decode(quant, &args, &segments[0], 1), TW_OK);

    const uint64_t before = launches().launches;
    std::vector<uint64_t> workspace(3993);
    expect_log("a reduction needs 31936 bytes of workspace, aligned to 8; given were 0");
    EXPECT_EQ(tw_quant_reduce_decode(quant, &args, segments, 3), TW_ERR_INVALID);
    args.workspace = workspace.data();
    args.workspace_bytes = 3992 * 8 - 1;
    expect_log("given were 31935");
    EXPECT_EQ(tw_quant_reduce_decode(quant, &args, segments, 3), TW_ERR_INVALID);
    args.workspace = reinterpret_cast<uint8_t *>(workspace.data()) + 4;
    args.workspace_bytes = 3992 * 8;
    expect_log("given were 31936");
    EXPECT_EQ(tw_quant_reduce_decode(quant, &args, segments, 3), TW_ERR_INVALID);
    EXPECT_EQ(launches().launches, before) << "what is refused has not begun";

    /* at equal distances no list is needed, whatever their number */
    args.workspace = nullptr;
    segments[1].srcs = in_line.data();
    EXPECT_EQ(tw_quant_reduce_decode(quant, &args, segments, 3), TW_OK);
}

} // namespace
