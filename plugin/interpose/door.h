/** A door: where the ranks of a communicator tell that they have the interposer, and hear whether all of them
 *  do. It is a listening socket and a thread in the process that makes the communicator's id.
 *
 *  Ranks cannot ask each other over the communicator: a rank without the library would take what they send
 *  for its own collective, and both would go on with wrong values. So each rank that has it registers at the
 *  door before NCCL makes the communicator. NCCL makes none until all ranks have come: whoever asks
 *  afterwards hears of everybody who has the library, and whoever is not there lacks it. The first answer
 *  stays. A rank that has registered, or may have, and gets no answer fails: it does not know what the others
 *  do.
 *
 *  What is sent carries a keyed hash; the key comes with the id. Private to the folder. */
#ifndef TW_PLUGIN_INTERPOSE_DOOR_H
#define TW_PLUGIN_INTERPOSE_DOOR_H

#include "plugin/interpose/door_messages.h"

TW_C_BEGIN

/** Let ranks meet here under this name and key; the door opens with the first, at place->address and its
 *  port, or one that is free (0), which is then in `place`. Any thread. TW_ERR_IO: there is no such address,
 *  the port is taken, or no socket, or thread; silent. */
tw_status_t tw_ip_door_open(tw_ip_place_t *place);

/** Register at a door. TW_ERR_NOT_FOUND, silent: it was not reached within connect_sec, so it does not know
 *  of this rank. TW_ERR_PEER (logged): it may. */
tw_status_t tw_ip_door_register(const tw_ip_place_t *place, const tw_ip_guest_t *guest, double connect_sec);
/** Hear the verdict; waits for those who have not come, for guest->wait_ms at most. TW_ERR_PEER (logged): no
 *  answer. */
tw_status_t tw_ip_door_ask(const tw_ip_place_t *place, const tw_ip_guest_t *guest, tw_ip_answer_t *answer);

TW_C_END

#endif
