/* Contexts: creation, dispatch, refused arguments, many segments, many threads. */
#include <cmath>
#include <cstring>
#include <thread>

#include "quant/arithmetic/float.h"
#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;
using Quant = tw::Fixture;

const tw_quant_codec_t int8_codec = {TW_QUANT_INT8, 64, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};

TEST_F(Quant, BackendsAreBestFirstAndTheReferenceIsAlwaysThere)
{
    const std::vector<std::string> names = tw::host_backends(true);
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.back(), "ref");
    for (const char *name : {static_cast<const char *>(nullptr), "auto"}) {
        const tw_quant_params_t params = {int8_codec, TW_MEM_HOST, name};
        tw_quant_t *quant;
        ASSERT_EQ(tw_quant_create(&params, &quant), TW_OK);
        EXPECT_EQ(tw_quant_backend_name(quant), names.front());
        EXPECT_TRUE(tw_quant_codec_equal(tw_quant_codec_get(quant), &int8_codec));
        EXPECT_EQ(tw_quant_nonfinite_blocks(quant), 0u);
        tw_quant_destroy(quant);
    }
    const char *one[1];
    EXPECT_EQ(tw_quant_backends(TW_MEM_HOST, one, 1), 1u);
    tw_quant_destroy(nullptr);
}

TEST_F(Quant, CreateRefusesUnknownBackendsAndBadCodecs)
{
    tw_quant_t *quant = nullptr;
    tw_quant_params_t params = {int8_codec, TW_MEM_HOST, "abacus"};
    expect_log("no backend 'abacus' for host memory on this machine; there is:");
    EXPECT_EQ(tw_quant_create(&params, &quant), TW_ERR_UNSUPPORTED);
    params.backend = "ref";
    params.mem = TW_MEM_CUDA;
    expect_log("no backend 'ref' for CUDA memory");
    EXPECT_EQ(tw_quant_create(&params, &quant), TW_ERR_UNSUPPORTED);
    params.mem = TW_MEM_HOST;
    params.codec.kind = tw_quant_kind_t(99);
    expect_log("there is no codec 99");
    EXPECT_EQ(tw_quant_create(&params, &quant), TW_ERR_INVALID);
    EXPECT_EQ(quant, nullptr);
}

using Operation = tw_status_t (*)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *, size_t);
const Operation typed[] = {tw_quant_encode, tw_quant_decode, tw_quant_encode_delta, tw_quant_decode_apply};

/* Bytes of such a segment would wrap, to fewer than it has elements. */
TEST_F(Quant, RefusesMoreElementsThanFitInMemory)
{
    const size_t endless = SIZE_MAX - 62;
    EXPECT_EQ(tw_quant_encoded_bytes(&int8_codec, endless), SIZE_MAX);
    EXPECT_EQ(tw_quant_encoded_bytes(&int8_codec, TW_MEMORY_BYTES_MAX + 1), SIZE_MAX);
    EXPECT_GT(tw_quant_encoded_bytes(&int8_codec, TW_MEMORY_BYTES_MAX), TW_MEMORY_BYTES_MAX);
    EXPECT_LT(tw_quant_encoded_bytes(&int8_codec, TW_MEMORY_BYTES_MAX), 2 * TW_MEMORY_BYTES_MAX);
    EXPECT_EQ(tw_quant_delta_bound_bytes(SIZE_MAX / 2), SIZE_MAX);
    tw::Codec quant(int8_codec, "auto");
    tw_quant_args_t args = {};
    args.factor = 1;
    std::vector<float> memory(64);
    void *at = memory.data();
    const void *srcs[] = {at};
    const tw_quant_segment_t segments[] = {{at, at, at, 1, 0, 0}, {at, at, at, endless, 0, 0}};
    const tw_quant_reduce_segment_t reduced = {srcs, 1, at, endless, 0, 0};
    const tw_quant_adamw_t adamw = {1, 0.9, 0.9, 1, 0, 1, TW_TYPE_FP32, nullptr};
    const tw_quant_adamw_segment_t updated = {
        at, memory.data(), memory.data(), memory.data(), at, at, endless, 0, 0};
    expect_log("segment 1 has 18446744073709551553 elements, more than fit in memory");
    for (Operation operation : typed) {
        EXPECT_EQ(operation(quant, &args, segments, 2), TW_ERR_INVALID);
    }
    EXPECT_EQ(tw_quant_decode_add(quant, &args, segments, 2), TW_ERR_INVALID);
    expect_log("segment 0 has 18446744073709551553 elements, more than fit in memory");
    EXPECT_EQ(tw_quant_reduce_encode(quant, quant, &args, &reduced, 1), TW_ERR_INVALID);
    EXPECT_EQ(tw_quant_reduce_decode(quant, &args, &reduced, 1), TW_ERR_INVALID);
    EXPECT_EQ(tw_quant_adamw_encode_delta(quant, &args, &adamw, &updated, 1), TW_ERR_INVALID);
}

