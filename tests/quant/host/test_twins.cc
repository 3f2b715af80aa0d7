/* Every SIMD backend against the reference: equal bytes, equal values, equal counts, for every operation.
 * Other programs do the same with backends of their own: the CUDA kernels on an emulator, and on a GPU. */
#include <cstring>

#include "quant/quant.h"
#include "tests/quant/host/twins.h"

namespace
{

using tw::Data;
using tw::Guarded;
using tw::same_values;

/* One comparison: what varies between two calls. */
struct Case {
    tw_quant_codec_t codec;
    tw_type_t type;
    Data data;
    size_t n;
    size_t offset; /* of every pointer, in elements for plain ones and bytes for encoded ones */

    tw_quant_args_t args() const
    {
        return {type, 0x1234567890abcdefull + n, uint32_t(n * 3), 0.25f, nullptr, nullptr, 0, n % 2 == 1};
    }
    size_t encoded_bytes() const
    {
        return tw_quant_encoded_bytes(&codec, n);
    }
};

std::ostream &operator<<(std::ostream &out, const Case &c)
{
    return out << c.codec << " " << tw_type_name(c.type) << " " << tw::name_of(c.data) << " n=" << c.n
               << " offset=" << c.offset;
}

/* What an operation left behind. */
struct Result {
    std::vector<uint8_t> dst;
    uint64_t nonfinite;
};

class QuantTwins : public tw::Twins
{
  protected:
    /* Is it another case's turn? Slow backends take some of the cases. */
    bool passed_over()
    {
        return turn_++ % tw::extra_backends_take_every() != 0;
    }

    using Operation = tw_status_t (*)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                                      size_t);

    Result run(const Case &c, const std::string &backend, Operation operation,
               const std::vector<uint8_t> &src, size_t src_offset, const std::vector<uint8_t> &base,
               const std::vector<uint8_t> &before, size_t dst_offset)
    {
        tw::Codec quant(c.codec, backend);
        const tw_quant_args_t args = c.args();
        Guarded source(src, src_offset), plain(base, c.offset * tw_type_bytes(c.type)),
            dst(before, dst_offset);
        const tw_quant_segment_t segment = {source.data(), plain.data(), dst.data(),
                                            c.n,           77,           c.n * 5 + c.offset};
        EXPECT_EQ(operation(quant, &args, &segment, 1), TW_OK);
        EXPECT_TRUE(dst.intact()) << backend << " wrote outside: " << c;
        return {dst.content(), tw_quant_nonfinite_blocks(quant)};
    }

    Result encode(const Case &c, const std::string &backend)
    {
        return run(c, backend, tw_quant_encode, make_data(c.type, c.data, c.n, c.n),
                   c.offset * tw_type_bytes(c.type), {}, std::vector<uint8_t>(c.encoded_bytes(), 0xee),
                   c.offset);
    }

    Result encode_delta(const Case &c, const std::string &backend)
    {
        return run(c, backend, tw_quant_encode_delta, make_data(TW_TYPE_FP32, c.data, c.n, c.n), c.offset * 4,
                   make_data(c.type, Data::gauss, c.n, c.n + 1),
                   std::vector<uint8_t>(c.encoded_bytes(), 0xee), c.offset);
    }

    Result decode(const Case &c, const std::string &backend, Operation operation,
                  const std::vector<uint8_t> &encoded)
    {
        const tw_type_t type = operation == tw_quant_decode_add ? TW_TYPE_FP32 : c.type;
        const Data before = operation == tw_quant_decode_apply ? c.data : Data::gauss;
        return run(c, backend, operation, encoded, c.offset, {}, make_data(type, before, c.n, c.n + 2),
                   c.offset * tw_type_bytes(type));
    }

