/** Computes and checks the hashes of messages between a rank and a registry. */
#include "plugin/interpose/registry_messages.h"

#include <sodium.h>

void tw_ip_sign(const tw_ip_session_t *session, char letter, const void *message, size_t bytes,
                uint8_t mac[TW_IP_MAC_BYTES])
{
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, session->key, sizeof(session->key), TW_IP_MAC_BYTES);
    (void)crypto_generichash_update(&state, (const uint8_t *)&letter, 1);
    (void)crypto_generichash_update(&state, session->rank_nonce, sizeof(session->rank_nonce));
    (void)crypto_generichash_update(&state, session->registry_nonce, sizeof(session->registry_nonce));
    (void)crypto_generichash_update(&state, message, bytes);
    (void)crypto_generichash_final(&state, mac, TW_IP_MAC_BYTES);
}

int tw_ip_is_signed(const tw_ip_session_t *session, char letter, const void *message, size_t bytes,
                    const uint8_t mac[TW_IP_MAC_BYTES])
{
    uint8_t own[TW_IP_MAC_BYTES];
    tw_ip_sign(session, letter, message, bytes, own);
    return sodium_memcmp(own, mac, sizeof(own)) == 0;
}
