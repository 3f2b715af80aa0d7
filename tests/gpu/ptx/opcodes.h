/** All opcodes that the machine knows. */
#pragma once

#include "tests/gpu/ptx/translate.h"

namespace tw::ptx
{

Maker opcode_maker(const std::string &word);

} // namespace tw::ptx
