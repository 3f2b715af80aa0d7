/* Two ends of a connection: what one seals the other opens, and nothing else does. */
#include <functional>
#include <string>
#include <vector>

#include "tests/common/fixture.h"
#include "transport/sealed.h"

namespace
{

using Bytes = std::vector<uint8_t>;

struct End {
    tw_sealed_t *end = nullptr;
    Bytes hello = Bytes(TW_SEALED_HELLO_BYTES);

    explicit End(bool connects, const char *secret = "secret", bool seals = true)
    {
        EXPECT_EQ(tw_sealed_create(secret, connects, seals, hello.data(), &end), TW_OK);
    }
    End(const End &) = delete;
    ~End()
    {
        tw_sealed_destroy(end);
    }
    Bytes wrap(const std::string &text) const
    {
        Bytes piece(text.size() + TW_SEALED_TAG_BYTES);
        tw_sealed_wrap(end, text.data(), text.size(), piece.data());
        return piece;
    }
    /* What opens of a piece; "?": nothing. */
    std::string unwrap(const Bytes &piece) const
    {
        std::string text(piece.size() - TW_SEALED_TAG_BYTES, 0);
        return tw_sealed_unwrap(end, piece.data(), text.size(), text.data()) ? "?" : text;
    }
};

void meet(const End &a, const End &b)
{
    EXPECT_EQ(tw_sealed_meet(a.end, b.hello.data()), TW_OK);
    EXPECT_EQ(tw_sealed_meet(b.end, a.hello.data()), TW_OK);
}

class Sealed : public tw::Fixture
{
};

TEST_F(Sealed, PiecesOpenInOrderInBothDirections)
{
    const End connector(true), listener(false);
    EXPECT_NE(connector.hello, listener.hello);
    EXPECT_NE(connector.hello[0], 0);
    meet(connector, listener);
    for (const char *text : {"", "weights", "more of them"}) {
        const Bytes there = connector.wrap(text), back = listener.wrap(text);
        EXPECT_NE(there, back);
        EXPECT_EQ(listener.unwrap(there), text);
        EXPECT_EQ(connector.unwrap(back), text);
    }
}

TEST_F(Sealed, WithoutSealsBothProveThemselvesAllTheSame)
{
    const End connector(true, "secret", false), listener(false);
    EXPECT_EQ(connector.hello[0], 0);
    meet(connector, listener);
    EXPECT_EQ(listener.unwrap(connector.wrap("")), "");
}

TEST_F(Sealed, WhatWasNotSealedForThisPlaceDoesNotOpen)
{
    const std::vector<std::function<Bytes(const End &, const End &)>> ways = {
        [](const End &from, const End &) {
            Bytes piece = from.wrap("weights");
            piece[3] ^= 1;
            return piece;
        },
        [](const End &from, const End &) {
            Bytes piece = from.wrap("weights");
            piece.back() ^= 128;
            return piece;
        },
        [](const End &from, const End &) {
            from.wrap("left out");
            return from.wrap("weights");
        },
        [](const End &from, const End &to) {
            const Bytes piece = from.wrap("weights");
            EXPECT_EQ(to.unwrap(piece), "weights");
            return piece; /* repeated */
        },
        [](const End &, const End &to) { return to.wrap("weights"); }, /* sent back */
        [](const End &from, const End &) {
            Bytes piece = from.wrap("weights");
            piece.erase(piece.begin()); /* cut */
            return piece;
        },
    };
    for (const auto &way : ways) {
        const End connector(true), listener(false);
        meet(connector, listener);
        EXPECT_EQ(listener.unwrap(way(connector, listener)), "?");
    }
}

TEST_F(Sealed, StrangersAndChangedHellosOpenNothing)
{
    const End listener(false), stranger(true, "guessed");
    meet(stranger, listener);
    EXPECT_EQ(listener.unwrap(stranger.wrap("")), "?");
    for (const size_t changed : {0, 5, 40}) { /* whether it seals, its random bytes, its key */
        const End a(true), b(false);
        Bytes hello = a.hello;
        hello[changed] ^= 1;
        EXPECT_EQ(tw_sealed_meet(a.end, b.hello.data()), TW_OK);
        EXPECT_EQ(tw_sealed_meet(b.end, hello.data()), TW_OK);
        EXPECT_EQ(b.unwrap(a.wrap("")), "?");
    }
    const Bytes none(TW_SEALED_HELLO_BYTES);
    EXPECT_EQ(tw_sealed_meet(End(true).end, none.data()), TW_ERR_AUTH);
}

} // namespace
