/** Mutations of fuzzing inputs, the same ones in every run and on every machine. */
#ifndef TW_TESTS_FUZZ_MUTATE_H
#define TW_TESTS_FUZZ_MUTATE_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tw::fuzz
{

using Input = std::vector<uint8_t>;

/** splitmix64: the standard library's distributions differ between implementations. */
class Random
{
  public:
    explicit Random(uint64_t seed) : state_(seed)
    {
    }
    uint64_t next();
    /** 0 to n-1; n > 0. */
    size_t below(size_t n)
    {
        return next() % n;
    }

  private:
    uint64_t state_;
};

/** No input grows beyond this. */
constexpr size_t max_input_bytes = 1 << 16;

/** A new input from one of `corpus` (not empty): 1 to 8 changes, each of bits, bytes, integers of 1 to 8
 *  bytes that are on some limit, digits, or of the length, by cutting, repeating or splicing with another
 *  one. */
Input mutate(const std::vector<Input> &corpus, Random &random);

} // namespace tw::fuzz

#endif
