/* Philox4x32-10 against the known answers published with Random123, and how elements map to words. */
#include <gtest/gtest.h>

#include "quant/arithmetic/philox.h"

namespace
{

struct KnownAnswer {
    uint32_t counter[4], key[2], words[4];
};

const KnownAnswer known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(QuantPhilox, KnownAnswers)
{
    for (const KnownAnswer &answer : known_answers) {
        tw_philox_words_t counter;
        memcpy(counter.word, answer.counter, sizeof(counter.word));
        tw_philox_words_t words = tw_philox(counter, answer.key[0], answer.key[1]);
        for (int i = 0; i < 4; i++) {
            EXPECT_EQ(words.word[i], answer.words[i]);
        }
    }
}

TEST(QuantPhilox, KeyAndCounterCarrySeedElementTensorAndStep)
{
    const uint64_t seed = 0x299f31d0a4093822, quad = uint64_t{0x85a308d3} << 32 | 0x243f6a88;
    const uint32_t tensor = 0x13198a2e, step = 0x03707344;
    const tw_philox_words_t words = tw_philox_quad(seed, step, tensor, quad);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(words.word[i], known_answers[2].words[i]);
    }
}

TEST(QuantPhilox, FourElementsShareACounter)
{
    for (uint64_t elem : {uint64_t{0}, uint64_t{5}, uint64_t{0xffffffff}, (uint64_t{7} << 34) + 2}) {
        const tw_philox_words_t words = tw_philox_quad(1, 2, 3, elem / 4);
        EXPECT_EQ(tw_philox_word(1, 2, 3, elem), words.word[elem % 4]);
    }
}

} // namespace
