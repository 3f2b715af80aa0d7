#include "tests/fuzz/mutate.h"

#include <set>

#include <gtest/gtest.h>

using namespace tw::fuzz;

namespace
{

const std::vector<Input> corpus = {{}, {'1', '0', 'm', 's'}, Input(100, 7)};

std::vector<Input> make(uint64_t seed, size_t n)
{
    Random random(seed);
    std::vector<Input> inputs;
    for (size_t i = 0; i < n; i++) {
        inputs.push_back(mutate(corpus, random));
    }
    return inputs;
}

} // namespace

TEST(Mutate, SameSeedSameInputs)
{
    EXPECT_EQ(make(1, 1000), make(1, 1000));
    EXPECT_NE(make(1, 1000), make(2, 1000));
}

/* The published sequence of splitmix64 from seed 0: the same on every machine. */
TEST(Mutate, RandomIsSplitmix64)
{
    Random random(0);
    EXPECT_EQ(random.next(), 0xe220a8397b1dcdafu);
    EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4u);
}

TEST(Mutate, InputsAreManyAndOfAllLengths)
{
    const size_t n = 5000;
    std::vector<Input> inputs = make(3, n);
    std::set<Input> distinct(inputs.begin(), inputs.end());
    std::set<size_t> lengths;
    for (const Input &input : inputs) {
        lengths.insert(input.size());
    }
    EXPECT_GT(distinct.size(), n / 2);
    for (size_t length = 0; length <= 100; length++) {
        EXPECT_EQ(lengths.count(length), 1u) << length;
    }
}

TEST(Mutate, GrowthIsBounded)
{
    std::vector<Input> grown = {Input(max_input_bytes, 1)};
    Random random(4);
    for (int i = 0; i < 200; i++) {
        EXPECT_LE(mutate(grown, random).size(), max_input_bytes);
    }
}
