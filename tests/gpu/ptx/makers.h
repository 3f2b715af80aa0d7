/** Opcodes of a room, and what makes their instructions. */
#pragma once

#include "tests/gpu/ptx/translate.h"

namespace tw::ptx
{

using MakerTable = std::vector<std::pair<const char *, Maker>>;

} // namespace tw::ptx
