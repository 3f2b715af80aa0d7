#include <gtest/gtest.h>

#include <string>

#include "core/core.h"

// Files carry it. The value is that of xxHash's own tests.
TEST(Checksum, IsTheSameForEver)
{
    EXPECT_EQ(tw_checksum(nullptr, 0, 0), 0x2d06800538d394c2u);
}

TEST(Checksum, DependsOnEachByteAndOnTheSeed)
{
    std::string data(1000, 'x');
    uint64_t whole = tw_checksum(data.data(), data.size(), 0);
    for (size_t i = 0; i < data.size(); i++) {
        std::string other = data;
        other[i] = 'y';
        EXPECT_NE(tw_checksum(other.data(), other.size(), 0), whole) << i;
    }
    EXPECT_NE(tw_checksum(data.data(), data.size(), 1), whole);
    EXPECT_NE(tw_checksum(data.data(), data.size() - 1, 0), whole);
}