    /* `inputs` segments encoded with c.codec, reduced into `out` or, if that is NULL, into plain values. */
    Result reduce(const Case &c, const std::string &backend, const std::vector<std::vector<uint8_t>> &inputs,
                  const tw_quant_codec_t *out)
    {
        tw::Codec in_quant(c.codec, backend), out_quant(out ? *out : c.codec, backend);
        const tw_quant_args_t args = c.args();
        std::vector<std::unique_ptr<Guarded>> sources;
        std::vector<const void *> pointers;
        for (const std::vector<uint8_t> &input : inputs) {
            sources.push_back(std::make_unique<Guarded>(input, c.offset));
            pointers.push_back(sources.back()->data());
        }
        const size_t bytes = out ? tw_quant_encoded_bytes(out, c.n) : c.n * tw_type_bytes(c.type);
        Guarded dst(bytes, out ? c.offset : c.offset * tw_type_bytes(c.type));
        const tw_quant_reduce_segment_t segment = {pointers.data(), pointers.size(), dst.data(), c.n, 5,
                                                   c.n + c.offset};
        EXPECT_EQ(out ? tw_quant_reduce_encode(in_quant, out_quant, &args, &segment, 1)
                      : tw_quant_reduce_decode(in_quant, &args, &segment, 1),
                  TW_OK);
        EXPECT_TRUE(dst.intact()) << backend << " wrote outside: " << c;
        return {dst.content(), tw_quant_nonfinite_blocks(out_quant)};
    }

    void compare_encode(const Case &c)
    {
        const Result expected = encode(c, "ref");
        for (const std::string &twin : twins) {
            expect_equal(c, twin, expected, encode(c, twin));
        }
    }

    void compare_encode_delta(const Case &c)
    {
        const Result expected = encode_delta(c, "ref");
        for (const std::string &twin : twins) {
            expect_equal(c, twin, expected, encode_delta(c, twin));
        }
    }

    void compare_decode(const Case &c, Operation operation, const std::vector<uint8_t> &encoded)
    {
        const Result expected = decode(c, "ref", operation, encoded);
        for (const std::string &twin : twins) {
            ASSERT_NO_FATAL_FAILURE(expect_equal(c, twin, expected, decode(c, twin, operation, encoded)));
        }
    }

    void compare_reduce(const Case &c, const std::vector<std::vector<uint8_t>> &inputs,
                        const tw_quant_codec_t *out)
    {
        const Result expected = reduce(c, "ref", inputs, out);
        for (const std::string &twin : twins) {
            const Result got = reduce(c, twin, inputs, out);
            if (out) {
                expect_equal(c, twin, expected, got);
            } else {
                ASSERT_TRUE(same_values(c.type, expected.dst, got.dst)) << twin << ": " << c;
            }
        }
    }

    static void expect_equal(const Case &c, const std::string &twin, const Result &expected,
                             const Result &got)
    {
        ASSERT_EQ(expected.dst, got.dst) << twin << ": " << c;
        ASSERT_EQ(expected.nonfinite, got.nonfinite) << twin << ": " << c;
    }

    /* One, some, as many as are added up at once, and more. */
    static constexpr size_t input_counts[] = {1, 2, 3, 4, 5, 9};

    std::vector<std::vector<uint8_t>> make_inputs(const Case &c, size_t n_inputs)
    {
        std::vector<std::vector<uint8_t>> inputs;
        for (size_t k = 0; k < n_inputs; k++) {
            Case input = c;
            input.data = k % 2 ? Data::gauss : c.data;
            inputs.push_back(encode(input, "ref").dst);
        }
        return inputs;
    }

    /* One of the operations; `which` picks it. */
    void compare_one(const Case &c, size_t which)
    {
        if (passed_over()) {
            return;
        }
        switch (tw_quant_row_get(c.codec.kind)->sums ? which % 7 : which % 5) {
        case 0:
            return compare_encode(c);
        case 1:
            return compare_decode(c, tw_quant_decode, encode(c, "ref").dst);
        case 2:
            return compare_decode(c, tw_quant_decode_add, encode(c, "ref").dst);
        case 3:
            return compare_encode_delta(c);
        case 4:
            return compare_decode(c, tw_quant_decode_apply, encode(c, "ref").dst);
        case 5:
            return compare_reduce(c, make_inputs(c, input_counts[which / 7 % 6]), nullptr);
        default: {
            const std::vector<tw_quant_codec_t> outs = tw::sum_codecs({32, 96, 128, 2048});
            return compare_reduce(c, make_inputs(c, input_counts[which / 7 % 6]),
                                  &outs[which / 7 % outs.size()]);
        }
        }
    }

