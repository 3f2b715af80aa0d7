/* Ends of p2p in one process, moved by one thread: what its tests share. */
#ifndef TW_TESTS_TRANSPORT_P2P_ENDS_H
#define TW_TESTS_TRANSPORT_P2P_ENDS_H

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/common/fixture.h"
#include "transport/p2p/state.h"

namespace ends
{

constexpr double patience_sec = 30; /* more than anything takes */

using Bytes = std::vector<uint8_t>;

/* Differs with the seed, and from place to place. */
Bytes pattern(size_t bytes, size_t seed);

Bytes card_of(const tw_p2p_t *p2p);

/* Where it listens on its first device. */
int port_of(const tw_p2p_t *p2p);

/* A socket connected to a port of this machine. */
int dial(int port);

class Fixture : public tw::Fixture
{
  protected:
    using Ends = std::vector<tw_p2p_t *>;

    /* Move them, those of them that there are, until it is so: false if it never is. */
    static bool until(const Ends &who, const std::function<bool()> &what);

    static tw_transport_message_t message_of(uint64_t tag, const Bytes &data);
    static tw_p2p_request_t *post(tw_p2p_peer_t *peer, const tw_transport_message_t &message, bool is_send);
    static tw_p2p_request_t *send(tw_p2p_peer_t *peer, uint64_t tag, const Bytes &data);
    static tw_p2p_request_t *recv(tw_p2p_peer_t *peer, uint64_t tag, const Bytes &data);

    /* Move them until it has ended. */
    static tw_status_t wait(const Ends &who, tw_p2p_request_t *request, size_t *bytes = nullptr);
};

} // namespace ends

#endif
