/* Calls of more segments than a short list of parameters holds, for every operation: each segment has memory
 * of its own, and every other backend gives what the reference gives. */
#include <array>
#include <functional>

#include "quant/quant.h"
#include "tests/quant/host/twins.h"

namespace
{

using tw::Data;
using tw::Guarded;

constexpr size_t n_segments = 60;

/* Some with nothing in them, some of part of a block, some of several. */
size_t size_of(size_t segment)
{
    return segment % 7 == 3 ? 0 : segment * 37 % 330 + 1;
}

/* An array for each segment. */
using Arrays = std::vector<std::unique_ptr<Guarded>>;

Arrays make_arrays(const std::function<std::vector<uint8_t>(size_t segment)> &content)
{
    Arrays arrays;
    for (size_t s = 0; s < n_segments; s++) {
        arrays.push_back(std::make_unique<Guarded>(content(s), s * 4 % 64));
    }
    return arrays;
}

Arrays plain_arrays(tw_type_t type, uint64_t seed)
{
    return make_arrays([&](size_t s) {
        return tw::make_data(type, s % 5 ? Data::gauss : Data::outlier, size_of(s), seed + s);
    });
}

class QuantSegments : public tw::Twins
{
  protected:
    static tw_quant_args_t args_of(tw_type_t type)
    {
        return {type, 7, 8, 0.5f, nullptr, nullptr, 0, 1};
    }

    static Arrays encoded_arrays(const tw_quant_codec_t &codec)
    {
        return make_arrays(
            [&](size_t s) { return std::vector<uint8_t>(tw_quant_encoded_bytes(&codec, size_of(s)), 0xee); });
    }

    /* What an operation leaves in `dst`. */
    template <class CALL>
    static std::vector<std::vector<uint8_t>> outcome(const Arrays &dst, CALL call)
    {
        std::vector<std::vector<uint8_t>> all;
        EXPECT_EQ(call(), TW_OK);
        for (const auto &each : dst) {
            EXPECT_TRUE(each->intact());
            all.push_back(each->content());
        }
        return all;
    }

    using Operation = tw_status_t (*)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                                      size_t);

    static std::vector<std::vector<uint8_t>> run(const tw_quant_codec_t &codec, tw_type_t type,
                                                 const std::string &backend, Operation operation,
                                                 const Arrays &src, const Arrays &base, const Arrays &dst)
    {
        tw::Codec quant(codec, backend);
        const tw_quant_args_t args = args_of(type);
        std::vector<tw_quant_segment_t> segments;
        for (size_t s = 0; s < n_segments; s++) {
            segments.push_back(
                {src[s]->data(), base[s]->data(), dst[s]->data(), size_of(s), uint32_t(s), s * 1000});
        }
        return outcome(dst, [&] { return operation(quant, &args, segments.data(), segments.size()); });
    }

    static Arrays encoded_by_ref(const tw_quant_codec_t &codec, tw_type_t type, uint64_t seed)
    {
        const Arrays src = plain_arrays(type, seed);
        Arrays dst = encoded_arrays(codec);
        run(codec, type, "ref", tw_quant_encode, src, src, dst);
        return dst;
    }

    static std::vector<std::vector<uint8_t>> encode(const tw_quant_codec_t &codec, tw_type_t type,
                                                    const std::string &backend, bool delta)
    {
        const Arrays src = plain_arrays(delta ? TW_TYPE_FP32 : type, 100), base = plain_arrays(type, 200);
        return run(codec, type, backend, delta ? tw_quant_encode_delta : tw_quant_encode, src, base,
                   encoded_arrays(codec));
    }

    static std::vector<std::vector<uint8_t>> decode(const tw_quant_codec_t &codec, tw_type_t type,
                                                    const std::string &backend, Operation operation)
    {
        const Arrays src = encoded_by_ref(codec, type, 300);
        const Arrays dst = plain_arrays(operation == tw_quant_decode_add ? TW_TYPE_FP32 : type, 400);
        return run(codec, type, backend, operation, src, src, dst);
    }

    static std::vector<std::vector<uint8_t>> reduce(const tw_quant_codec_t &in, const tw_quant_codec_t *out,
                                                    tw_type_t type, const std::string &backend)
    {
        const Arrays first = encoded_by_ref(in, type, 500), second = encoded_by_ref(in, type, 600);
        const Arrays dst = out ? encoded_arrays(*out) : plain_arrays(type, 700);
        tw::Codec in_quant(in, backend), out_quant(out ? *out : in, backend);
        const tw_quant_args_t args = args_of(type);
        std::vector<std::array<const void *, 2>> srcs;
        std::vector<tw_quant_reduce_segment_t> segments;
        for (size_t s = 0; s < n_segments; s++) {
            srcs.push_back({first[s]->data(), second[s]->data()});
        }
        for (size_t s = 0; s < n_segments; s++) {
            segments.push_back({srcs[s].data(), 2, dst[s]->data(), size_of(s), uint32_t(s), s});
        }
        return outcome(dst, [&] {
            return out ? tw_quant_reduce_encode(in_quant, out_quant, &args, segments.data(), segments.size())
                       : tw_quant_reduce_decode(in_quant, &args, segments.data(), segments.size());
        });
    }

