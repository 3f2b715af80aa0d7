/** What every backend must do, as functions that each rank of a world runs: the local backend's test runs
 *  them in threads, the network backend's in processes. A failed check throws. */
#ifndef TW_TESTS_TRANSPORT_CONTRACT_H
#define TW_TESTS_TRANSPORT_CONTRACT_H

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace contract
{

/** Throws std::runtime_error with file, line and text. */
[[noreturn]] void fail(const char *file, int line, const std::string &text);

#define CONTRACT_CHECK(condition)                           \
    do {                                                    \
        if (!(condition))                                   \
            contract::fail(__FILE__, __LINE__, #condition); \
    } while (0)
#define CONTRACT_EQ(a, b)                                                                                   \
    do {                                                                                                    \
        const long long contract_a = (long long)(a), contract_b = (long long)(b);                           \
        if (contract_a != contract_b)                                                                       \
            contract::fail(__FILE__, __LINE__,                                                              \
                           #a " is " + std::to_string(contract_a) + ", not " + std::to_string(contract_b)); \
    } while (0)

struct Case {
    const char *name;
    int min_world;
    bool ends_job; /**< nothing can follow */
    /** May destroy the transport, and sets it to NULL then. */
    void (*run)(tw_transport_t *&transport);
};

/** Tell GoogleTest how to print a case. */
inline void PrintTo(const Case &c, std::ostream *out)
{
    *out << c.name;
}

const std::vector<Case> &cases();
/** Find a case by its name; NULL if there is none. */
const Case *find(const std::string &name);

/* For other tests as well. */

tw_status_t wait(tw_transport_t *t, tw_transport_request_t *request);
tw_transport_request_t *send(tw_transport_t *t, int peer, uint64_t tag, const void *buffer, size_t bytes);
tw_transport_request_t *recv(tw_transport_t *t, int peer, uint64_t tag, void *buffer, size_t bytes);
/** Bytes that tell a message from every other one. */
std::vector<uint8_t> pattern(size_t bytes, int from, int to, int salt = 0);
void barrier(tw_transport_t *t);

} // namespace contract

#endif
