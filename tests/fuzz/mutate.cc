#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <iterator>

namespace tw::fuzz
{

uint64_t Random::next()
{
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

namespace
{

using Mutation = void (*)(Input &, const std::vector<Input> &, Random &);

void flip_bit(Input &input, const std::vector<Input> &, Random &random)
{
    if (!input.empty()) {
        input[random.below(input.size())] ^= 1u << random.below(8);
    }
}

void set_byte(Input &input, const std::vector<Input> &, Random &random)
{
    if (!input.empty()) {
        input[random.below(input.size())] = uint8_t(random.next());
    }
}

/* Numbers of text inputs; '9' and '0' make them overflow. */
void set_digit(Input &input, const std::vector<Input> &, Random &random)
{
    static const char digits[] = "0123456789.-+e";
    if (!input.empty()) {
        input[random.below(input.size())] = digits[random.below(sizeof(digits) - 1)];
    }
}

/* A length or count at a limit: 0, 1, -1, powers of two and their neighbours; either byte order. */
void set_limit(Input &input, const std::vector<Input> &, Random &random)
{
    size_t width = size_t(1) << random.below(4);
    if (input.size() < width) {
        return;
    }
    uint64_t value = (uint64_t(1) << random.below(64)) - 1 + random.below(3);
    if (random.below(4) == 0) {
        value = -value;
    }
    uint8_t *at = &input[random.below(input.size() - width + 1)];
    bool big_endian = random.below(4) == 0;
    for (size_t i = 0; i < width; i++) {
        at[big_endian ? width - 1 - i : i] = uint8_t(value >> (8 * i));
    }
}

/* Off by a little: what was a right length before. */
void add_small(Input &input, const std::vector<Input> &, Random &random)
{
    if (!input.empty()) {
        input[random.below(input.size())] += uint8_t(random.below(33)) - 16;
    }
}

void truncate(Input &input, const std::vector<Input> &, Random &random)
{
    input.resize(random.below(input.size() + 1));
}

void erase(Input &input, const std::vector<Input> &, Random &random)
{
    if (input.empty()) {
        return;
    }
    size_t begin = random.below(input.size());
    size_t length = 1 + random.below(std::min<size_t>(input.size() - begin, 16));
    input.erase(input.begin() + begin, input.begin() + begin + length);
}

void insert(Input &input, const std::vector<Input> &, Random &random)
{
    size_t length = 1 + random.below(random.below(8) == 0 ? 256 : 8);
    uint8_t value = random.below(2) == 0 ? 0 : uint8_t(random.next());
    bool same = random.below(2) == 0;
    Input bytes(length);
    std::generate(bytes.begin(), bytes.end(), [&] { return same ? value : uint8_t(random.next()); });
    input.insert(input.begin() + random.below(input.size() + 1), bytes.begin(), bytes.end());
}

void repeat(Input &input, const std::vector<Input> &, Random &random)
{
    if (input.empty()) {
        return;
    }
    size_t begin = random.below(input.size());
    size_t length = 1 + random.below(std::min<size_t>(input.size() - begin, 64));
    Input piece(input.begin() + begin, input.begin() + begin + length);
    input.insert(input.begin() + random.below(input.size() + 1), piece.begin(), piece.end());
}

/* The head of this input and the tail of another one. */
void splice(Input &input, const std::vector<Input> &corpus, Random &random)
{
    const Input &other = corpus[random.below(corpus.size())];
    input.resize(random.below(input.size() + 1));
    input.insert(input.end(), other.begin() + random.below(other.size() + 1), other.end());
}

} // namespace

Input mutate(const std::vector<Input> &corpus, Random &random)
{
    static const Mutation mutations[] = {flip_bit, set_byte, set_digit, set_limit, add_small,
                                         truncate, erase,    insert,    repeat,    splice};
    Input input = corpus[random.below(corpus.size())];
    /* Mostly few changes: what is nearly right gets further. */
    size_t n_changes = size_t(1) << random.below(4);
    for (size_t i = 0; i < n_changes; i++) {
        mutations[random.below(std::size(mutations))](input, corpus, random);
        input.resize(std::min(input.size(), max_input_bytes));
    }
    return input;
}

} // namespace tw::fuzz
