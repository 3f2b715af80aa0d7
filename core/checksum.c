#include "core/core.h"

#include <xxhash.h>

uint64_t tw_checksum(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data ? data : "", bytes, seed);
}