    static std::vector<std::vector<uint8_t>> adamw(const tw_quant_codec_t &codec, tw_type_t type,
                                                   const std::string &backend)
    {
        const Arrays grad = plain_arrays(TW_TYPE_BF16, 1), master = plain_arrays(TW_TYPE_FP32, 2),
                     m = plain_arrays(TW_TYPE_FP32, 3), replica = plain_arrays(type, 2),
                     dst = encoded_arrays(codec);
        const Arrays v = make_arrays([](size_t s) { return std::vector<uint8_t>(4 * size_of(s), 0x3d); });
        const tw_quant_adamw_t step = {0.001, 0.9, 0.95, 1e-8, 0.1, 3, TW_TYPE_BF16, nullptr};
        const tw_quant_args_t args = args_of(type);
        tw::Codec quant(codec, backend);
        std::vector<tw_quant_adamw_segment_t> segments;
        for (size_t s = 0; s < n_segments; s++) {
            segments.push_back({grad[s]->data(), reinterpret_cast<float *>(master[s]->data()),
                                reinterpret_cast<float *>(m[s]->data()),
                                reinterpret_cast<float *>(v[s]->data()), replica[s]->data(), dst[s]->data(),
                                size_of(s), uint32_t(s), s});
        }
        return outcome(dst, [&] {
            return tw_quant_adamw_encode_delta(quant, &args, &step, segments.data(), segments.size());
        });
    }

    template <class RUN>
    void compare(const char *what, const tw_quant_codec_t &codec, tw_type_t type, RUN run_on)
    {
        const auto expected = run_on(std::string("ref"));
        for (const std::string &twin : twins) {
            ASSERT_TRUE(run_on(twin) == expected)
                << what << " " << twin << " " << tw::text_of(codec) << " " << tw_type_name(type);
        }
    }

    /* Of each kind the codecs that are listed first and last: plain, and with all that it has. */
    static std::vector<tw_quant_codec_t> codecs()
    {
        std::vector<tw_quant_codec_t> all;
        const std::vector<tw_quant_codec_t> each = tw::all_codecs({64});
        for (size_t i = 0; i < each.size(); i++) {
            const bool first = i == 0 || each[i - 1].kind != each[i].kind;
            const bool last = i + 1 == each.size() || each[i + 1].kind != each[i].kind;
            if (first || last) {
                all.push_back(each[i]);
            }
        }
        return all;
    }
};

const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};

TEST_F(QuantSegments, Encode)
{
    for (const tw_quant_codec_t &codec : codecs()) {
        for (tw_type_t type : types) {
            for (bool delta : {false, true}) {
                ASSERT_NO_FATAL_FAILURE(compare("encode", codec, type, [&](const std::string &backend) {
                    return encode(codec, type, backend, delta);
                }));
            }
        }
    }
}

TEST_F(QuantSegments, Decode)
{
    for (const tw_quant_codec_t &codec : codecs()) {
        for (tw_type_t type : types) {
            for (Operation operation : {tw_quant_decode, tw_quant_decode_add, tw_quant_decode_apply}) {
                ASSERT_NO_FATAL_FAILURE(compare("decode", codec, type, [&](const std::string &backend) {
                    return decode(codec, type, backend, operation);
                }));
            }
        }
    }
}

TEST_F(QuantSegments, Reduce)
{
    for (const tw_quant_codec_t &in : codecs()) {
        if (!tw_quant_row_get(in.kind)->sums) {
            continue;
        }
        for (tw_type_t type : types) {
            ASSERT_NO_FATAL_FAILURE(compare("reduce_decode", in, type, [&](const std::string &backend) {
                return reduce(in, nullptr, type, backend);
            }));
        }
        for (const tw_quant_codec_t &out : tw::sum_codecs({64})) {
            ASSERT_NO_FATAL_FAILURE(
                compare("reduce_encode", out, TW_TYPE_FP32,
                        [&](const std::string &backend) { return reduce(in, &out, TW_TYPE_FP32, backend); }));
        }
    }
}

TEST_F(QuantSegments, Adamw)
{
    for (const tw_quant_codec_t &codec : codecs()) {
        for (tw_type_t type : types) {
            ASSERT_NO_FATAL_FAILURE(compare("adamw", codec, type, [&](const std::string &backend) {
                return adamw(codec, type, backend);
            }));
        }
    }
}

} // namespace
