/** Messages that are wrong in one thing alone: checksums and lengths are right, and a decoder that did not
 *  look at that thing would make values of them. */
#ifndef TW_TESTS_QUANT_LOSSLESS_WRONG_MESSAGES_H
#define TW_TESTS_QUANT_LOSSLESS_WRONG_MESSAGES_H

#include <cstdint>
#include <string>
#include <vector>

#include "quant/quant.h"

namespace tw
{

struct WrongMessage {
    std::string what;
    tw_type_t type;
    size_t n_elems;
    std::vector<uint8_t> bytes;
    bool is_right; /**< as a control: what the wrong ones are made of */
};

std::vector<WrongMessage> make_wrong_messages();

} // namespace tw

#endif
