#include "tests/gpu/ptx/memory.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

namespace
{

std::map<u64, Allocation> &allocations()
{
    static auto *all = new std::map<u64, Allocation>;
    return *all;
}

Allocation *last_found;

} // namespace

void memory_add(const void *base, size_t bytes, Home home)
{
    Allocation a = {(u64)base, bytes, home, std::make_unique<u8[]>(bytes + 1), nullptr, nullptr, nullptr};
    memset(a.defined.get(), home == Home::device ? 0 : 1, bytes);
    if (settings().races) {
        a.touched = std::make_unique<Touch[]>(bytes + 1);
    }
    if (settings().count) {
        a.reader = std::make_unique<u32[]>(bytes / 32 + 2);
        a.writer = std::make_unique<u32[]>(bytes / 32 + 2);
    }
    allocations()[(u64)base] = std::move(a);
    last_found = nullptr;
}

bool memory_remove(const void *base)
{
    last_found = nullptr;
    return allocations().erase((u64)base) != 0;
}

static Allocation *find_before(u64 address)
{
    auto next = allocations().upper_bound(address);
    return next == allocations().begin() ? nullptr : &(--next)->second;
}

const Allocation *memory_before(u64 address)
{
    return find_before(address);
}

Allocation *memory_at(u64 address)
{
    if (last_found && address - last_found->base < last_found->bytes) {
        return last_found;
    }
    Allocation *found = find_before(address);
    return found && address - found->base < found->bytes ? last_found = found : nullptr;
}

void memory_defined(const void *at, size_t bytes)
{
    Allocation *a = memory_at((u64)at);
    if (a && bytes) {
        memset(a->defined.get() + ((u64)at - a->base), 1, std::min<u64>(bytes, a->base + a->bytes - (u64)at));
    }
}

} // namespace tw::ptx
