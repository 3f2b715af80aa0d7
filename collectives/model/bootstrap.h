/** How the members of a communicator wait for messages and agree on something while they measure: before there are
 *  schedules. All collective; member 0 is in the middle. */
#ifndef TW_COLLECTIVES_MODEL_BOOTSTRAP_H
#define TW_COLLECTIVES_MODEL_BOOTSTRAP_H

#include "collectives/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Tags, from tw_coll_peers.tag on. */
enum { TW_MEET_TAG_DATA, TW_MEET_TAG_ACK, TW_MEET_TAG_GATHER, TW_MEET_TAG_BROADCAST, TW_MEET_TAG_COUNT };

/** TW_OK if the request is done (then it is set to NULL) or there is none. */
tw_status_t tw_meet_test(tw_transport_t *transport, tw_transport_request_t **request);
/** Move the transport on, or sleep until something may have happened. */
tw_status_t tw_meet_step(tw_transport_t *transport);
/** requests: [n], NULL: none. After an error nothing is in flight any more. */
tw_status_t tw_meet_wait(tw_transport_t *transport, tw_transport_request_t **requests, int n);
void tw_meet_cancel(tw_transport_t *transport, tw_transport_request_t **requests, int n);

/** Every member's `bytes` to member 0, in `all` [world][bytes] there; NULL elsewhere. */
tw_status_t tw_meet_gather(const tw_coll_peers_t *peers, const void *mine, size_t bytes, char *all);
/** Member 0's `bytes` to every member. */
tw_status_t tw_meet_broadcast(const tw_coll_peers_t *peers, void *data, size_t bytes);
/** All members leave together and have the same flag: 1 if one of them has. */
tw_status_t tw_meet_any(const tw_coll_peers_t *peers, int *flag);

#ifdef __cplusplus
}
#endif

#endif
