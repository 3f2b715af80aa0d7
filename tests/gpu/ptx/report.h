/** What the machine has to say of the kernels: each kind, kernel and place once, with a count. */
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tw::ptx
{

/** Add a report. where: the kernel and its line, or empty; text: what the first one of them says. */
void report(const std::string &kind, const std::string &where, const std::string &text);

/** How many reports of each kind there were. */
std::map<std::string, uint64_t> report_counts();
void clear_reports();

/** Count a launch of a kernel. */
void count_launch(const std::string &kernel);
extern uint64_t warp_instructions;

/** The machine cannot go on: says so and aborts. */
[[noreturn]] void fatal(const std::string &text);

} // namespace tw::ptx