TEST_F(Quant, RefusesTypesThatHaveNoValues)
{
    expect_log("can not be quantized");
    tw::Codec quant(int8_codec, "auto");
    uint8_t a[512] = {0}, b[512] = {0}, c[512] = {0};
    const tw_quant_segment_t segment = {a, b, c, 64, 0, 0};
    const void *srcs[] = {a};
    const tw_quant_reduce_segment_t sum = {srcs, 1, c, 64, 0, 0};
    for (int type : {int(TW_TYPE_BYTE), 4, -1, 99}) {
        const tw_quant_args_t args = {tw_type_t(type), 0, 0, 1.0f, nullptr, nullptr, 0, 0};
        for (Operation operation : typed) {
            EXPECT_EQ(operation(quant, &args, &segment, 1), TW_ERR_INVALID);
        }
        EXPECT_EQ(tw_quant_reduce_decode(quant, &args, &sum, 1), TW_ERR_INVALID);
        EXPECT_EQ(tw_quant_decode_add(quant, &args, &segment, 1), TW_OK) << "ignores the type";
        EXPECT_EQ(tw_quant_reduce_encode(quant, quant, &args, &sum, 1), TW_OK) << "has no plain side";
    }
}

TEST_F(Quant, RefusesNullPointersAndTouchesNothing)
{
    expect_log("segment 1 has a NULL pointer");
    tw::Codec quant(int8_codec, "auto");
    const tw_quant_args_t args = {TW_TYPE_FP32, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    std::vector<uint8_t> a(512, 1), b(512, 1), c(512, 0x77);
    const tw_quant_segment_t good = {a.data(), b.data(), c.data(), 64, 0, 0};
    tw_quant_segment_t no_src = good, no_dst = good, no_base = good;
    no_src.src = nullptr;
    no_dst.dst = nullptr;
    no_base.base = nullptr;
    for (Operation operation : {tw_quant_encode, tw_quant_decode, tw_quant_decode_add, tw_quant_encode_delta,
                                tw_quant_decode_apply}) {
        for (const tw_quant_segment_t &bad : {no_src, no_dst}) {
            const tw_quant_segment_t segments[] = {good, bad};
            EXPECT_EQ(operation(quant, &args, segments, 2), TW_ERR_INVALID);
        }
    }
    const tw_quant_segment_t segments[] = {good, no_base};
    EXPECT_EQ(tw_quant_encode_delta(quant, &args, segments, 2), TW_ERR_INVALID);
    EXPECT_EQ(c, std::vector<uint8_t>(512, 0x77));
}

TEST_F(Quant, RefusesReductionsOfNothing)
{
    tw::Codec quant(int8_codec, "auto");
    tw_quant_args_t args = {TW_TYPE_FP32, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    uint8_t a[512] = {0}, c[512];
    const void *srcs[] = {a, nullptr};
    const tw_quant_reduce_segment_t none = {srcs, 0, c, 64, 0, 0}, null_input = {srcs, 2, c, 64, 0, 0},
                                    null_list = {nullptr, 1, c, 64, 0, 0},
                                    null_dst = {srcs, 1, nullptr, 64, 0, 0}, good = {srcs, 1, c, 64, 0, 0};
    expect_log("has no inputs");
    expect_log("has a NULL pointer");
    for (const tw_quant_reduce_segment_t &bad : {none, null_input, null_list, null_dst}) {
        EXPECT_EQ(tw_quant_reduce_decode(quant, &args, &bad, 1), TW_ERR_INVALID);
        EXPECT_EQ(tw_quant_reduce_encode(quant, quant, &args, &bad, 1), TW_ERR_INVALID);
    }
    expect_log("factor is");
    for (float factor : {NAN, INFINITY, -INFINITY}) {
        args.factor = factor;
        EXPECT_EQ(tw_quant_reduce_decode(quant, &args, &good, 1), TW_ERR_INVALID);
        EXPECT_EQ(tw_quant_reduce_encode(quant, quant, &args, &good, 1), TW_ERR_INVALID);
    }
}

TEST_F(Quant, RefusesReductionsOfTwoBits)
{
    const tw_quant_codec_t int2_codec = {TW_QUANT_INT2,          64, TW_QUANT_SCALE_BF16,
                                         TW_QUANT_ROUND_NEAREST, 0,  0};
    const tw_quant_args_t args = {TW_TYPE_FP32, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    uint8_t a[512] = {0}, c[512];
    const void *srcs[] = {a};
    const tw_quant_reduce_segment_t sum = {srcs, 1, c, 64, 0, 0};
    expect_log("does not sum");
    for (const std::string &backend : tw::host_backends(true)) {
        tw::Codec int8(int8_codec, backend), int2(int2_codec, backend);
        EXPECT_EQ(tw_quant_reduce_decode(int2, &args, &sum, 1), TW_ERR_UNSUPPORTED);
        EXPECT_EQ(tw_quant_reduce_encode(int2, int8, &args, &sum, 1), TW_ERR_UNSUPPORTED);
        EXPECT_EQ(tw_quant_reduce_encode(int8, int2, &args, &sum, 1), TW_ERR_UNSUPPORTED);
    }
}

TEST_F(Quant, NoElementsIsNothingToDo)
{
    const tw_quant_segment_t empty = {nullptr, nullptr, nullptr, 0, 0, 0};
    const tw_quant_reduce_segment_t empty_sum = {nullptr, 0, nullptr, 0, 0, 0};
    const tw_quant_args_t args = {TW_TYPE_BF16, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    for (const std::string &backend : tw::host_backends(true)) {
        tw::Codec quant(int8_codec, backend);
        for (Operation operation : typed) {
            EXPECT_EQ(operation(quant, &args, &empty, 1), TW_OK);
            EXPECT_EQ(operation(quant, &args, nullptr, 0), TW_OK);
        }
        EXPECT_EQ(tw_quant_decode_add(quant, &args, &empty, 1), TW_OK);
        EXPECT_EQ(tw_quant_reduce_decode(quant, &args, &empty_sum, 1), TW_OK);
        EXPECT_EQ(tw_quant_reduce_encode(quant, quant, &args, &empty_sum, 1), TW_OK);
    }
}

/* A vector of segments is each of them alone. */
TEST_F(Quant, ManySegmentsInOneCall)
{
    const tw_quant_codec_t codec = {TW_QUANT_INT4, 96, TW_QUANT_SCALE_FP32, TW_QUANT_ROUND_STOCHASTIC, 1, 0};
    const size_t sizes[] = {1, 0, 1000, 96, 31, 5000};
    for (const std::string &backend : tw::host_backends(true)) {
        tw::Codec quant(codec, backend);
        const tw_quant_args_t args = {TW_TYPE_FP16, 1, 2, 1.0f, nullptr, nullptr, 0, 0};
        std::vector<std::vector<uint8_t>> plain, encoded, decoded;
        std::vector<tw_quant_segment_t> encode, decode;
        for (size_t n : sizes) {
            plain.push_back(tw::make_data(TW_TYPE_FP16, Data::gauss, n, n));
            encoded.push_back(std::vector<uint8_t>(tw_quant_encoded_bytes(&codec, n)));
            decoded.push_back(std::vector<uint8_t>(2 * n));
            const uint32_t tensor = uint32_t(plain.size());
            encode.push_back({plain.back().data(), nullptr, encoded.back().data(), n, tensor, n * 7});
            decode.push_back({encoded.back().data(), nullptr, decoded.back().data(), n, tensor, n * 7});
        }
        ASSERT_EQ(tw_quant_encode(quant, &args, encode.data(), encode.size()), TW_OK);
        ASSERT_EQ(tw_quant_decode(quant, &args, decode.data(), decode.size()), TW_OK);
        for (size_t i = 0; i < encode.size(); i++) {
            const tw::Place place = {1, encode[i].first_elem, 2, encode[i].tensor};
            EXPECT_EQ(encoded[i], tw::encode(quant, TW_TYPE_FP16, plain[i], place));
            EXPECT_EQ(decoded[i], tw::decode(quant, TW_TYPE_FP16, encoded[i], encode[i].n_elems));
        }
    }
}

TEST_F(Quant, ThreadsShareAContext)
{
    const size_t n = 64 * 50;
    std::vector<uint8_t> plain = tw::make_data(TW_TYPE_BF16, Data::gauss, n, 1);
    for (size_t b = 0; b < 10; b++) {
        tw_float_store(TW_TYPE_BF16, plain.data(), b * 64, NAN);
    }
    for (const std::string &backend : tw::host_backends(true)) {
        tw::Codec quant(int8_codec, backend);
        const std::vector<uint8_t> expected = tw::encode(quant, TW_TYPE_BF16, plain);
        const int n_threads = 4, n_calls = 50;
        std::vector<int> wrong(n_threads, 0);
        std::vector<std::thread> threads;
        for (int t = 0; t < n_threads; t++) {
            threads.emplace_back([&, t] {
                for (int i = 0; i < n_calls; i++) {
                    wrong[size_t(t)] += tw::encode(quant, TW_TYPE_BF16, plain) != expected;
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        EXPECT_EQ(wrong, std::vector<int>(n_threads, 0)) << backend;
        EXPECT_EQ(tw_quant_nonfinite_blocks(quant), 10u * (n_threads * n_calls + 1)) << backend;
    }
}

} // namespace
