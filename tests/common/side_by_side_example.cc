/* Cases for test_side_by_side.cc: two that can only end together, and two that fail if told to. */
#include <cstdlib>
#include <fstream>
#include <string>

#include <unistd.h>

#include <gtest/gtest.h>

namespace
{

bool is_told(const char *what)
{
    const char *told = getenv("EXAMPLE");
    return told && std::string(told) == what;
}

/* Each is there only as long as its case runs. */
void meet(const std::string &own, const std::string &other)
{
    const std::string folder = getenv("EXAMPLE_FOLDER");
    std::ofstream(folder + "/" + own) << "here";
    for (int i = 0; i < 30000 && access((folder + "/" + other).c_str(), F_OK); i++) {
        usleep(1000);
    }
    EXPECT_EQ(access((folder + "/" + other).c_str(), F_OK), 0) << other << " did not come";
}

TEST(Example, WaitsForTheNext)
{
    meet("a", "b");
}

TEST(Example, WaitsForTheFirst)
{
    meet("b", "a");
}

TEST(Example, Fails)
{
    EXPECT_FALSE(is_told("fail")) << "as told";
}

TEST(Example, Ends)
{
    if (is_told("abort")) {
        abort();
    }
    if (is_told("exit")) {
        exit(0);
    }
}

} // namespace
