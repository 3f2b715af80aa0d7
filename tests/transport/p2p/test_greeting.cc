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
          proof = Bytes(TW_GREETING_PROOF_BYTES);
    uint8_t key[TW_GREETING_KEY_BYTES] = {1, 2, 3};

    explicit Ends(tw_cipher_t cipher = TW_CIPHER_AES256_GCM)
    {
        tw_greeting_hello_t who = {7, 9, 2, (uint32_t)cipher};
        (void)tw_seal_has_aes(); /* starts libsodium */
        tw_greeting_hello_write(&connector, &who, key, hello.data());
        tw_greeting_challenge_write(&listener, hello.data(), key, challenge.data());
    }
    tw_status_t prove()
    {
        return tw_greeting_proof_write(&connector, challenge.data(), proof.data());
    }
    tw_status_t check()
    {
        return tw_greeting_proof_check(&listener, proof.data());
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
        EXPECT_EQ(ends.check(), TW_OK);
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
    }
    for (size_t bit = 0; bit < 8 * TW_GREETING_PROOF_BYTES; bit += 3) {
        Ends ends;
        ASSERT_EQ(ends.prove(), TW_OK);
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
}

/* What one said once is worth nothing when the other begins anew; nor is the listener's own hash as a
 * proof. */
TEST(Greeting, NothingCanBeSaidAgain)
{
    Ends ends;
    ASSERT_EQ(ends.prove(), TW_OK);
    tw_greeting_challenge_write(&ends.listener, ends.hello.data(), ends.key, ends.challenge.data());
    EXPECT_EQ(ends.check(), TW_ERR_AUTH);
    memcpy(ends.proof.data(), &ends.challenge[TW_GREETING_CHALLENGE_BYTES - TW_GREETING_PROOF_BYTES],
           TW_GREETING_PROOF_BYTES);
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

} // namespace
