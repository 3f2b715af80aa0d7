/* What is wrong, of figures alone. A node is blamed where all that it sends or receives is slow; else the
 * pair. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench/doctor/judge.h"

/* Below this share of what is usual it is slow. */
#define SLOW_SHARE 0.7
/* Several streams are faster than one from here on. */
#define STREAMS_GAIN 1.3
/* Below this share of what the devices say, all links are slow. */
#define SPEED_SHARE 0.6
#define REPEATED_SHARE 0.02
#define REPEATED_MIN 50
/* Of pairs the worst are said. */
#define PAIRS_MAX 3
#define NOTHING_FACTOR 1e6
#define HINT "ethtool %s; tc qdisc show dev %s; its cable and its port of the switch"

const doctor_facts_t *doctor_node(const doctor_result_t *result, int node)
{
    return &result->facts[result->leader[node]];
}

const char *judge_device(const judge_t *judge, int node, int device)
{
    return doctor_node(judge->result, node)->devices[device].name;
}

static const char *rate_text(double bps, char buf[32])
{
    static const char *const units[] = {"bit/s", "Kb/s", "Mb/s", "Gb/s"};
    int unit = 0;
    while (bps >= 1000 && unit < 3) {
        bps /= 1000;
        unit++;
    }
    snprintf(buf, 32, "%.*f %s", bps < 10 ? 2 : bps < 100 ? 1 : 0, bps, units[unit]);
    return buf;
}

doctor_finding_t *judge_add(judge_t *judge, double weight)
{
    static doctor_finding_t beyond;
    doctor_findings_t *out = judge->out;
    doctor_finding_t *finding = out->n < DOCTOR_FINDINGS_MAX ? &out->list[out->n++] : NULL;
    for (int i = 0; !finding && i < out->n; i++) { /* so many are not read: a lighter one gives way */
        finding = out->list[i].weight < weight ? &out->list[i] : NULL;
    }
    finding = finding ? finding : &beyond;
    *finding = (doctor_finding_t){.weight = weight};
    return finding;
}

void judge_say(char text[DOCTOR_TEXT_BYTES], const char *format, ...)
{
    const size_t have = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + have, DOCTOR_TEXT_BYTES - have, format, args);
    va_end(args);
}

/* "node 1 (host)" */
void judge_say_node(const judge_t *judge, char text[DOCTOR_TEXT_BYTES], int node)
{
    judge_say(text, "node %d (%s)", node, doctor_node(judge->result, node)->host);
}

/* ---- rates --------------------------------------------------------------------------------------------- */

/* Of a device. In one pass over the flows: there may be a hundred thousand. */
typedef struct rates {
    int device;
    double usual;
    double *best; /* [n_nodes][2] the best that each receives, and sends, alone with one stream */
} rates_t;

/* NULL: no memory. */
static double *best_of_nodes(const doctor_result_t *result, int device)
{
    double *best = calloc(2 * (size_t)result->n_nodes + 1, sizeof(*best));
    for (int i = 0; best && i < result->n_flows; i++) {
        const doctor_flow_t *flow = &result->flows[i];
        if (flow->kind == DOCTOR_PAIR && flow->device == device) {
            best[2 * flow->to] = fmax(best[2 * flow->to], flow->bps);
            best[2 * flow->from + 1] = fmax(best[2 * flow->from + 1], flow->bps);
        }
    }
    return best;
}

static double best_bps(const rates_t *rates, int node, int is_sent)
{
    return rates->best[2 * node + is_sent];
}

double doctor_usual_bps(const doctor_result_t *result, int device)
{
    double *best = best_of_nodes(result, device);
    if (!best || result->n_flows == 0) {
        free(best);
        return 0;
    }
    /* Of two nodes the better direction: half of the four are one flow. */
    const double usual = tw_quantile(best, (size_t)(2 * result->n_nodes), result->n_nodes == 2 ? 1 : 0.5);
    free(best);
    return usual;
}

/* What a node's flows sent again, of all that they sent. */
static double repeated_share(const doctor_result_t *result, int node, int64_t *repeated)
{
    int64_t segments = 0;
    *repeated = 0;
    for (int i = 0; i < result->n_flows; i++) {
        if (result->flows[i].from == node && result->flows[i].kind == DOCTOR_PAIR) {
            segments += result->flows[i].segments;
            *repeated += result->flows[i].repeated;
        }
    }
    return segments > 0 ? (double)*repeated / (double)segments : 0;
}

