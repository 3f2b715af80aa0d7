/** PTX files into modules. */
#pragma once

#include "tests/gpu/ptx/program.h"

namespace tw::ptx
{

/** A file; its variables have memory from then on. */
std::unique_ptr<Module> parse_module(const std::string &path);

} // namespace tw::ptx
