/** A transport between the threads of one process, for tests. Nothing is ever buffered, so code that counts
 *  on buffering hangs here rather than on a cluster. */
#ifndef TW_TESTS_TRANSPORT_LOCAL_H
#define TW_TESTS_TRANSPORT_LOCAL_H

#include "transport/transport.h"

TW_C_BEGIN

/** Transports of all ranks of a world: rank r uses out[r] alone. node_of: [world] node of each rank, or NULL
 *  for one rank per node. Each is destroyed by itself. TW_ERR_INVALID, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_transport_local_create(int world, const int *node_of, tw_transport_t **out);

TW_C_END

#endif
