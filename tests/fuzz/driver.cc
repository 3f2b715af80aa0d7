/* Runs a fuzz target as a test; see fuzz_test in //tests:defs.bzl.
 *
 *   fuzz_x [GoogleTest's flags] [--mutations=N] [--seed=N] FILE...
 *
 * One FILE and --mutations=0 repeat a failure. */
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/fuzz/mutate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* There with any sanitizer. */
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

namespace
{

using tw::fuzz::Input;

struct Options {
    std::vector<std::string> files;
    size_t mutations = 20000;
    uint64_t seed = 1;
};

Options options;

/* What a dying process leaves behind: set before every run of the target. */
char crash_path[4096];
const Input *volatile running;

void leave_input()
{
    if (running == nullptr) {
        return;
    }
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0 && write(fd, running->data(), running->size()) == ssize_t(running->size()) &&
        close(fd) == 0) {
        dprintf(STDERR_FILENO, "fuzz: died on an input of %zu bytes; it is in %s\n", running->size(),
                crash_path);
    }
    running = nullptr;
}

void on_signal(int signal_number)
{
    leave_input();
    raise(signal_number); /* the handler is gone: SA_RESETHAND */
}

void catch_death(const char *program)
{
    const char *folder = getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    const char *slash = strrchr(program, '/');
    snprintf(crash_path, sizeof(crash_path), "%s/crash-%s", folder != nullptr ? folder : ".",
             slash != nullptr ? slash + 1 : program);
    if (__sanitizer_set_death_callback != nullptr) {
        __sanitizer_set_death_callback(leave_input);
    }
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = int(SA_RESETHAND | SA_NODEFER);
    /* A sanitizer reports these two better itself, and calls back. */
    if (__sanitizer_set_death_callback == nullptr) {
        sigaction(SIGSEGV, &action, nullptr);
        sigaction(SIGBUS, &action, nullptr);
    }
    for (int signal_number : {SIGABRT, SIGFPE, SIGILL, SIGTERM}) {
        sigaction(signal_number, &action, nullptr);
    }
}

void run_target(const Input &input)
{
    /* A copy of exactly this size, on the heap: a read past its end is one that a sanitizer sees. */
    std::unique_ptr<uint8_t[]> data(new uint8_t[input.size()]);
    std::copy(input.begin(), input.end(), data.get());
    running = &input;
    EXPECT_EQ(LLVMFuzzerTestOneInput(data.get(), input.size()), 0);
    running = nullptr;
}

Input read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    return Input(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

TEST(Fuzz, Nothing)
{
    run_target({});
}

TEST(Fuzz, Corpus)
{
    ASSERT_FALSE(options.files.empty()) << "a fuzz target needs seeds";
    for (const std::string &path : options.files) {
        SCOPED_TRACE(path);
        run_target(read_file(path));
    }
}

TEST(Fuzz, Mutations)
{
    std::vector<Input> corpus = {{}};
    for (const std::string &path : options.files) {
        corpus.push_back(read_file(path));
    }
    tw::fuzz::Random random(options.seed);
    for (size_t i = 0; i < options.mutations; i++) {
        run_target(tw::fuzz::mutate(corpus, random));
    }
}

bool parse_number(const char *arg, const char *flag, uint64_t *value)
{
    if (strncmp(arg, flag, strlen(flag)) != 0) {
        return false;
    }
    *value = strtoull(arg + strlen(flag), nullptr, 10);
    return true;
}

} // namespace

int main(int argc, char **argv)
{
    ::testing::InitGoogleTest(&argc, argv);
    for (int i = 1; i < argc; i++) {
        if (!parse_number(argv[i], "--mutations=", &options.mutations) &&
            !parse_number(argv[i], "--seed=", &options.seed)) {
            options.files.emplace_back(argv[i]);
        }
    }
    catch_death(argv[0]);
    return RUN_ALL_TESTS();
}
