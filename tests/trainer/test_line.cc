/* What training says of itself on a terminal. */
#include <string>

#include <gtest/gtest.h>

#include "tests/common/process.h"
#include "tests/common/terminal.h"

namespace
{

/* A line that is written over itself has to end before the terminal does. */
TEST(Train, ItsLineFitsTheTerminal)
{
    const Terminal terminal(60);
    process::Spec spec;
    spec.argv = {"trainer/train", "--nodes", "1", "--ranks-per-node", "1", "--link", "none"};
    for (const char *key : {"model.n_embd=32", "thinwire.sequence_length=16", "thinwire.data=trainer/train",
                            "thinwire.token_bytes=1", "thinwire.steps=2", "thinwire.val_sequences=0"}) {
        spec.argv.insert(spec.argv.end(), {"--set", key});
    }
    spec.before = [&terminal] { dup2(terminal.fd(), STDOUT_FILENO); };
    const process::Result result = process::Child(spec).wait();
    EXPECT_EQ(0, result.code) << result.err;
    const std::string text = terminal.text();
    int n_lines = 0;
    for (size_t at = 0; (at = text.find("\rstep ", at)) != std::string::npos; at++) {
        n_lines++;
        EXPECT_LT(text.find("\033[K", at) - at - 1, 60u) << text;
        EXPECT_NE(text.find(" tokens/s", at), std::string::npos) << text;
    }
    EXPECT_EQ(2, n_lines) << text;
}

} // namespace
