/* How two ends prove themselves, and seal: on bytes alone. */
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "tests/common/fixture.h"
#include "transport/p2p/greeting.h"

namespace
{

using Bytes = std::vector<uint8_t>;

/* Both ends of a greeting, and what passes between them. */
struct Ends {
    tw_greeting_t connector, listener;
    Bytes hello = Bytes(TW_GREETING_HELLO_BYTES), challenge = Bytes(TW_GREETING_CHALLENGE_BYTES),
          proof = Bytes(TW_GREETING_PROOF_BYTES), welcome = Bytes(TW_GREETING_WELCOME_BYTES);
    uint8_t key[TW_GREETING_KEY_BYTES] = {1, 2, 3};

    explicit Ends(tw_cipher_t cipher = TW_CIPHER_AES256_GCM)
    {
        tw_greeting_hello_t who = {7, 9, 2, (uint32_t)cipher};
        (void)tw_seal_has_aes(); /* starts libsodium */
        tw_greeting_hello_write(&connector, &who, key, hello.data());
        tw_greeting_challenge_write(&listener, hello.data(), key, challenge.data());
    }
    /* Who connects proves itself; what who listens thinks of it. */
    tw_status_t prove()
    {
        tw_greeting_proof_write(&connector, challenge.data(), proof.data());
        return check();
    }
    tw_status_t check()
    {
        return tw_greeting_welcome_write(&listener, proof.data(), welcome.data());
    }
    /* What who connects thinks of who listens. */
    tw_status_t believe()
    {
        return tw_greeting_welcome_check(&connector, welcome.data());
    }
};

TEST(Greeting, BothProveThemselvesAndHaveTheSameKeys)
{
    for (int cipher : {TW_CIPHER_NONE, TW_CIPHER_AES256_GCM, TW_CIPHER_CHACHA20_POLY1305}) {
        Ends ends((tw_cipher_t)cipher);
        tw_greeting_hello_t who;
        ASSERT_EQ(tw_greeting_hello_parse(ends.hello.data(), &who), TW_OK);
        EXPECT_EQ(who.source, 7u);
        EXPECT_EQ(who.target, 9u);
        EXPECT_EQ(who.stream, 2u);
        EXPECT_EQ(who.cipher, (uint32_t)cipher);
        EXPECT_EQ(ends.prove(), TW_OK);
        EXPECT_EQ(ends.believe(), TW_OK);
        if (cipher == TW_CIPHER_NONE) {
            continue;
        }
        uint8_t at_connector[2][TW_SEAL_KEY_BYTES], at_listener[2][TW_SEAL_KEY_BYTES];
        ASSERT_EQ(tw_greeting_keys(&ends.connector, 1, at_connector), TW_OK);
        ASSERT_EQ(tw_greeting_keys(&ends.listener, 0, at_listener), TW_OK);
        EXPECT_EQ(memcmp(at_connector, at_listener, sizeof(at_connector)), 0);
        EXPECT_NE(memcmp(at_connector[0], at_connector[1], sizeof(at_connector[0])), 0);
    }
}

/* Who has the token, and has heard all that was said, still lacks what neither end said. */
TEST(Greeting, KeysAreOfTheSecretsToo)
{
    Ends ends;
    uint8_t keys[2][TW_SEAL_KEY_BYTES], others[2][TW_SEAL_KEY_BYTES];
    ASSERT_EQ(ends.prove(), TW_OK);
    tw_greeting_t listens_in = ends.connector;
    listens_in.secret[5] ^= 1;
    ASSERT_EQ(tw_greeting_keys(&ends.connector, 1, keys), TW_OK);
    ASSERT_EQ(tw_greeting_keys(&listens_in, 1, others), TW_OK);
    EXPECT_NE(memcmp(keys[0], others[0], sizeof(keys[0])), 0);
    EXPECT_NE(memcmp(keys[1], others[1], sizeof(keys[1])), 0);
}

TEST(Greeting, NoBitOfItMayBeAnother)
{
    for (size_t bit = 0; bit < 8 * TW_GREETING_CHALLENGE_BYTES; bit += 3) {
        Ends ends;
        ends.challenge[bit / 8] ^= (uint8_t)(1u << bit % 8);
        EXPECT_EQ(ends.prove(), TW_ERR_AUTH) << bit;
        EXPECT_EQ(ends.believe(), TW_ERR_AUTH) << bit;
    }
    for (size_t bit = 0; bit < 8 * TW_GREETING_PROOF_BYTES; bit += 3) {
        Ends ends;
        ASSERT_EQ(ends.prove(), TW_OK);
        ends.welcome[bit / 8] ^= (uint8_t)(1u << bit % 8);
        EXPECT_EQ(ends.believe(), TW_ERR_AUTH) << bit;
        ends.proof[bit / 8] ^= (uint8_t)(1u << bit % 8);
        EXPECT_EQ(ends.check(), TW_ERR_AUTH) << bit;
    }
    /* What HELLO says is changed on the way: who, which stream, how it is sealed, the nonce, the public
     * key. */
    for (size_t at = 8; at < TW_GREETING_HELLO_BYTES; at++) {
        Ends ends;
        Bytes changed = ends.hello;
        changed[at] ^= at == 20 ? 3 : 1; /* another cipher that there is */
        tw_greeting_challenge_write(&ends.listener, changed.data(), ends.key, ends.challenge.data());
        EXPECT_EQ(ends.prove(), TW_ERR_AUTH) << at;
    }
}

TEST(Greeting, AnotherKeyIsNone)
{
    Ends ends;
    uint8_t other[TW_GREETING_KEY_BYTES] = {1, 2, 4};
    tw_greeting_challenge_write(&ends.listener, ends.hello.data(), other, ends.challenge.data());
    EXPECT_EQ(ends.prove(), TW_ERR_AUTH);
    EXPECT_EQ(ends.believe(), TW_ERR_AUTH);
}

/* Who has said HELLO, and proves nothing, has nothing that depends on the key: no guess at it can be told
 * right. */
TEST(Greeting, AStrangerGetsNothingToGuessBy)
{
    Ends ends;
    EXPECT_EQ(ends.check(), TW_ERR_AUTH);
    EXPECT_EQ(ends.welcome, Bytes(TW_GREETING_WELCOME_BYTES));
    /* The challenge is a nonce, and a public key of its own: with another key it is written alike. */
    EXPECT_EQ((size_t)TW_GREETING_CHALLENGE_BYTES, (size_t)32 + 32);
}

/* What one said once is worth nothing when the other begins anew; nor is the listener's own hash as a proof,
 * nor the proof as a welcome. */
TEST(Greeting, NothingCanBeSaidAgain)
{
    Ends ends;
    ASSERT_EQ(ends.prove(), TW_OK);
    const Bytes welcome = ends.welcome;
    ends.welcome = ends.proof;
    EXPECT_EQ(ends.believe(), TW_ERR_AUTH);
    ends.proof = welcome;
    EXPECT_EQ(ends.check(), TW_ERR_AUTH);
    ASSERT_EQ(ends.prove(), TW_OK);
    tw_greeting_challenge_write(&ends.listener, ends.hello.data(), ends.key, ends.challenge.data());
    EXPECT_EQ(ends.check(), TW_ERR_AUTH);
}

TEST(Greeting, KeysAreOfOneConnectionAlone)
{
    uint8_t keys[3][2][TW_SEAL_KEY_BYTES];
    for (auto &each : keys) {
        Ends ends;
        ASSERT_EQ(ends.prove(), TW_OK);
        ASSERT_EQ(tw_greeting_keys(&ends.connector, 1, each), TW_OK);
    }
    EXPECT_NE(memcmp(keys[0], keys[1], sizeof(keys[0])), 0);
    EXPECT_NE(memcmp(keys[1], keys[2], sizeof(keys[0])), 0);
}

TEST(Greeting, WhatIsNoHelloIsRefused)
{
    tw_greeting_hello_t who;
    for (size_t at : {(size_t)0, (size_t)3, (size_t)4,
                      (size_t)22}) { /* magic, version, zeros, the cipher's upper bytes */
        Ends ends;
        ends.hello[at] ^= 0x55;
        EXPECT_EQ(tw_greeting_hello_parse(ends.hello.data(), &who), at == 3 ? TW_ERR_CONFIG : TW_ERR_FORMAT)
            << at;
    }
}

/* ---- sealing ------------------------------------------------------------------------------------------- */

using Seal = std::unique_ptr<tw_seal_t, decltype(&tw_seal_destroy)>;

Seal make(tw_cipher_t cipher, uint8_t first = 1)
{
    const uint8_t key[TW_SEAL_KEY_BYTES] = {first};
    return {tw_seal_create(cipher, key), tw_seal_destroy};
}

std::vector<tw_cipher_t> ciphers()
{
    return tw_seal_has_aes() ? std::vector<tw_cipher_t>{TW_CIPHER_AES256_GCM, TW_CIPHER_CHACHA20_POLY1305}
                             : std::vector<tw_cipher_t>{TW_CIPHER_CHACHA20_POLY1305};
}

TEST(Seal, OpensWhatWasClosedAndNothingElse)
{
    for (tw_cipher_t cipher : ciphers()) {
        Seal out = make(cipher), in = make(cipher), other = make(cipher, 2);
        const Bytes plain(1000, 42);
        Bytes first(plain.size() + TW_SEAL_TAG_BYTES), second(first.size());
        tw_seal_close(out.get(), plain.data(), plain.size(), first.data());
        tw_seal_close(out.get(), plain.data(), plain.size(), second.data());
        EXPECT_NE(first, second) << "a nonce of its own for each";
        const auto opens = [&](const Seal &seal, Bytes piece) {
            const tw_status_t status = tw_seal_open(seal.get(), piece.data(), plain.size(), piece.data());
            return status == TW_OK && std::equal(plain.begin(), plain.end(), piece.begin());
        };
        EXPECT_FALSE(opens(other, first));
        EXPECT_TRUE(opens(in, first));
        EXPECT_TRUE(opens(in, second));
        EXPECT_FALSE(opens(in, second)) << "twice";
        Seal late = make(cipher);
        EXPECT_FALSE(opens(late, second)) << "the first is left out";
        for (size_t at : {(size_t)0, plain.size() - 1, plain.size(), first.size() - 1}) {
            Seal fresh = make(cipher);
            Bytes changed = first;
            changed[at] ^= 1;
            EXPECT_FALSE(opens(fresh, changed)) << at;
        }
    }
}

/* After so many bytes, or pieces, the next key, at both ends before the same piece; nobody who has either key
 * alone opens all of them. */
TEST(Seal, KeysAreRenewedAtBothEnds)
{
    for (tw_cipher_t cipher : ciphers()) {
        for (bool by_bytes : {true, false}) {
            Seal out = make(cipher), in = make(cipher), never = make(cipher);
            for (tw_seal_t *seal : {out.get(), in.get()}) {
                tw_seal_renew_after(seal, by_bytes ? 1000 : UINT64_MAX, by_bytes ? UINT64_MAX : 4);
            }
            Bytes piece(300 + TW_SEAL_TAG_BYTES), opened(300);
            for (int i = 0; i < 20; i++) { /* of 1000 bytes three, at most */
                const Bytes plain(by_bytes ? 300 : (size_t)i * 10, (uint8_t)i);
                tw_seal_close(out.get(), plain.data(), plain.size(), piece.data());
                const bool is_first = i < (by_bytes ? 3 : 4);
                EXPECT_EQ(tw_seal_open(never.get(), piece.data(), plain.size(), opened.data()),
                          is_first ? TW_OK : TW_ERR_AUTH)
                    << i;
                ASSERT_EQ(tw_seal_open(in.get(), piece.data(), plain.size(), opened.data()), TW_OK) << i;
                EXPECT_TRUE(std::equal(plain.begin(), plain.end(), opened.begin()));
            }
            EXPECT_EQ(tw_seal_renewals(out.get()), by_bytes ? 6u : 4u);
            EXPECT_EQ(tw_seal_renewals(in.get()), by_bytes ? 6u : 4u);
        }
    }
}

/* A piece longer than a key may seal has one of its own. */
TEST(Seal, ALongPieceGoesUnderANewKey)
{
    Seal out = make(TW_CIPHER_CHACHA20_POLY1305), in = make(TW_CIPHER_CHACHA20_POLY1305);
    Bytes piece(5000 + TW_SEAL_TAG_BYTES), opened(5000);
    for (tw_seal_t *seal : {out.get(), in.get()}) {
        tw_seal_renew_after(seal, 100, UINT64_MAX);
    }
    for (size_t bytes : {0, 5000, 100, 5000, 0, 1}) {
        tw_seal_close(out.get(), piece.data(), bytes, piece.data());
        EXPECT_EQ(tw_seal_open(in.get(), piece.data(), bytes, opened.data()), TW_OK);
    }
    EXPECT_EQ(tw_seal_renewals(out.get()), tw_seal_renewals(in.get()));
}

} // namespace
