#include "transport/monitor/outage.h"

#include <stdlib.h>

/** Silences that ended more than this many times long_ns ago do not count any more. This is twice the
 *  timeout, by which time every rank has a verdict. */
#define LATELY 8

/** Smallest share of a silence that must be an outage. When seven heartbeats are missing, the outage began up
 *  to one interval after the last heartbeat that arrived, and data that is resent after an outage is late by
 *  up to the outage's length. */
#define OUTAGE_SHARE (3.0 / 7)

static int node_of(const tw_outages_t *outages, int rank)
{
    return outages->node_of ? outages->node_of[rank] : rank;
}

static int link_is_far(const tw_outages_t *outages, int rank)
{
    return node_of(outages, rank) != node_of(outages, 0);
}

tw_status_t tw_outages_init(tw_outages_t *outages, int world, const int *node_of_ranks, uint64_t long_ns,
                            uint64_t now)
{
    *outages = (tw_outages_t){
        .world = world, .node_of = node_of_ranks, .long_ns = long_ns, .others = {.heard_ns = now}};
    outages->nodes = calloc((size_t)world, sizeof(*outages->nodes));
    outages->n_here = calloc((size_t)world, sizeof(*outages->n_here));
    if (!outages->nodes || !outages->n_here) {
        tw_outages_cleanup(outages);
        return TW_ERR_NO_MEMORY;
    }
    for (int r = 0; r < world; r++) {
        outages->nodes[r].heard_ns = now;
        outages->n_here[node_of(outages, r)]++;
    }
    return TW_OK;
}

void tw_outages_cleanup(tw_outages_t *outages)
{
    free(outages->nodes);
    free(outages->n_here);
    *outages = (tw_outages_t){0};
}

/* ---- what is heard ------------------------------------------------------------------------------------- */

static void outage_hear(tw_silence_t *silence, uint64_t long_ns, uint64_t now)
{
    if (now > silence->heard_ns && now - silence->heard_ns >= long_ns) {
        silence->from_ns = silence->heard_ns;
        silence->to_ns = now;
        silence->excused_ns = silence->late_ns;
    }
    silence->heard_ns = now;
    silence->late_ns = 0;
}

void tw_outages_hear(tw_outages_t *outages, int rank, uint64_t now)
{
    outage_hear(&outages->nodes[node_of(outages, rank)], outages->long_ns, now);
    if (link_is_far(outages, rank)) {
        outage_hear(&outages->others, outages->long_ns, now);
    }
}

/** Excuse a silence by time in which a process did not run. Both ends may have waited for processors at the
 *  same time, so the longer wait counts. */
static void excuse(tw_silence_t *silence, uint64_t late_ns)
{
    silence->late_ns = late_ns > silence->late_ns ? late_ns : silence->late_ns;
}

void tw_outages_late(tw_outages_t *outages, int rank, uint64_t late_ns)
{
    if (rank > 0) {
        excuse(&outages->nodes[node_of(outages, rank)], late_ns);
    }
    if (link_is_far(outages, rank)) {
        excuse(&outages->others, late_ns);
    }
    for (int n = 0; rank == 0 && n < outages->world; n++) {
        outages->nodes[n].late_ns += late_ns;
    }
    outages->others.late_ns += rank == 0 ? late_ns : 0;
}

void tw_outages_close(tw_outages_t *outages, int rank)
{
    outages->n_here[node_of(outages, rank)]--;
}

void tw_outages_pause(tw_outages_t *outages, uint64_t pause_ns, uint64_t now)
{
    for (int n = 0; n < outages->world; n++) {
        outages->nodes[n].heard_ns += pause_ns;
    }
    outages->others.heard_ns += pause_ns;
    if (pause_ns >= outages->long_ns) {
        outages->paused_ns = now;
    }
}

/* ---- what follows from it ------------------------------------------------------------------------------ */

/** Return how much of [from, to] overlaps [a, b]. */
static uint64_t overlap(uint64_t a, uint64_t b, uint64_t from, uint64_t to)
{
    const uint64_t first = a > from ? a : from, last = b < to ? b : to;
    return last > first ? last - first : 0;
}

static uint64_t without(uint64_t ns, uint64_t excused_ns)
{
    return ns > excused_ns ? ns - excused_ns : 0;
}

/** Return 1 if there was a silence in [from, now] that no process's delay explains. It may still go on. */
static int was_silent(const tw_silence_t *silence, uint64_t long_ns, uint64_t from, uint64_t now)
{
    const uint64_t over_ns = overlap(silence->from_ns, silence->to_ns, from, now);
    const uint64_t still_ns = overlap(silence->heard_ns, now, from, now);
    return without(over_ns, silence->excused_ns) >= long_ns || without(still_ns, silence->late_ns) >= long_ns;
}

/** Return 1 if there are at least two other nodes to compare. */
static int can_tell(const tw_outages_t *outages)
{
    int n = 0;
    for (int node = 0; node < outages->world; node++) {
        n += outages->n_here[node] > 0 && node != node_of(outages, 0);
    }
    return n > 1;
}

/** Returns 1 if all other nodes were silent at the same time, for at least long_ns. */
static int own_link_was_down(const tw_outages_t *outages, uint64_t long_ns, uint64_t from, uint64_t now)
{
    return can_tell(outages) && was_silent(&outages->others, long_ns, from, now);
}

static uint64_t lately(const tw_outages_t *outages, uint64_t now)
{
    const uint64_t span_ns = LATELY * outages->long_ns;
    return now > span_ns ? now - span_ns : 0;
}

int tw_outages_blame_silent(const tw_outages_t *outages, int rank, uint64_t heard_ns, uint64_t now)
{
    const uint64_t outage_ns = (uint64_t)((double)without(now, heard_ns) * OUTAGE_SHARE);
    return link_is_far(outages, rank) && own_link_was_down(outages, outage_ns, heard_ns, now) ? 0 : rank;
}

int tw_outages_blame_complaint(const tw_outages_t *outages, int rank, uint64_t now)
{
    const uint64_t from = lately(outages, now);
    if (!link_is_far(outages, rank) || !can_tell(outages) || outages->paused_ns > from) {
        return 0;
    }
    return own_link_was_down(outages, outages->long_ns, from, now) ? 0 : rank;
}

/** Return 1 if rank 0 has seen that the node of `rank` was cut off from the others. */
static int was_cut_off(const tw_outages_t *outages, int rank, uint64_t from, uint64_t now)
{
    const int own = own_link_was_down(outages, outages->long_ns, from, now);
    return link_is_far(outages, rank)
               ? !own && was_silent(&outages->nodes[node_of(outages, rank)], outages->long_ns, from, now)
               : own;
}

int tw_outages_blame_suspicion(const tw_outages_t *outages, int by, int suspect, uint64_t now)
{
    const uint64_t from = lately(outages, now);
    return can_tell(outages) && was_cut_off(outages, by, from, now) &&
                   !was_cut_off(outages, suspect, from, now)
               ? by
               : suspect;
}
