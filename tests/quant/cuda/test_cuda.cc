/* What only a GPU can show: streams, graphs, launches with many parameters, more elements than 32 bits count.
 * Linked with test_twins.cc and test_adamw.cc, which then compare every operation with the reference on the
 * GPU. */
#include <cuda_runtime_api.h>

#include <cstring>
#include <numeric>

#include "tests/common/fixture.h"
#include "tests/quant/cuda/staged.h"
#include "tests/quant/cuda/stream_world.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;

const tw_quant_codec_t int8 = {TW_QUANT_INT8, 2048, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};
const tw_quant_codec_t int4 = {TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_STOCHASTIC, 1, 0};

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

/* Device memory. */
class Buffer
{
  public:
    explicit Buffer(size_t bytes) : bytes_(bytes)
    {
        EXPECT_EQ(cudaMalloc(reinterpret_cast<void **>(&data_), bytes), cudaSuccess);
    }
    explicit Buffer(const std::vector<uint8_t> &content) : Buffer(content.size())
    {
        set(content);
    }
    ~Buffer()
    {
        cudaFree(data_);
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    void set(const std::vector<uint8_t> &content)
    {
        EXPECT_EQ(cudaMemcpy(data_, content.data(), content.size(), cudaMemcpyHostToDevice), cudaSuccess);
        /* a copy from memory that is not pinned may return early, and other streams do not wait for it */
        EXPECT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
    }
    std::vector<uint8_t> get(size_t offset = 0, size_t bytes = SIZE_MAX) const
    {
        std::vector<uint8_t> content(std::min(bytes, bytes_ - offset));
        EXPECT_EQ(cudaMemcpy(content.data(), data_ + offset, content.size(), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return content;
    }
    uint8_t *data() const
    {
        return data_;
    }

  private:
    size_t bytes_;
    uint8_t *data_ = nullptr;
};

class QuantCuda : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        if (!tw::staged::available()) {
            GTEST_SKIP() << "no GPU";
        }
        allow_descriptors(""); /* its driver opens files when it likes */
    }

    static tw_quant_t *make(const tw_quant_codec_t &codec)
    {
        const tw_quant_params_t params = {codec, TW_MEM_CUDA, "cuda"};
        tw_quant_t *quant = nullptr;
        EXPECT_EQ(tw_quant_create(&params, &quant), TW_OK);
        return quant;
    }

    static std::vector<uint8_t> encode_on_host(const tw_quant_codec_t &codec, const tw_quant_args_t &args,
                                               const std::vector<uint8_t> &plain, size_t n,
                                               uint64_t first_elem)
    {
        const tw_quant_params_t params = {codec, TW_MEM_HOST, nullptr};
        tw_quant_t *quant = nullptr;
        EXPECT_EQ(tw_quant_create(&params, &quant), TW_OK);
        std::vector<uint8_t> encoded(tw_quant_encoded_bytes(&codec, n));
        const tw_quant_segment_t segment = {plain.data(), nullptr, encoded.data(), n, 0, first_elem};
        EXPECT_EQ(tw_quant_encode(quant, &args, &segment, 1), TW_OK);
        tw_quant_destroy(quant);
        return encoded;
    }
};

TEST_F(QuantCuda, IsABackendForDeviceMemory)
{
    const char *names[4];
    ASSERT_EQ(tw_quant_backends(TW_MEM_CUDA, names, 4), 1u);
    EXPECT_STREQ(names[0], "cuda");
}

/* A captured call works on whatever its buffers hold at each replay. */
TEST_F(QuantCuda, GraphReplay)
{
    const size_t n = 100003;
    tw_quant_t *quant = make(int4);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    Buffer plain(n * 2), encoded(tw_quant_encoded_bytes(&int4, n));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const tw_quant_args_t args = {TW_TYPE_BF16, 3, 4, 1.0f, stream, nullptr, 0, 0};
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    {
        /* gone before the first replay */
        const tw_quant_segment_t segment = {plain.data(), nullptr, encoded.data(), n, 0, 5};
        EXPECT_EQ(tw_quant_encode(quant, &args, &segment, 1), TW_OK);
    }
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (uint64_t turn = 0; turn < 3; turn++) {
        const std::vector<uint8_t> data = tw::make_data(TW_TYPE_BF16, Data::gauss, n, turn);
        plain.set(data);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_TRUE(encoded.get() == encode_on_host(int4, args, data, n, 5)) << turn;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    tw_quant_destroy(quant);
}

TEST_F(QuantCuda, StreamsShareAContext)
{
    constexpr size_t n_streams = 4, n = 300000;
    tw_quant_t *quant = make(int8);
    const std::vector<uint8_t> data = tw::make_data(TW_TYPE_BF16, Data::gauss, n, 1);
    Buffer plain(data), encoded(n_streams * tw_quant_encoded_bytes(&int8, n));
    cudaStream_t streams[n_streams];
    const size_t bytes = tw_quant_encoded_bytes(&int8, n);
    tw_quant_args_t args = {TW_TYPE_BF16, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    for (size_t i = 0; i < n_streams; i++) {
        CUDA_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    }
    for (size_t turn = 0; turn < (tw::stream_world().sampled ? 5 : 20); turn++) {
        for (size_t i = 0; i < n_streams; i++) {
            const tw_quant_segment_t segment = {plain.data(), nullptr, encoded.data() + i * bytes, n, 0, 0};
            args.stream = streams[i];
            ASSERT_EQ(tw_quant_encode(quant, &args, &segment, 1), TW_OK);
        }
    }
    CUDA_OK(cudaDeviceSynchronize());
    const std::vector<uint8_t> expected = encode_on_host(int8, args, data, n, 0);
    for (size_t i = 0; i < n_streams; i++) {
        EXPECT_TRUE(encoded.get(i * bytes, bytes) == expected) << i;
    }
    for (cudaStream_t stream : streams) {
        cudaStreamDestroy(stream);
    }
    tw_quant_destroy(quant);
}

TEST_F(QuantCuda, CountsNonFiniteBlocks)
{
    const size_t n = 1000000;
    tw_quant_t *quant = make(int8);
    std::vector<uint8_t> data = tw::make_data(TW_TYPE_BF16, Data::gauss, n, 1);
    uint64_t expected = 0;
    for (size_t i = 0; i < n; i += 50 * size_t(int8.block), expected++) {
        data[2 * i] = 0xc0, data[2 * i + 1] = 0x7f; /* NaN */
    }
    Buffer plain(data), encoded(tw_quant_encoded_bytes(&int8, n));
    const tw_quant_args_t args = {TW_TYPE_BF16, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    const tw_quant_segment_t segment = {plain.data(), nullptr, encoded.data(), n, 0, 0};
    for (uint64_t turn = 1; turn <= 2; turn++) {
        EXPECT_EQ(tw_quant_encode(quant, &args, &segment, 1), TW_OK);
        EXPECT_EQ(tw_quant_nonfinite_blocks(quant), turn * expected);
    }
    tw_quant_destroy(quant);
}

/* As many segments as take several launches, some with nothing in them. */
TEST_F(QuantCuda, ManySegments)
{
    std::vector<size_t> sizes(1000), plain_at(1000), encoded_at(1000);
    size_t elems = 0, bytes = 0;
    for (size_t i = 0; i < sizes.size(); i++) {
        sizes[i] = i % 7 == 3 ? 0 : i * 131 % 5000;
        plain_at[i] = elems;
        encoded_at[i] = bytes;
        elems += sizes[i];
        bytes += tw_quant_encoded_bytes(&int4, sizes[i]);
    }
    const std::vector<uint8_t> data = tw::make_data(TW_TYPE_FP16, Data::outlier, elems, 1);
    Buffer plain(data), encoded(bytes);
    tw_quant_t *quant = make(int4);
    const tw_quant_args_t args = {TW_TYPE_FP16, 11, 12, 1.0f, nullptr, nullptr, 0, 0};
    std::vector<tw_quant_segment_t> segments;
    for (size_t i = 0; i < sizes.size(); i++) {
        segments.push_back(
            {plain.data() + 2 * plain_at[i], nullptr, encoded.data() + encoded_at[i], sizes[i], 0, i});
    }
    ASSERT_EQ(tw_quant_encode(quant, &args, segments.data(), segments.size()), TW_OK);
    for (size_t i = 0; i < sizes.size(); i++) {
        const std::vector<uint8_t> own(data.begin() + ptrdiff_t(2 * plain_at[i]),
                                       data.begin() + ptrdiff_t(2 * (plain_at[i] + sizes[i])));
        ASSERT_TRUE(encoded.get(encoded_at[i], tw_quant_encoded_bytes(&int4, sizes[i])) ==
                    encode_on_host(int4, args, own, sizes[i], i))
            << i;
    }
    tw_quant_destroy(quant);
}

/* More inputs than the parameters of a launch hold, also in a graph. */
TEST_F(QuantCuda, ManyInputs)
{
    const size_t n = 2500, n_inputs = 10007;
    std::vector<uint8_t> data = tw::make_data(TW_TYPE_BF16, Data::gauss, 3 * n, 1), sources;
    tw_quant_args_t args = {TW_TYPE_BF16, 1, 2, 0.01f, nullptr, nullptr, 0, 0};
    for (size_t i = 0; i < 3; i++) {
        const std::vector<uint8_t> part(data.begin() + ptrdiff_t(2 * i * n),
                                        data.begin() + ptrdiff_t(2 * (i + 1) * n));
        const std::vector<uint8_t> encoded = encode_on_host(int8, args, part, n, 0);
        sources.insert(sources.end(), encoded.begin(), encoded.end());
    }
    const size_t bytes = sources.size() / 3;
    std::vector<const void *> on_host, on_device;
    Buffer inputs(sources), output(tw_quant_encoded_bytes(&int4, n));
    for (size_t k = 0; k < n_inputs; k++) {
        on_host.push_back(sources.data() + k * k % 3 * bytes);
        on_device.push_back(inputs.data() + k * k % 3 * bytes);
    }

    std::vector<uint8_t> expected(tw_quant_encoded_bytes(&int4, n));
    const tw_quant_params_t in_params = {int8, TW_MEM_HOST, nullptr},
                            out_params = {int4, TW_MEM_HOST, nullptr};
    tw_quant_t *host_in = nullptr, *host_out = nullptr, *in = make(int8), *out = make(int4);
    ASSERT_EQ(tw_quant_create(&in_params, &host_in), TW_OK);
    ASSERT_EQ(tw_quant_create(&out_params, &host_out), TW_OK);
    tw_quant_reduce_segment_t segment = {on_host.data(), n_inputs, expected.data(), n, 4, 0};
    EXPECT_EQ(tw_quant_reduce_encode(host_in, host_out, &args, &segment, 1), TW_OK);

    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    args.stream = stream;
    segment.srcs = on_device.data();
    segment.dst = output.data();
    Buffer workspace(tw_quant_reduce_workspace_bytes(in, &segment, 1));
    args.workspace = workspace.data();
    args.workspace_bytes = n_inputs * 8;
    EXPECT_EQ(tw_quant_reduce_encode(in, out, &args, &segment, 1), TW_OK);
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(output.get() == expected);

    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(tw_quant_reduce_encode(in, out, &args, &segment, 1), TW_OK);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    on_device.clear();
    output.set(std::vector<uint8_t>(expected.size(), 0xee));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(output.get() == expected);

    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    for (tw_quant_t *quant : {host_in, host_out, in, out}) {
        tw_quant_destroy(quant);
    }
}

/* Offsets beyond 32 bits, of elements and of bytes. The data repeat with a period that no block divides;
 * frames around 2^31 elements, 2^32 bytes and the end are compared. */
TEST_F(QuantCuda, MoreThan2To31Elements)
{
    const size_t n = (size_t{1} << 31) + 3 * 16384 + 4801, period = 1000003;
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (free_bytes < n * 4) {
        GTEST_SKIP() << "needs " << n * 4 << " bytes of GPU memory, " << free_bytes << " are free";
    }
    const std::vector<uint8_t> pattern = tw::make_data(TW_TYPE_BF16, Data::gauss, period, 1);
    Buffer plain(n * 2), encoded(tw_quant_encoded_bytes(&int8, n));
    plain.set(pattern);
    for (size_t done = period; done < n; done *= 2) {
        CUDA_OK(cudaMemcpy(plain.data() + 2 * done, plain.data(), 2 * std::min(done, n - done),
                           cudaMemcpyDeviceToDevice));
    }
    tw_quant_t *quant = make(int8);
    const tw_quant_args_t args = {TW_TYPE_BF16, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    const tw_quant_segment_t segment = {plain.data(), nullptr, encoded.data(), n, 0, 0};
    ASSERT_EQ(tw_quant_encode(quant, &args, &segment, 1), TW_OK);
    CUDA_OK(cudaDeviceSynchronize());

    const size_t frame = tw_quant_frame_elems(&int8), frame_bytes = tw_quant_frame_bytes(&int8);
    std::vector<size_t> frames = {0, (size_t{1} << 31) / frame - 1, (size_t{1} << 31) / frame, n / frame - 1,
                                  n / frame};
    for (size_t f : frames) {
        const size_t elems = std::min(frame, n - f * frame);
        std::vector<uint8_t> expected_plain(elems * 2);
        for (size_t i = 0; i < elems; i++) {
            memcpy(&expected_plain[2 * i], &pattern[(f * frame + i) % period * 2], 2);
        }
        ASSERT_TRUE(plain.get(f * frame * 2, elems * 2) == expected_plain);
        const std::vector<uint8_t> expected = encode_on_host(int8, args, expected_plain, elems, 0);
        EXPECT_TRUE(encoded.get(f * frame_bytes, expected.size()) == expected) << "frame " << f;
    }

    /* and back, over the source */
    const tw_quant_segment_t back = {encoded.data(), nullptr, plain.data(), n, 0, 0};
    ASSERT_EQ(tw_quant_decode(quant, &args, &back, 1), TW_OK);
    CUDA_OK(cudaDeviceSynchronize());
    for (size_t f : frames) {
        const size_t elems = std::min(frame, n - f * frame);
        const std::vector<uint8_t> frame_encoded =
            encoded.get(f * frame_bytes, tw_quant_encoded_bytes(&int8, elems));
        const tw_quant_params_t params = {int8, TW_MEM_HOST, nullptr};
        tw_quant_t *host = nullptr;
        ASSERT_EQ(tw_quant_create(&params, &host), TW_OK);
        EXPECT_TRUE(plain.get(f * frame * 2, elems * 2) ==
                    tw::decode(host, TW_TYPE_BF16, frame_encoded, elems));
        tw_quant_destroy(host);
    }
    tw_quant_destroy(quant);
}

} // namespace
