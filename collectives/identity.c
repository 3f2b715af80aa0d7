#include "collectives/identity.h"

#include <stdlib.h>
#include <xxhash.h>

/** What a member tells every other member: its list of ranks, and which ids it can take. */
typedef struct proposal {
    uint64_t group; /**< hash of the list of ranks */
    uint64_t terms;
    uint64_t asked; /**< the id that the caller gave, or 0 */
    tw_identity_ids_t in_use;
} proposal_t;

typedef struct meeting {
    tw_bootstrap_t *boot;
    proposal_t *proposals;              /**< [W] */
    tw_bootstrap_message_t *sent, *got; /**< [W] */
} meeting_t;

static tw_status_t disagree(const meeting_t *m, int member, const char *what)
{
    return tw_fail(TW_ERR_MISMATCH, "rank %d: making a communicator: rank %d %s",
                   tw_transport_rank(m->boot->transport), m->boot->topo->peer[member], what);
}

/** Give up the job if a member lists other ranks: a rank may wait for one that does not list it. */
static tw_status_t check_group(const meeting_t *m, int member)
{
    if (m->proposals[member].group == m->proposals[m->boot->topo->rank].group) {
        return TW_OK;
    }
    tw_status_t status = disagree(m, member, "lists other ranks, or lists them in another order");
    tw_transport_abort(m->boot->transport, "ranks disagree about the members of a communicator");
    return status;
}

static tw_status_t identity_post(meeting_t *m)
{
    const tw_topo_t *topo = m->boot->topo;
    tw_status_t status = TW_OK;
    for (int r = 0; r < topo->world && status == TW_OK; r++) {
        if (r == topo->rank) {
            continue;
        }
        status = tw_bootstrap_recv(m->boot, r, TW_BOOTSTRAP_EXCHANGE, &m->proposals[r], sizeof(proposal_t),
                                   &m->got[r]);
        if (status == TW_OK) {
            status = tw_bootstrap_send(m->boot, r, TW_BOOTSTRAP_EXCHANGE, &m->proposals[topo->rank],
                                       sizeof(proposal_t), &m->sent[r]);
        }
    }
    return status;
}

/** Test all proposals. TW_IN_PROGRESS: the proposal of member *awaited has not come yet. All are tested each
 *  time, so that a wrong one is found at once, even if others are late. */
static tw_status_t listen(meeting_t *m, int *awaited)
{
    tw_status_t status = TW_OK;
    for (int r = 0; r < m->boot->topo->world; r++) {
        int waiting = m->got[r].request != NULL;
        tw_status_t one = tw_bootstrap_test(m->boot, &m->got[r]);
        if (one == TW_OK && waiting) {
            one = check_group(m, r);
        }
        if (one < 0) {
            return one;
        }
        if (one == TW_IN_PROGRESS) {
            *awaited = r;
            status = one;
        }
    }
    return status;
}

static tw_status_t identity_exchange(meeting_t *m)
{
    int awaited = 0, world = m->boot->topo->world;
    tw_status_t status = identity_post(m);
    while (status == TW_OK && (status = listen(m, &awaited)) == TW_IN_PROGRESS) {
        status = tw_bootstrap_step(m->boot, awaited);
    }
    status = status == TW_OK ? tw_bootstrap_wait(m->boot, m->sent, world) : status;
    tw_bootstrap_cancel(m->boot, m->got, world);
    tw_bootstrap_cancel(m->boot, m->sent, world);
    return status;
}

static int is_in_use(const tw_identity_ids_t *ids, int id)
{
    return ids->bits[id / 64] >> (id % 64) & 1;
}

/** Find a member that uses the id. Returns -1 if none does. */
static int find_user(const meeting_t *m, int id)
{
    for (int r = 0; r < m->boot->topo->world; r++) {
        if (is_in_use(&m->proposals[r].in_use, id)) {
            return r;
        }
    }
    return -1;
}

/** Choose an id. All members have the same proposals, so they choose the same id. */
static tw_status_t identity_choose(const meeting_t *m, int *id)
{
    const tw_topo_t *topo = m->boot->topo;
    const proposal_t *own = &m->proposals[topo->rank];
    int user = -1, rank = tw_transport_rank(m->boot->transport);
    for (int r = 0; r < topo->world; r++) {
        if (m->proposals[r].asked != own->asked) {
            return disagree(m, r, "asks for another id");
        }
        if (m->proposals[r].terms != own->terms) {
            return disagree(m, r,
                            "asks for another kind (memory, wire, deterministic, TW_COLL_CHECK, "
                            "TW_COLL_SCRATCH, TW_COLL_MODEL)");
        }
    }
    for (*id = own->asked > 0 ? (int)own->asked : 1; *id <= TW_COLL_MAX_ID; (*id)++) {
        user = find_user(m, *id);
        if (user < 0 || own->asked > 0) {
            break;
        }
    }
    TW_FAIL_IF(*id > TW_COLL_MAX_ID, TW_ERR_INVALID, "rank %d: making a communicator: all %d ids are in use",
               rank, TW_COLL_MAX_ID);
    TW_FAIL_IF(user >= 0, TW_ERR_INVALID, "rank %d: making a communicator: id %d is in use on rank %d", rank,
               *id, topo->peer[user]);
    return TW_OK;
}

tw_status_t tw_identity_agree(tw_bootstrap_t *boot, tw_identity_ids_t *ids, uint64_t terms, int asked,
                              int *id)
{
    const tw_topo_t *topo = boot->topo;
    size_t world = (size_t)topo->world;
    meeting_t m = {
        .boot = boot,
        .proposals = calloc(world, sizeof(*m.proposals)),
        .sent = calloc(world, sizeof(*m.sent)),
        .got = calloc(world, sizeof(*m.got)),
    };
    tw_status_t status = TW_ERR_NO_MEMORY;
    int chosen = 0;
    if (m.proposals && m.sent && m.got) {
        m.proposals[topo->rank] = (proposal_t){
            .group = XXH3_64bits(topo->peer, world * sizeof(*topo->peer)),
            .terms = terms,
            .asked = (uint64_t)asked,
            .in_use = *ids,
        };
        status = identity_exchange(&m);
    }
    status = status == TW_OK ? identity_choose(&m, &chosen) : status;
    if (status == TW_OK) {
        ids->bits[chosen / 64] |= (uint64_t)1 << (chosen % 64);
        *id = chosen;
    }
    free(m.got);
    free(m.sent);
    free(m.proposals);
    return status;
}

int tw_identity_any(const tw_identity_ids_t *ids)
{
    return (ids->bits[0] | ids->bits[1] | ids->bits[2] | ids->bits[3]) != 0;
}

void tw_identity_free(tw_identity_ids_t *ids, int id)
{
    ids->bits[id / 64] &= ~((uint64_t)1 << (id % 64));
}
