/* Loads and stores of a warp: what may be touched, and what was not ready. */
#include <algorithm>
#include <cstdio>

#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/warp.h"

namespace tw::ptx
{

namespace
{

template <class... ARGS>
std::string say(const char *format, ARGS... args)
{
    char text[256];
    snprintf(text, sizeof(text), format, args...);
    return text;
}

const char *verb(Access access)
{
    return access == Access::read ? "read" : access == Access::write ? "write" : "atomic";
}

} // namespace

/* ---- shared memory ---- */

void Warp::check_shared(u64 address, SharedByte *s, u16 thread, Access access)
{
    const unsigned long long at = address;
    const u32 lane = thread % 32;
    const bool same_warp = s->writer / 32 == thread / 32;
    if (access != Access::write && s->state == SharedByte::copying) {
        report_here("CP-ASYNC-READ-BEFORE-WAIT", lane,
                    say("shared offset %llu, copied by thread %u", at, s->writer));
    }
    if (access != Access::write && s->state == SharedByte::garbage) {
        report_here("UNINIT-SHARED", lane, say("shared offset %llu", at));
        s->state = SharedByte::written;
    }
    if (s->write_epoch == block->epoch && s->writer != thread && s->state != SharedByte::garbage &&
        !(access == Access::atomic && s->by_atomic) && !(same_warp && s->write_warp_epoch != epoch)) {
        const bool raw = access == Access::read;
        report_here(same_warp ? (raw ? "RACE-WARP-RAW" : "RACE-WARP-WAW")
                              : (raw ? "RACE-SHARED-RAW" : "RACE-SHARED-WAW"),
                    lane,
                    say("shared offset %llu: %s after a write of thread %u, no barrier between", at,
                        verb(access), s->writer));
    }
    const bool by_others = s->reader / 32 != thread / 32 || s->readers == SharedByte::of_warps;
    if (access == Access::write && s->read_epoch == block->epoch && by_others) {
        report_here(
            "RACE-SHARED-WAR", lane,
            say("shared offset %llu: write after a read of thread %u, no barrier between", at, s->reader));
    }
}

void Warp::note_shared(SharedByte *s, u16 thread, Access access)
{
    if (access != Access::read) {
        s->state = SharedByte::written;
        s->write_epoch = block->epoch;
        s->write_warp_epoch = epoch;
        s->writer = thread;
        s->by_atomic = access == Access::atomic;
        return;
    }
    if (s->read_epoch != block->epoch) {
        s->readers = SharedByte::one;
        s->reader = thread;
    } else if (s->reader != thread) {
        s->readers = std::max(s->readers,
                              s->reader / 32 != thread / 32 ? SharedByte::of_warps : SharedByte::of_the_warp);
    }
    s->read_epoch = block->epoch;
}

u8 *Warp::shared(u64 address, u32 bytes, u32 lane, Access access)
{
    if (address + bytes > block->shared_size) {
        report_here("OOB-SHARED", lane,
                    say("%s of %u bytes at %llu of %u", verb(access), bytes, (unsigned long long)address,
                        block->shared_size));
        return nullptr;
    }
    const u16 thread = (u16)(id * 32 + lane);
    if (block->count) {
        block->count->shared++;
        block->count->atomics += access == Access::atomic;
    }
    for (u64 i = address; i < address + bytes; i++) {
        check_shared(i, &block->shared_bytes[i], thread, access);
        note_shared(&block->shared_bytes[i], thread, access);
    }
    return block->shared.data() + address;
}

void Warp::copy_begin(u32 lane, const Copy &copy)
{
    memset(block->shared.data() + copy.to, 0xee, copy.bytes);
    for (u32 i = 0; i < copy.bytes; i++) {
        block->shared_bytes[copy.to + i].state = SharedByte::copying;
    }
    copies[lane].push_back(copy);
}

void Warp::copies_end(u32 lane, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const Copy &copy = copies[lane][k];
        memcpy(block->shared.data() + copy.to, copy.data, copy.bytes);
        for (u32 i = 0; i < copy.bytes; i++) {
            note_shared(&block->shared_bytes[copy.to + i], (u16)(id * 32 + lane), Access::write);
        }
    }
    copies[lane].erase(copies[lane].begin(), copies[lane].begin() + (long)n);
}

/* ---- global memory ---- */

