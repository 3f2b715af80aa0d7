/** Weights before and after a step, for the tests of the lossless delta. */
#ifndef TW_TESTS_QUANT_DELTA_DELTA_DATA_H
#define TW_TESTS_QUANT_DELTA_DELTA_DATA_H

#include <cstdint>
#include <string>
#include <vector>

namespace tw
{

/** Kinds of change. */
enum class Change {
    none,
    constant, /**< every weight by one unit in the last place */
    adam,     /**< as an optimizer's: the same direction in most steps, about as large whatever the weight */
    huge,     /**< the other sign, another order of magnitude */
    random,   /**< any bits to any bits */
    special,  /**< NaN, infinities, both zeros, denormals, to and fro */
    mixed,    /**< adam and random by turns of a block */
    rare,     /**< none, but for one in a thousand */
};
constexpr Change all_changes[] = {Change::none,   Change::constant, Change::adam,  Change::huge,
                                  Change::random, Change::special,  Change::mixed, Change::rare};
std::string name_of(Change change);

/** steps + 1 replicas of n weights, each made from the one before; always the same for the same arguments. */
std::vector<std::vector<uint16_t>> make_steps(Change change, size_t n, size_t steps);

/** Bits that n changes need when coded under the old value's exponent: the empirical entropy. */
double entropy_bits(const std::vector<uint16_t> &old_values, const std::vector<uint16_t> &new_values);

} // namespace tw

#endif
