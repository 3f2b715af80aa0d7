/* The bits of messages, written down: a codec keeps them from one release to the next. Every row of the table
 * of codecs is here, with the hash of what the reference makes of the same numbers. */
#include <cmath>
#include <set>

#include "quant/arithmetic/float.h"
#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace
{

using Recording = tw::Fixture;

constexpr size_t n_elems = 70000; /* more than a block of the lossless codecs, and no round number */

struct Line {
    const char *codec;
    uint64_t hash;
};

const Line lines[] = {
    {"int8", 0x9c1efb6a84acb1b6},
    {"int8:hadamard", 0x211e26cdf746cb1b},
    {"int8:block=96,stochastic,scale=fp32", 0xfb20054075837c70},
    {"int4", 0x9431f192d7a61469},
    {"int4:block=64,hadamard,stochastic", 0xfb1cd1bf2e8429af},
    {"int4:scale=fp32", 0x39e505e17df8ab0a},
    {"int2", 0xe4658861c1c69dc1},
    {"int2:hadamard,scale=fp32", 0xc5a59a68736084ac},
    {"fp8", 0xa079de415531b230},
    {"fp8:block=64,hadamard,scale=fp32", 0xd11d571b7576c93f},
    {"lossless", 0x4e66a3567cc5daab},
    {"delta", 0xa2403bfb49b52f45},
    {"ecdq", 0x7c4c924c95dc112f},
    {"ecdq:step=0.5", 0x8a75ae15f7a2a5a0},
    {"ecdq:step=3.5", 0xc6cd21297435060e},
};

/** Numbers about as gradients are, made of integers so that they are the same with any library; strange:
 *  some of them are huge, tiny, or none. */
std::vector<uint8_t> numbers(tw_type_t type, bool strange)
{
    std::vector<uint8_t> array(n_elems * tw_type_bytes(type));
    for (uint64_t i = 0; i < n_elems; i++) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        const int sum = int(z & 0xffff) + int(z >> 16 & 0xffff) + int(z >> 32 & 0xffff) - int(z >> 48) * 3;
        float value = std::ldexp(float(sum), int(i / 700 % 13) - 24);
        if (strange && i % 911 == 0) {
            value = i % 2 == 0 ? value * 1e4f : value * 1e-4f;
        }
        tw_float_store_saturate(type, array.data(), i, strange && i % 9001 == 9000 ? NAN : value);
    }
    return array;
}

std::vector<uint8_t> message_of_blocks(const tw_quant_codec_t &codec, tw_type_t type, bool strange)
{
    tw::Codec quant(codec, "ref");
    return tw::encode(quant, type, numbers(type, strange), {11, 1000, 3, 4});
}

std::vector<uint8_t> message_that_says_its_length(const tw_quant_codec_t &codec, tw_type_t type, bool strange)
{
    const std::vector<uint8_t> plain = numbers(type, strange);
    std::vector<uint8_t> message(tw_quant_bound_bytes(&codec, type, n_elems));
    tw_quant_messages_t *messages = nullptr;
    tw_quant_message_segment_t segment = {};
    segment.src = plain.data();
    segment.n_elems = n_elems;
    segment.row_elems = 700;
    size_t bytes = 0;
    const tw_quant_message_args_t args = {type, &segment, 1, 0x123456789abcdef0};
    EXPECT_EQ(tw_quant_messages_create(&codec, "ref", &messages), TW_OK);
    EXPECT_EQ(tw_quant_messages_encode(messages, &args, message.data(), message.size(), &bytes), TW_OK);
    tw_quant_messages_destroy(messages);
    message.resize(bytes);
    return message;
}

/** The second message of a tensor: the first one's change is its context. */
std::vector<uint8_t> message_of_changes(bool strange)
{
    std::vector<uint8_t> old = numbers(TW_TYPE_BF16, strange), fresh = old, states(n_elems, 0);
    std::vector<uint8_t> message(tw_quant_delta_bound_bytes(n_elems));
    tw_quant_delta_t *codec = nullptr;
    size_t bytes = 0;
    EXPECT_EQ(tw_quant_delta_create("ref", &codec), TW_OK);
    for (int step = 0; step < 2; step++) {
        for (size_t i = 0; i < n_elems; i++) {
            fresh[2 * i] = uint8_t(fresh[2 * i] + i * i % (i % 7 + 1) % 5);
        }
        tw_quant_delta_segment_t segment = {};
        segment.base = old.data();
        segment.src = fresh.data();
        segment.state = states.data();
        segment.n_elems = n_elems;
        EXPECT_EQ(tw_quant_delta_encode(codec, &segment, 1, message.data(), message.size(), &bytes), TW_OK);
        old = fresh;
    }
    tw_quant_delta_destroy(codec);
    message.resize(bytes);
    return message;
}

uint64_t hash_of(const std::string &text)
{
    uint64_t hash = 0;
    for (bool strange : {false, true}) {
        for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16}) {
            std::vector<uint8_t> message;
            tw_quant_codec_t codec = {};
            if (text == "delta") {
                message = message_of_changes(strange);
            } else if (tw_quant_codec_parse(text.c_str(), &codec) == TW_OK) {
                message = tw_quant_form(&codec) == TW_QUANT_MESSAGE
                              ? message_that_says_its_length(codec, type, strange)
                              : message_of_blocks(codec, type, strange);
            }
            hash = tw_checksum(message.data(), message.size(), hash);
        }
    }
    return hash;
}

TEST_F(Recording, MessagesHaveTheBitsTheyHad)
{
    for (const Line &line : lines) {
        const uint64_t hash = hash_of(line.codec);
        EXPECT_EQ(hash, line.hash) << line.codec << ": 0x" << std::hex << hash;
    }
}

TEST_F(Recording, EveryCodecIsHere)
{
    std::set<std::string> names = {"plain"};
    for (const Line &line : lines) {
        const std::string text = line.codec;
        names.insert(text.substr(0, text.find(':')));
    }
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        EXPECT_EQ(names.count(tw_quant_row_get(tw_quant_kind_t(kind))->name), 1u)
            << "a row that is not recorded";
    }
}

} // namespace