void Warp::check_races(const Insn &insn, Touch *t, u32 lane, Access access)
{
    constexpr u32 several = ~0u;
    const u32 me = block->index * 1024 + id * 32 + lane + 1, launch = block->launch;
    const bool writes = access == Access::write;
    const auto other = [&](u32 thread) { return thread == several || (thread - 1) / 1024 != block->index; };
    const auto other_warp = [&](u32 thread) { return (thread - 1) % 1024 / 32 != id; };
    if (t->write_launch == launch && other(t->writer)) {
        report_here(writes ? "RACE-BLOCKS-WAW" : "RACE-BLOCKS-RAW", lane,
                    "another block wrote it in this launch");
    } else if (t->write_launch == launch && t->write_epoch == block->epoch && other_warp(t->writer)) {
        report_here(writes ? "RACE-GLOBAL-WAW" : "RACE-GLOBAL-RAW", lane,
                    say("after a write of thread %u, no barrier between", (t->writer - 1) % 1024));
    }
    if (writes) {
        if (t->read_launch == launch && other(t->reader)) {
            report_here("RACE-BLOCKS-WAR", lane, "another block reads it in this launch");
        } else if (t->read_launch == launch && t->read_epoch == block->epoch && other_warp(t->reader)) {
            report_here("RACE-GLOBAL-WAR", lane,
                        say("after a read of thread %u, no barrier between", (t->reader - 1) % 1024));
        }
        t->write_launch = launch;
        t->write_epoch = block->epoch;
        t->writer = me;
        return;
    }
    if (insn.constant_cache && t->write_launch == launch) {
        report_here("NC-LOAD-OF-WRITTEN", lane, "ld.global.nc of what this launch has written");
    }
    t->reader = t->read_launch == launch && other(t->reader) ? several : me;
    t->read_launch = launch;
    t->read_epoch = block->epoch;
}

/* An instruction touches a sector once, whatever its lanes. */
void Warp::count_global(const Allocation &a, u64 address, u32 bytes, Access access)
{
    Count *count = block->count;
    const bool reads = access == Access::read;
    u32 *const last = reads ? a.reader.get() : a.writer.get();
    if (sectors_of != instructions) {
        sectors_of = instructions;
        sectors.clear();
    }
    count->atomics += access == Access::atomic;
    (reads ? count->loaded : count->stored) += bytes;
    for (u64 sector = address / 32; sector <= (address + bytes - 1) / 32; sector++) {
        if (std::find(sectors.begin(), sectors.end(), sector) == sectors.end()) {
            sectors.push_back(sector);
            count->sectors++;
            count->touched += last && last[sector - a.base / 32] != block->launch;
            last ? last[sector - a.base / 32] = block->launch : 0;
        }
    }
}

u8 *Warp::global(const Insn &insn, u64 address, u32 bytes, u32 lane, Access access)
{
    Allocation *a = memory_at(address);
    if (!a || address + bytes > a->base + a->bytes) {
        const Allocation *before = memory_before(address);
        report_here("OOB-GLOBAL", lane,
                    say("%s of %u bytes at %#llx; the allocation before: %#llx + %llu", verb(access), bytes,
                        (unsigned long long)address, before ? (unsigned long long)before->base : 0ull,
                        before ? (unsigned long long)before->bytes : 0ull));
        return nullptr;
    }
    if (block->count) {
        count_global(*a, address, bytes, access);
    }
    u8 *defined = &a->defined[address - a->base];
    if (access != Access::write && memchr(defined, 0, bytes)) {
        report_here("UNINIT-GLOBAL", lane,
                    say("%u bytes at %#llx + %llu", bytes, (unsigned long long)a->base,
                        (unsigned long long)(address - a->base)));
    }
    memset(defined, 1, bytes);
    for (u32 i = 0; a->touched && access != Access::atomic && i < bytes; i++) {
        check_races(insn, &a->touched[address - a->base + i], lane, access);
    }
    return (u8 *)address;
}

/* ---- any ---- */

static Space space_of(u64 address)
{
    switch (address >> 48) {
    case shared_base >> 48:
        return Space::shared;
    case local_base >> 48:
        return Space::local;
    case param_base >> 48:
        return Space::param;
    default:
        return Space::global;
    }
}

u8 *Warp::memory(const Insn &insn, Space space, u64 address, u32 bytes, u32 lane, Access access)
{
    space = space == Space::generic ? space_of(address) : space;
    if (address % bytes) {
        report_here("MISALIGNED", lane,
                    say("%s of %u bytes at %#llx", verb(access), bytes, (unsigned long long)address));
    }
    if (space == Space::global || space == Space::constant) {
        return global(insn, address, bytes, lane, access);
    }
    const u64 at = space_of(address) == Space::global ? address : address & 0xffffffffffffull;
    if (space == Space::shared) {
        return shared(at, bytes, lane, access);
    }
    const bool param = space == Space::param;
    if (at + bytes > (param ? kernel->parameter_bytes : kernel->local_bytes)) {
        report_here(param ? "OOB-PARAM" : "OOB-LOCAL", lane, "");
        return nullptr;
    }
    return param ? block->parameters.data() + at : local + (size_t)lane * kernel->local_bytes + at;
}

} // namespace tw::ptx
