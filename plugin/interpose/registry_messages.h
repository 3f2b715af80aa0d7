/** Messages between a rank and a registry. Each question has its own connection:
 *      rank                              registry
 *      hello      name, nonce        ->
 *                                    <-  welcome    nonce; hash          (an unknown name: closes instead)
 *      question   what, who; hash    ->
 *                                    <-  answer     hash
 *  A hash covers the key, both nonces, and the message. Numbers are in the machine's byte order: both ends
 *  have the same. Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_IP_NAME_BYTES 16
#define TW_IP_KEY_BYTES 32
#define TW_IP_SAID_BYTES 200

/** A meeting's name and key, and where its registry is. */
typedef struct tw_ip_place {
    uint8_t address[16]; /**< IPv4 mapped into IPv6 */
    uint16_t port;
    uint8_t name[TW_IP_NAME_BYTES];
    uint8_t key[TW_IP_KEY_BYTES];
} tw_ip_place_t;

/** What a rank tells the registry about itself. */
typedef struct tw_ip_entry {
    uint32_t rank, world;
    uint32_t cannot;  /**< 1: the rank has the library, but cannot use it */
    uint32_t wait_ms; /**< longest wait of the registry for ranks that have not registered */
    uint64_t terms;   /**< hash of the settings that must be the same on all ranks */
    uint64_t process; /**< random number of this process: tells whether two ranks are one process */
} tw_ip_entry_t;

typedef enum tw_ip_verdict {
    /** all ranks have the library and can use it, with equal `terms`, and no two ranks share a process */
    TW_IP_ALL_HERE = 1,
    TW_IP_NOT_ALL,
    TW_IP_ONE_CANNOT,
    TW_IP_TERMS_DIFFER,
    TW_IP_SHARED_PROCESS,
} tw_ip_verdict_t;

typedef struct tw_ip_answer {
    uint32_t verdict;
    uint32_t speaker;            /**< the lowest registered rank: it alone prints `said` for the user */
    char said[TW_IP_SAID_BYTES]; /**< the reason of a verdict other than TW_IP_ALL_HERE, for users */
} tw_ip_answer_t;

#define TW_IP_NONCE_BYTES 16
#define TW_IP_MAC_BYTES 32

typedef struct tw_ip_hello {
    uint8_t name[TW_IP_NAME_BYTES];
    uint8_t nonce[TW_IP_NONCE_BYTES];
} tw_ip_hello_t;

typedef struct tw_ip_welcome {
    uint8_t nonce[TW_IP_NONCE_BYTES];
    uint8_t mac[TW_IP_MAC_BYTES];
} tw_ip_welcome_t;

typedef enum tw_ip_what { TW_IP_REGISTER = 1, TW_IP_ASK } tw_ip_what_t;

typedef struct tw_ip_question {
    uint64_t what;
    tw_ip_entry_t entry;
    uint8_t mac[TW_IP_MAC_BYTES];
} tw_ip_question_t;

typedef struct tw_ip_reply {
    tw_ip_answer_t answer;
    uint8_t mac[TW_IP_MAC_BYTES];
} tw_ip_reply_t;

/** The key and nonces that go into each hash on one connection. */
typedef struct tw_ip_session {
    uint8_t key[TW_IP_KEY_BYTES];
    uint8_t rank_nonce[TW_IP_NONCE_BYTES], registry_nonce[TW_IP_NONCE_BYTES];
} tw_ip_session_t;

/** Compute a message's hash, which includes its kind: 'w' (welcome), 'q' (question) or 'a' (answer). */
void tw_ip_sign(const tw_ip_session_t *session, char letter, const void *message, size_t bytes,
                uint8_t mac[TW_IP_MAC_BYTES]);
int tw_ip_is_signed(const tw_ip_session_t *session, char letter, const void *message, size_t bytes,
                    const uint8_t mac[TW_IP_MAC_BYTES]);

TW_C_END
