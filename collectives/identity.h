/** What the members of a communicator agree on first: that they mean the same communicator, and its id. */
#pragma once

#include "collectives/model/bootstrap.h"

TW_C_BEGIN

#define TW_COLL_MAX_ID 255

/** The ids that are in use on this rank, one bit each. */
typedef struct tw_identity_ids {
    uint64_t bits[4];
} tw_identity_ids_t;

/** Agree on an id. boot: its tags must not depend on the id. terms: a hash of what must be equal on all
 *  members, except the list of ranks. asked: 1 to TW_COLL_MAX_ID, or 0 for the lowest id that is free on all
 *  members. Marks *id as used in `ids`. TW_ERR_INVALID (logged with the rank): `asked` is in use on a
 *  member, or no id is free. TW_ERR_MISMATCH (logged with the rank): members ask for different ids, differ
 *  in their terms, or list different ranks; in the last case the job ends, since members may wait for ranks
 *  that do not list them. TW_ERR_TIMEOUT (logged) as in bootstrap.h. */
tw_status_t tw_identity_agree(tw_bootstrap_t *boot, tw_identity_ids_t *ids, uint64_t terms, int asked,
                              int *id);
/** Returns 1 if any id is in use. */
int tw_identity_any(const tw_identity_ids_t *ids);
/** Make an id free again. */
void tw_identity_free(tw_identity_ids_t *ids, int id);

TW_C_END
