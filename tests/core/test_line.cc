#include "core/line.h"

#include <cstdio>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace
{

std::string read(const std::string &text, const char *begins, size_t n)
{
    const std::string path = testing::TempDir() + "line";
    std::ofstream(path) << text;
    std::string line(n, 'x');
    const int found = tw_line_read(path.c_str(), begins, line.data(), n);
    remove(path.c_str());
    return (found ? "" : "none") + std::string(line.c_str());
}

TEST(Line, TheFirstThatBeginsSo)
{
    const std::string text = "MemTotal: 8 kB\nMemFree: 3 kB\nMemFree: 4 kB";
    EXPECT_EQ(read(text, "", 64), "MemTotal: 8 kB");
    EXPECT_EQ(read(text, "MemFree:", 64), "MemFree: 3 kB");
    EXPECT_EQ(read(text, "MemFree:", 10), "MemFree: ");
    EXPECT_EQ(read("a line MemFree: 9\nMem: 3", "Mem", 8), "Mem: 3") << "the middle of a line begins none";
    EXPECT_EQ(read(text, "kB", 64), "none");
    EXPECT_EQ(read("", "", 64), "none");
    EXPECT_EQ(read("\nx", "", 64), "");
}

TEST(Line, NoFile)
{
    char line[8] = "old";
    EXPECT_EQ(tw_line_read("/nowhere/at/all", "", line, sizeof(line)), 0);
    EXPECT_STREQ(line, "");
}

} // namespace