  private:
    size_t turn_ = 0;
};

const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};

/* Every size, each codec; types, data, operations and offsets take turns, so that all meet. */
TEST_F(QuantTwins, EverySize)
{
    size_t turn = 0;
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 128, 2048})) {
        for (size_t n = 0; n <= 4100; n += n < 300 ? 1 : 7 + turn % 13, turn++) {
            const Case c = {codec, types[turn % 3], Data(turn / 3 % tw::n_data), n, turn * 7 % 64};
            ASSERT_NO_FATAL_FAILURE(compare_one(c, turn / 2));
        }
    }
}

TEST_F(QuantTwins, EverySizeOfInt8AndInt4)
{
    for (const char *text : {"int8", "int4", "int4:hadamard", "int2"}) {
        tw_quant_codec_t codec;
        ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
        for (size_t n = 0; n <= 4100; n++) {
            if (passed_over()) {
                continue;
            }
            const Case c = {codec, types[n % 3], Data::gauss, n, n * 5 % 64};
            const Result expected = encode(c, "ref");
            for (const std::string &twin : twins) {
                ASSERT_NO_FATAL_FAILURE(expect_equal(c, twin, expected, encode(c, twin)));
            }
            ASSERT_NO_FATAL_FAILURE(compare_decode(c, tw_quant_decode, expected.dst));
        }
    }
}

/* Every codec, type, kind of data and operation, at sizes around a block. */
TEST_F(QuantTwins, EveryCombination)
{
    size_t turn = 0;
    for (const tw_quant_codec_t &codec : tw::all_codecs({64, 160, 4096})) {
        for (tw_type_t type : types) {
            for (int data = 0; data < tw::n_data; data++) {
                for (size_t which = 0; which < 7; which++, turn++) {
                    const size_t block = size_t(codec.block),
                                 sizes[] = {block - 1, block, block + 1, 3 * block + 45, 45, 1};
                    const size_t n = sizes[turn % (block > 1000 && turn % 8 ? 3 : 6)];
                    if (block > 1000 && turn % 3) {
                        continue;
                    }
                    const Case c = {codec, type, Data(data), n, turn * 3 % 64};
                    ASSERT_NO_FATAL_FAILURE(compare_one(c, which + 7 * turn));
                }
            }
        }
    }
}

TEST_F(QuantTwins, EveryBlockSize)
{
    size_t turn = 0;
    for (int block = 32; block <= 4096; block += 32) {
        for (tw_quant_kind_t kind : tw::block_kinds()) {
            const tw_quant_codec_t codec = {
                kind, block, tw_quant_scale_t(turn & 1), TW_QUANT_ROUND_NEAREST, int(turn >> 1 & 1), 0};
            for (size_t which = 0; which < 7; which++, turn++) {
                const Case c = {codec, types[turn % 3], Data::gauss, 9 * 160 + size_t(block), turn % 64};
                ASSERT_NO_FATAL_FAILURE(compare_one(c, which));
            }
        }
    }
}

/* Whichever element of a group it is that a sum takes over the top: only that one saturates. */
TEST_F(QuantTwins, OneElementSaturates)
{
    const tw_quant_codec_t codec = {TW_QUANT_INT8, 64, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};
    for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16}) {
        const uint16_t largest = type == TW_TYPE_BF16 ? 0x7f7f : 0x7bff;
        const uint16_t change =
            type == TW_TYPE_BF16 ? 0x7b40 : 0x6bff; /* enough for the type, not for fp32 */
        for (size_t at = 0; at < 64; at++) {
            const Case c = {codec, type, Data::zeros, 64, 0};
            std::vector<uint8_t> before(128, 0), changes(128, 0);
            memcpy(before.data() + 2 * at, &largest, 2);
            memcpy(changes.data() + 2 * at, &change, 2);
            tw::Codec reference(codec, "ref");
            const std::vector<uint8_t> encoded = tw::encode(reference, type, changes);
            const Result expected = run(c, "ref", tw_quant_decode_apply, encoded, 0, {}, before, 0);
            ASSERT_EQ(expected.dst, before) << c << " element " << at;
            for (const std::string &twin : twins) {
                expect_equal(c, twin, expected,
                             run(c, twin, tw_quant_decode_apply, encoded, 0, {}, before, 0));
            }
        }
    }
}

