/** A registry: where the ranks of a communicator tell that they have the interposer, and hear whether all of
 *  them do. It is a listening socket and a thread in the process that makes the communicator's id.
 *
 *  Ranks cannot ask each other over the communicator: a rank without the library would take what they send
 *  for its own collective, and both would go on with wrong values. So each rank that has it registers before
 *  NCCL makes the communicator. NCCL makes no communicator until all ranks have come. So whoever asks
 *  afterwards hears of everybody who has the library: a rank that has not registered by then lacks it. The
 *  registry gives its first answer to all. A rank that has registered, or may have, and gets no answer fails:
 *  it does not know what the others do.
 *
 *  What is sent carries a keyed hash; the key comes with the id. Private to the folder. */
#pragma once

#include "plugin/interpose/registry_messages.h"

TW_C_BEGIN

/** Let ranks meet here under this name and key. The first call opens the registry, at place->address and
 *  place->port; if the port is 0, at a free one, which is written to `place`. Any thread. TW_ERR_IO, silent:
 *  there is no such address, the port is taken, or there is no socket or thread to be had. */
tw_status_t tw_ip_registry_open(tw_ip_place_t *place);

/** Register a rank. TW_ERR_NOT_FOUND, silent: the registry was not reached within connect_sec, so it does not
 *  know of this rank. TW_ERR_PEER (logged): it may know of it. */
tw_status_t tw_ip_registry_register(const tw_ip_place_t *place, const tw_ip_entry_t *entry,
                                    double connect_sec);
/** Ask for the verdict. Waits for ranks that have not come, for entry->wait_ms at most. TW_ERR_PEER (logged):
 *  no answer came. */
tw_status_t tw_ip_registry_ask(const tw_ip_place_t *place, const tw_ip_entry_t *entry,
                               tw_ip_answer_t *answer);

TW_C_END
