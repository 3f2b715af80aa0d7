#include "trainer/input.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/common/fixture.h"

namespace
{

class Input : public tw::Fixture
{
};

/* A FIFO without a writer is no reason to wait, nor is a device a file. */
TEST_F(Input, WhatIsNoFileIsRefusedAtOnce)
{
    std::string base = ::testing::TempDir() + "input." + std::to_string(getpid()), fifo = base + ".fifo";
    ASSERT_EQ(0, mkfifo(fifo.c_str(), 0600));
    FILE *file = nullptr;
    for (const std::string &path : {fifo, std::string("/dev/null"), ::testing::TempDir()}) {
        expect_log(path + ": not a regular file");
        EXPECT_EQ(TW_ERR_INVALID, tw_input_open(path.c_str(), &file));
    }
    expect_log(base + ": cannot open: No such file");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_input_open(base.c_str(), &file));
    std::ofstream(base) << "text";
    ASSERT_EQ(TW_OK, tw_input_open(base.c_str(), &file));
    EXPECT_EQ('t', fgetc(file));
    fclose(file);
    unlink(fifo.c_str());
    unlink(base.c_str());
}

} // namespace