/* A NaN that a change comes to stays the one it was, which a GPU's conversions would not leave it. */
TEST_F(QuantTwins, ApplyKeepsNan)
{
    for (const char *text : {"int8", "int4", "fp8"}) {
        tw_quant_codec_t codec;
        ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
        for (tw_type_t type : types) {
            const Case c = {codec, type, Data::gauss, 70, 0};
            const std::vector<uint8_t> encoded = encode(c, "ref").dst;
            std::vector<uint8_t> before = make_data(type, Data::gauss, c.n, 1);
            const size_t bytes = tw_type_bytes(type);
            for (size_t i = 0; i < c.n; i += 3) {
                const uint32_t sign = i % 2 ? 0x80000000u : 0, nan = type == TW_TYPE_FP16 ? 0x7c00u : 0x7f80u;
                const uint32_t bits = (sign | nan << 16 | (uint32_t)(i + 1) << 16) >> (bytes == 2 ? 16 : 0);
                memcpy(&before[i * bytes], &bits, bytes);
            }
            const Result expected = run(c, "ref", tw_quant_decode_apply, encoded, 0, {}, before, 0);
            for (const std::string &twin : twins) {
                ASSERT_NO_FATAL_FAILURE(expect_equal(
                    c, twin, expected, run(c, twin, tw_quant_decode_apply, encoded, 0, {}, before, 0)));
            }
        }
    }
}

/* Bytes that no encoder made: any scale, any code. Nothing is read or written outside, and the values
 * agree. */
TEST_F(QuantTwins, ForeignBytes)
{
    size_t turn = 0;
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 128})) {
        for (size_t n : {size_t{1}, size_t{100}, size_t{1500}}) {
            for (tw_type_t type : types) {
                const Case c = {codec, type, Data::gauss, n, turn++ % 64};
                std::vector<uint8_t> noise =
                    make_data(TW_TYPE_FP32, Data::spread, c.encoded_bytes() / 4 + 1, turn);
                std::vector<uint8_t> random(c.encoded_bytes());
                for (size_t i = 0; i < random.size(); i++) {
                    random[i] = uint8_t(noise[i] * 167 + noise[(i * 31) % noise.size()]);
                }
                for (Operation operation : {tw_quant_decode, tw_quant_decode_add, tw_quant_decode_apply}) {
                    ASSERT_NO_FATAL_FAILURE(compare_decode(c, operation, random));
                }
                if (tw_quant_row_get(codec.kind)->sums) {
                    ASSERT_NO_FATAL_FAILURE(compare_reduce(c, {random, random}, &codec));
                }
            }
        }
    }
}

/* Of the longest blocks each is a batch of its own: their values and random words fill what there is. */
TEST_F(QuantTwins, TheLongestBlocks)
{
    for (tw_quant_kind_t kind : {TW_QUANT_INT8, TW_QUANT_INT4}) {
        for (tw_quant_round_t round : {TW_QUANT_ROUND_NEAREST, TW_QUANT_ROUND_STOCHASTIC}) {
            for (int hadamard : {0, 1}) {
                const tw_quant_codec_t codec = {kind,  TW_QUANT_BLOCK_MAX, TW_QUANT_SCALE_BF16,
                                                round, hadamard,           0};
                const Case c = {codec, TW_TYPE_BF16, Data::gauss, 3 * TW_QUANT_BLOCK_MAX + 17, 0};
                compare_encode(c);
                compare_encode_delta(c);
            }
        }
    }
}

} // namespace