/* Why a node's device may be slow. */
static void explain_node(judge_t *judge, doctor_finding_t *finding, int node, int device)
{
    const doctor_device_t *own = &doctor_node(judge->result, node)->devices[device];
    int fastest = 0;
    int64_t repeated;
    const double share = repeated_share(judge->result, node, &repeated);
    for (int other = 0; other < judge->result->n_nodes; other++) {
        const int speed = doctor_node(judge->result, other)->devices[device].speed_mbps;
        fastest = speed > fastest ? speed : fastest;
    }
    if (own->speed_mbps > 0 && own->speed_mbps < fastest) {
        judge_say(finding->why, "%s there is a link of %d Mb/s, elsewhere of %d", own->name, own->speed_mbps,
                  fastest);
    } else if (own->mtu > 0 && own->mtu < judge_usual_mtu(judge->result, device)) {
        judge_say(finding->why, "its MTU is %d", own->mtu);
    } else if (share > REPEATED_SHARE && repeated >= REPEATED_MIN) {
        judge_say(finding->why,
                  "%.1f %% of its packets are lost and sent again: a bad cable or port, or a limit",
                  100 * share);
    } else {
        judge_say(finding->why, "its link came up slower, a limit is set (tc), or somebody else uses it");
    }
    judge_say(finding->change, "on %s: " HINT, doctor_node(judge->result, node)->host, own->name, own->name);
}

/* 1: the node is slow in that direction. With two nodes nobody can know whose fault it is. */
static int is_slow(const doctor_result_t *result, const rates_t *rates, int node, int is_sent)
{
    return result->n_nodes > 2 && best_bps(rates, node, is_sent) < SLOW_SHARE * rates->usual;
}

static void judge_node(judge_t *judge, const rates_t *rates, int node)
{
    char own[32], others[32];
    const double sends = best_bps(rates, node, 1), receives = best_bps(rates, node, 0);
    const int slow_out = is_slow(judge->result, rates, node, 1),
              slow_in = is_slow(judge->result, rates, node, 0);
    const double worst = slow_out && (!slow_in || sends < receives) ? sends : receives;
    if (!slow_out && !slow_in) {
        return;
    }
    doctor_finding_t *finding = judge_add(judge, worst > 0 ? rates->usual / worst : NOTHING_FACTOR);
    judge_say_node(judge, finding->what, node);
    judge_say(finding->what, " %s %s by %s, %s is usual",
              slow_out && slow_in ? "sends and receives"
              : slow_out          ? "sends"
                                  : "receives",
              rate_text(worst, own), judge_device(judge, node, rates->device),
              rate_text(rates->usual, others));
    explain_node(judge, finding, node, rates->device);
}

/* By which factor a pair is slower than its nodes are with others, where these are well; 0: it is not. */
static double pair_factor(const doctor_result_t *result, const rates_t *rates, const doctor_flow_t *flow,
                          double *expected)
{
    const double sends = best_bps(rates, flow->from, 1), receives = best_bps(rates, flow->to, 0);
    *expected = sends < receives ? sends : receives;
    if (result->n_nodes == 2) { /* the other way is what there is to compare with */
        const double back = best_bps(rates, flow->to, 1);
        *expected = back > *expected ? back : *expected;
    }
    if (flow->bps >= SLOW_SHARE * *expected || is_slow(result, rates, flow->from, 1) ||
        is_slow(result, rates, flow->to, 0)) {
        return 0;
    }
    return flow->bps > 0 ? *expected / flow->bps : NOTHING_FACTOR;
}

static void judge_pair(judge_t *judge, const rates_t *rates, const doctor_flow_t *flow)
{
    const doctor_result_t *result = judge->result;
    char own[32], others[32];
    double expected;
    doctor_finding_t *finding = judge_add(judge, pair_factor(result, rates, flow, &expected));
    judge_say(finding->what, "from ");
    judge_say_node(judge, finding->what, flow->from);
    judge_say(finding->what, " to ");
    judge_say_node(judge, finding->what, flow->to);
    judge_say(finding->what, ": %s, %s %s", rate_text(flow->bps, own), rate_text(expected, others),
              result->n_nodes == 2 ? "the other way" : "with others");
    int64_t repeated;
    const double share = repeated_share(result, flow->from, &repeated);
    if (flow->error) {
        judge_say(finding->why, "%s", strerror(flow->error));
    } else if (share > REPEATED_SHARE && repeated >= REPEATED_MIN) {
        judge_say(finding->why,
                  "%.1f %% of the packets are lost and sent again: a bad cable or port, or a limit",
                  100 * share);
    } else {
        judge_say(finding->why, "the way between them: a switch, a route, a limit");
    }
    judge_say(finding->change, "the route (ip route get, traceroute) and the switches between %s and %s",
              doctor_node(result, flow->from)->host, doctor_node(result, flow->to)->host);
}

