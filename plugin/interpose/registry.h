/** A registry: ranks of a communicator tell it that they have the interposer, and it tells them whether all
 *  ranks do. It is a listening socket and a thread in the process that makes the communicator's id.
 *
 *  Ranks cannot ask each other over the communicator. A rank without the library would take the question for
 *  data of its own collective, and both would go on with wrong values. So each rank with the library
 *  registers before NCCL makes the communicator, and asks afterwards. NCCL makes a communicator only when all
 *  ranks have called it, so by then every rank with the library has registered. The registry gives all ranks
 *  the answer that it gave first. A rank that may have registered and gets no answer fails, because it does
 *  not know what the other ranks do.
 *
 *  Messages carry a keyed hash; its key comes from the id. Private to the folder. */
#pragma once

#include "plugin/interpose/registry_messages.h"

TW_C_BEGIN

/** Add a meeting with this name and key to the registry at place->address and place->port, and open that
 *  registry if it does not exist. If the port is 0, any registry at the address will do, and its port is
 *  written to place->port. Any thread. TW_ERR_IO (not logged): the address does not exist, the port is taken,
 *  or there is no memory, socket or thread. */
tw_status_t tw_ip_registry_open(tw_ip_place_t *place);

/** Register a rank. TW_ERR_NOT_FOUND (not logged): the registry was not reached within connect_sec, so this
 *  rank is not registered. TW_ERR_PEER (logged): the rank may be registered or not. */
tw_status_t tw_ip_registry_register(const tw_ip_place_t *place, const tw_ip_entry_t *entry,
                                    double connect_sec);
/** Ask for the verdict. The registry waits for ranks that have not registered, for entry->wait_ms at most.
 *  TW_ERR_PEER (logged): no answer came. */
tw_status_t tw_ip_registry_ask(const tw_ip_place_t *place, const tw_ip_entry_t *entry,
                               tw_ip_answer_t *answer);

TW_C_END
