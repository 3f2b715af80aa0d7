/** The memory that kernels may touch: what the runtime has given out and what modules declare. */
#pragma once

#include <cstddef>
#include <memory>

#include "tests/gpu/ptx/number.h"

namespace tw::ptx
{

enum class Home : u8 { device, pinned, managed, module };

/** Who touched a byte in which launch, for races on global memory; 0: nobody. Epochs are the block's. */
struct Touch {
    u32 write_launch, writer, write_epoch;
    u32 read_launch, reader, read_epoch;
};

struct Allocation {
    u64 base, bytes;
    Home home;
    std::unique_ptr<u8[]> defined;    /**< for each byte: has anything been written to it? */
    std::unique_ptr<Touch[]> touched; /**< where races are looked for */
    /** Where sectors are counted: of each, the last launch that read from it, and that wrote to it. */
    std::unique_ptr<u32[]> reader, writer;
};

void memory_add(const void *base, size_t bytes, Home home);
/** Was it there? */
bool memory_remove(const void *base);
/** The allocation that holds an address, or NULL. */
Allocation *memory_at(u64 address);
/** The last one that begins at or before an address, or NULL: for reports. */
const Allocation *memory_before(u64 address);
/** The host wrote there. */
void memory_defined(const void *at, size_t bytes);

} // namespace tw::ptx
