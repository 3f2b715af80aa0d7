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

/** What the launches of a kernel came to. What follows `launches` is counted with PTX_COUNT alone. */
struct Count {
    uint64_t launches = 0, warps = 0;
    uint64_t instructions = 0, lanes = 0; /**< of warps, and of the lanes that took part in them */
    uint64_t longest = 0;                 /**< instructions of the longest warp of each launch, added up */
    uint64_t loaded = 0, stored = 0;      /**< bytes of global memory, of all lanes */
    uint64_t sectors = 0;                 /**< of 32 bytes, that its instructions touch */
    uint64_t touched =
        0; /**< of them, those that no other one of a launch touched so before: read, written */
    uint64_t shared = 0, atomics = 0; /**< lanes' accesses to shared memory; lanes' atomics, anywhere */
    uint64_t products = 0;            /**< of small matrices: mma instructions */
};

/** Count a launch of a kernel. */
Count &count_launch(const std::string &kernel);
/** All kernels' so far, by name. */
const std::map<std::string, Count> &counts();
/** Calls of the runtime that enqueue something: "launches", "copies", "events" (records and waits). */
std::map<std::string, uint64_t> &call_counts();
/** Of kernels and of calls. */
void clear_counts();
extern uint64_t warp_instructions;

/** The machine cannot go on: says so and aborts. */
[[noreturn]] void fatal(const std::string &text);

} // namespace tw::ptx
