/** Tensors for the tests of the lossless codec. */
#ifndef TW_TESTS_QUANT_LOSSLESS_LOSSLESS_DATA_H
#define TW_TESTS_QUANT_LOSSLESS_LOSSLESS_DATA_H

#include <cstdint>
#include <string>
#include <vector>

#include "quant/quant.h"

namespace tw
{

/** Kinds of values. */
enum class Values {
    gradient,    /**< normal, with scales of rows and of columns */
    weight,      /**< normal */
    zero,        /**< all of it */
    sparse,      /**< one row of 20 is not all zeros */
    constant,    /**< one value throughout */
    random,      /**< any bits */
    special,     /**< NaN of any payload, infinities, both zeros, denormals, the largest numbers */
    tiny,        /**< denormals of both signs, and zeros */
    mostly_zero, /**< one element of ten is not */
    outliers,    /**< normal, with a huge value here and there */
    mixed,       /**< gradient and random, by turns of 65,536 elements */
    /* What fp32 has that was fewer bits once: tails of it are all zeros, all but a few, or short. */
    widened,  /**< gradients in bf16 */
    few,      /**< widened, but for one element of 400 */
    sums,     /**< of four of them */
    halves,   /**< weights in fp16 */
    integers, /**< of any size up to 2^17 */
    patches,  /**< sums, widened and random bits by turns of 65,536 elements */
    crowded,  /**< of many octaves, one tail of three is 0: blocks that would have too many words */
};
constexpr Values all_values[] = {Values::gradient,    Values::weight,   Values::zero,    Values::sparse,
                                 Values::constant,    Values::random,   Values::special, Values::tiny,
                                 Values::mostly_zero, Values::outliers, Values::mixed,   Values::widened,
                                 Values::few,         Values::sums,     Values::halves,  Values::integers,
                                 Values::patches,     Values::crowded};
std::string name_of(Values values);

/** n elements of a type as bytes, a matrix of rows of `columns`; always the same for the same arguments. */
std::vector<uint8_t> make_values(Values values, tw_type_t type, size_t n, size_t columns);

/** A piece of a tensor of zeros, as a message may describe it. */
struct ZeroPiece {
    uint32_t n_rows, row_elems; /**< row_elems: 32 to 127 */
    bool has_columns;           /**< columns have scales */
};
/** A coded message of zeros in these pieces, right in all that a codec does not look at pieces for. */
std::vector<uint8_t> make_zero_message(tw_type_t type, const std::vector<ZeroPiece> &pieces);

} // namespace tw

#endif
