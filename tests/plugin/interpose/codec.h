/** What a codec makes of a tensor: the bits that who has gathered it under the interposer must see. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_CODEC_H
#define TW_TESTS_PLUGIN_INTERPOSE_CODEC_H

#include <string>
#include <vector>

#include "core/core.h"

namespace interposed
{

/** Encoded and decoded on the CPU. Throws std::runtime_error. */
std::vector<char> through_codec(const std::string &codec, tw_type_t type, const std::vector<char> &plain);

} // namespace interposed

#endif
