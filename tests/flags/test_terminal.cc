/* A line that is written over: on terminals of some widths, and on none. */
#include <gtest/gtest.h>

#include <string>

#include "flags/flags.h"
#include "tests/common/terminal.h"

namespace
{

std::string shown(unsigned short columns, const std::string &text)
{
    const Terminal terminal(columns);
    FILE *out = fdopen(dup(terminal.fd()), "w");
    tw_terminal_show(out, text.c_str());
    fclose(out);
    return terminal.text();
}

TEST(Terminal, WhatHasNoRoomIsCut)
{
    const std::string text(138, 'x');
    EXPECT_EQ("\r" + std::string(59, 'x') + "\033[K", shown(60, text));
    EXPECT_EQ("\r" + std::string(137, 'x') + "\033[K", shown(138, text));
    EXPECT_EQ("\r" + text + "\033[K", shown(139, text));
    EXPECT_EQ("\r" + std::string(79, 'x') + "\033[K", shown(0, text)) << "where a terminal does not say it";
    EXPECT_EQ("\r\033[K", shown(60, ""));
}

TEST(Terminal, AFileIsNone)
{
    FILE *file = tmpfile();
    tw_terminal_show(file, "text");
    EXPECT_EQ(0, ftell(file));
    fclose(file);
}

} // namespace