/* The worst of those that have not been said; *n_slow: how many are slow. NULL: none. */
static const doctor_flow_t *worst_pair(const doctor_result_t *result, const rates_t *rates,
                                       const doctor_flow_t *const *said, int n_said, int *n_slow)
{
    const doctor_flow_t *worst = NULL;
    double most = 0;
    *n_slow = 0;
    for (int i = 0; i < result->n_flows; i++) {
        const doctor_flow_t *flow = &result->flows[i];
        double expected;
        const int is_one = flow->kind == DOCTOR_PAIR && flow->device == rates->device;
        const double factor = is_one ? pair_factor(result, rates, flow, &expected) : 0;
        int is_said = 0;
        for (int k = 0; k < n_said; k++) {
            is_said |= said[k] == flow;
        }
        *n_slow += factor > 0;
        if (factor > most && !is_said) {
            worst = flow;
            most = factor;
        }
    }
    return worst;
}

static void judge_links(judge_t *judge, const rates_t *rates)
{
    const doctor_result_t *result = judge->result;
    const doctor_flow_t *said[PAIRS_MAX];
    int n_said = 0, n_slow = 0;
    for (int node = 0; node < result->n_nodes; node++) {
        judge_node(judge, rates, node);
    }
    while (n_said < PAIRS_MAX && (said[n_said] = worst_pair(result, rates, said, n_said, &n_slow)) != NULL) {
        judge_pair(judge, rates, said[n_said++]);
    }
    if (n_slow > n_said) {
        doctor_finding_t *finding = judge_add(judge, 1);
        judge_say(finding->what, "%d more pairs of nodes are slow", n_slow - n_said);
        judge_say(finding->why, "what is said of the worst ones, or nodes that are busy");
        judge_say(finding->change, "see --json");
    }
}

/* Where most nodes send and receive nothing there is nothing to compare with. */
static void judge_nothing(judge_t *judge, int device)
{
    const doctor_result_t *result = judge->result;
    int n = 0, n_nothing = 0, error = 0;
    for (int i = 0; i < result->n_flows; i++) {
        const doctor_flow_t *flow = &result->flows[i];
        if (flow->kind == DOCTOR_PAIR && flow->device == device) {
            n++;
            n_nothing += flow->bps <= 0;
            error = flow->bps <= 0 && flow->error ? flow->error : error;
        }
    }
    if (n_nothing == 0) {
        return;
    }
    doctor_finding_t *finding = judge_add(judge, NOTHING_FACTOR);
    judge_say(finding->what, "by %s nothing comes on %d of %d ways from node to node",
              judge_device(judge, 0, device), n_nothing, n);
    judge_say(finding->why, "%s: a firewall, or networks that are not the same one",
              error ? strerror(error) : "no data");
    judge_say(finding->change, "ip address show %s on all nodes, ip route get from each to the others",
              judge_device(judge, 0, device));
}

static void judge_rates(judge_t *judge, int device)
{
    const rates_t rates = {device, doctor_usual_bps(judge->result, device),
                           best_of_nodes(judge->result, device)};
    if (rates.best && rates.usual > 0) {
        judge_links(judge, &rates);
    } else {
        judge_nothing(judge, device);
    }
    free(rates.best);
}

/* The median over neighbours of one kind of flow's rate against another's; 0: not measured. */
static double median_ratio(const doctor_result_t *result, int device, doctor_kind_t above,
                           doctor_kind_t below)
{
    double *ratios = malloc((size_t)(result->n_flows + 1) * sizeof(*ratios));
    size_t n = 0;
    for (int i = 0; ratios && i < result->n_flows; i++) {
        const doctor_flow_t *a = &result->flows[i];
        const int is_one = a->kind == (int)above && a->device == device && a->bps > 0;
        for (int k = 0; is_one && k < result->n_flows; k++) { /* flows of that kind are few */
            const doctor_flow_t *b = &result->flows[k];
            if (b->kind == (int)below && a->from == b->from && a->to == b->to && b->device == device &&
                b->bps > 0 && n < (size_t)result->n_flows) {
                ratios[n++] = a->bps / b->bps;
            }
        }
    }
    const double median = n > 0 ? tw_median(ratios, n) : 0;
    free(ratios);
    return median;
}

int judge_n_streams(const doctor_result_t *result)
{
    int most = 1;
    for (int i = 0; i < result->n_flows; i++) {
        most = result->flows[i].n_streams > most ? result->flows[i].n_streams : most;
    }
    return most;
}

static double largest_rtt_us(const doctor_result_t *result)
{
    double largest = 0;
    for (int i = 0; i < result->n_flows; i++) {
        largest = result->flows[i].rtt_us > largest ? result->flows[i].rtt_us : largest;
    }
    return largest;
}

