/** Who may reach the sockets that UCX listens on over TCP. UCX ends the process on a greeting that it does not like, so the
 *  kernel drops what strangers send before UCX sees it: a classic BPF filter on the listening socket, which needs no privilege.
 *  First nobody is let in; while peers open their connections, who comes from an address of a peer on another node; then
 *  nobody any more. Private to the folder. */
#ifndef TW_TRANSPORT_GUARD_H
#define TW_TRANSPORT_GUARD_H

#include "core/core.h"

TW_C_BEGIN

#define TW_GUARD_ADDRESS_BYTES 16 /**< IPv6, or IPv4 mapped into it */

typedef struct tw_guard {
    int listener; /**< UCX's, borrowed; -1: not found */
    int port;     /**< its own */
    int *before;  /**< [n_before] sockets that were listening before UCX's was made */
    int n_before;
} tw_guard_t;

/** Call it right before UCX makes a worker. */
void tw_guard_init(tw_guard_t *guard);
void tw_guard_cleanup(tw_guard_t *guard);
/** Find the socket that is new and whose port is in the worker's address, and let nobody in. TW_ERR_UNSUPPORTED, silent: there
 *  is none, or the kernel takes no filter; then nothing is filtered. */
tw_status_t tw_guard_close(tw_guard_t *guard, const void *address, size_t bytes);
/** Let in who comes from one of the addresses, [n] of TW_GUARD_ADDRESS_BYTES, and nobody else. TW_ERR_UNSUPPORTED, silent: the
 *  list is too long for the kernel; then everybody is let in. */
tw_status_t tw_guard_admit(tw_guard_t *guard, const uint8_t *addresses, size_t n);
/** All are in: let nobody in any more, and take the filter off the connections that were made meanwhile. */
void tw_guard_shut(tw_guard_t *guard);

TW_C_END

#endif