static void judge_streams(judge_t *judge, int device)
{
    const doctor_result_t *result = judge->result;
    const double gain = median_ratio(result, device, DOCTOR_STREAMS, DOCTOR_PAIR),
                 kept = median_ratio(result, device, DOCTOR_ALL, DOCTOR_STREAMS);
    const double usual = doctor_usual_bps(result, device), rtt = largest_rtt_us(result);
    const doctor_facts_t *first = doctor_node(result, 0);
    char rate[32];
    if (gain >= STREAMS_GAIN) {
        const double buffer =
            (double)(first->send_buffer < first->receive_buffer ? first->send_buffer : first->receive_buffer);
        const int is_small = buffer > 0 && buffer < 2 * usual * gain / 8 * rtt * 1e-6;
        doctor_finding_t *finding = judge_add(judge, gain);
        judge_say(finding->what, "one TCP stream makes %s of %s, %d streams %.1f times as much",
                  rate_text(usual, rate), judge_device(judge, 0, device), judge_n_streams(result), gain);
        judge_say(finding->why,
                  is_small ? "sockets' buffers hold less than is on the way (%.0f KB, %.0f us)"
                           : "a stream is one core's work (buffers %.0f KB, round trip %.0f us)",
                  buffer / 1000, rtt);
        judge_say(finding->change, "TW_NET_STREAMS=%d%s", judge_n_streams(result),
                  is_small ? "; the third number of net.ipv4.tcp_wmem and tcp_rmem" : "");
    }
    if (kept > 0 && kept < SLOW_SHARE) {
        doctor_finding_t *finding = judge_add(judge, 1 / kept);
        judge_say(finding->what, "all nodes at once get %.0f %% of what each gets alone by %s", 100 * kept,
                  judge_device(judge, 0, device));
        judge_say(finding->why,
                  "switches between them share less than the links have, or a processor is too slow");
        judge_say(finding->change, "nodes under one switch; fewer bytes (quantized, lossless, delta)");
    }
}

/* All nodes are alike, and slow: the best of one stream and several, beside what the devices say. */
static void judge_speed(judge_t *judge, int device)
{
    const doctor_result_t *result = judge->result;
    const double gain = median_ratio(result, device, DOCTOR_STREAMS, DOCTOR_PAIR);
    const double usual = doctor_usual_bps(result, device), best = usual * (gain > 1 ? gain : 1);
    double said = INFINITY;
    for (int node = 0; node < result->n_nodes; node++) {
        const double speed = 1e6 * doctor_node(result, node)->devices[device].speed_mbps;
        said = speed < said ? speed : said;
    }
    char own[32], theirs[32];
    if (isinf(said) || said <= 0 || best <= 0 || best >= SPEED_SHARE * said) {
        return;
    }
    doctor_finding_t *finding = judge_add(judge, said / best);
    judge_say(finding->what, "all links make %s by %s, whose devices say %s", rate_text(best, own),
              judge_device(judge, 0, device), rate_text(said, theirs));
    judge_say(finding->why,
              "another device would be the fast one, switches are slower, or TCP costs a core its time");
    judge_say(finding->change,
              "TW_NET_DEVICES; more streams (--streams 16); RDMA by TW_NET_TLS where there is some");
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static void judge_retransmissions(judge_t *judge)
{
    double *best = best_of_nodes(judge->result, 0);
    const double slow = SLOW_SHARE * doctor_usual_bps(judge->result, 0);
    for (int node = 0; best && node < judge->result->n_nodes; node++) {
        int64_t repeated;
        const double share = repeated_share(judge->result, node, &repeated);
        const int is_said = best[2 * node + 1] < slow;
        if (share <= REPEATED_SHARE || repeated < REPEATED_MIN || is_said) {
            continue;
        }
        doctor_finding_t *finding = judge_add(judge, 1 + share);
        judge_say_node(judge, finding->what, node);
        judge_say(finding->what, " sends %.1f %% of its packets again", 100 * share);
        judge_say(finding->why,
                  "packets are lost: a bad cable, a queue that is too short, a limit that drops");
        judge_say(finding->change, "counters of %s (ethtool -S) and of its port",
                  judge_device(judge, node, 0));
    }
    free(best);
}

static int by_weight(const void *a, const void *b)
{
    const double wa = ((const doctor_finding_t *)a)->weight, wb = ((const doctor_finding_t *)b)->weight;
    return (wa < wb) - (wa > wb);
}

static int n_devices(const doctor_result_t *result)
{
    int most = 0;
    for (int i = 0; i < result->n_flows; i++) {
        most = result->flows[i].device + 1 > most ? result->flows[i].device + 1 : most;
    }
    return most;
}

void doctor_judge(const doctor_result_t *result, doctor_findings_t *out)
{
    judge_t judge = {result, out};
    out->n = 0;
    for (int device = 0; device < n_devices(result); device++) {
        judge_rates(&judge, device);
        judge_streams(&judge, device);
        judge_speed(&judge, device);
        judge_mtu(&judge, device);
    }
    judge_retransmissions(&judge);
    judge_settings(&judge);
    qsort(out->list, (size_t)out->n, sizeof(out->list[0]), by_weight);
}
