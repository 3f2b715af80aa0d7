/* Judges links from measured rates alone. A node is blamed if all its traffic is slow, else the pair. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/findings.h"

/* A rate below this share of the usual rate is slow. */
#define SLOW_SHARE 0.7
/* Several streams count as faster than one if they are this many times as fast. */
#define STREAMS_GAIN 1.3
/* All links are slow if their rate is below this share of the speed that the devices report. */
#define SPEED_SHARE 0.6
#define REPEATED_SHARE 0.02
#define REPEATED_MIN 50
/* At most this many slow pairs are named, the slowest first. */
#define PAIRS_MAX 3
#define NOTHING_FACTOR 1e6
#define HINT "ethtool %s; tc qdisc show dev %s; its cable and its port of the switch"

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

/* ---- rates --------------------------------------------------------------------------------------------- */

/* What a node sends and receives. */
typedef struct traffic {
    double receives, sends;     /* the node's best rates on the device in flows of kind TW_DOCTOR_PAIR */
    int64_t segments, repeated; /* TCP segments that the node sent in flows of pairs, on all devices */
} traffic_t;

/* The rates on one device. One pass collects them, since there may be a hundred thousand flows. */
typedef struct rates {
    int device, usual_mtu, fastest_mbps;
    double usual;
    traffic_t *nodes; /* [n_nodes] */
} rates_t;

/** Collect the traffic of every node on a device. The caller frees it. NULL: no memory. */
static traffic_t *traffic_of_nodes(const tw_doctor_result_t *result, int device)
{
    traffic_t *nodes = calloc((size_t)result->n_nodes + 1, sizeof(*nodes));
    for (int i = 0; nodes && i < result->n_flows; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i];
        if (flow->kind != TW_DOCTOR_PAIR) {
            continue;
        }
        traffic_t *from = &nodes[flow->from], *to = &nodes[flow->to];
        from->segments += flow->segments;
        from->repeated += flow->repeated;
        if (flow->device == device) {
            from->sends = fmax(from->sends, flow->bps);
            to->receives = fmax(to->receives, flow->bps);
        }
    }
    return nodes;
}

static double usual_of(const tw_doctor_result_t *result, const traffic_t *nodes)
{
    double *best = malloc(2 * (size_t)result->n_nodes * sizeof(*best));
    double usual = 0;
    for (int node = 0; best && node < result->n_nodes; node++) {
        best[2 * node] = nodes[node].receives;
        best[2 * node + 1] = nodes[node].sends;
    }
    if (best) { /* two nodes: the maximum, which is the better direction's rate */
        usual = tw_quantile(best, (size_t)(2 * result->n_nodes), result->n_nodes == 2 ? 1 : 0.5);
    }
    free(best);
    return usual;
}

double tw_doctor_usual_bps(const tw_doctor_result_t *result, int device)
{
    traffic_t *nodes = result->n_flows > 0 ? traffic_of_nodes(result, device) : NULL;
    const double usual = nodes ? usual_of(result, nodes) : 0;
    free(nodes);
    return usual;
}

/** The share of its segments that a node retransmitted, or 0 if that share is too small to matter. */
static double repeated_share(const traffic_t *node)
{
    const double share = node->segments > 0 ? (double)node->repeated / (double)node->segments : 0;
    return share > REPEATED_SHARE && node->repeated >= REPEATED_MIN ? share : 0;
}

/** Add to a finding why a node's device may be slow. */
static void explain_node(tw_doctor_judge_t *judge, const rates_t *rates, tw_doctor_finding_t *finding,
                         int node)
{
    const tw_doctor_device_t *own = &tw_doctor_node(judge->result, node)->devices[rates->device];
    const double share = repeated_share(&rates->nodes[node]);
    if (own->speed_mbps > 0 && own->speed_mbps < rates->fastest_mbps) {
        tw_doctor_say(finding->why, "%s there is a link of %d Mb/s, elsewhere of %d", own->name,
                      own->speed_mbps, rates->fastest_mbps);
    } else if (own->mtu > 0 && own->mtu < rates->usual_mtu) {
        tw_doctor_say(finding->why, "its MTU is %d", own->mtu);
    } else if (share > 0) {
        tw_doctor_say(finding->why,
                      "%.1f %% of its packets are lost and sent again: a bad cable or port, or a limit",
                      100 * share);
    } else {
        tw_doctor_say(finding->why, "its link came up slower, a limit is set (tc), or somebody else uses it");
    }
    tw_doctor_say(finding->change, "on %s: " HINT, tw_doctor_node(judge->result, node)->host, own->name,
                  own->name);
}

/** Whether a node that sends or receives at this rate is slow. Returns 0 if there are two nodes, since nobody
 *  can know which of them is slow. */
static int is_slow(const tw_doctor_result_t *result, const rates_t *rates, double bps)
{
    return result->n_nodes > 2 && bps < SLOW_SHARE * rates->usual;
}

static void judge_node(tw_doctor_judge_t *judge, const rates_t *rates, int node)
{
    char own[32], others[32];
    const double sends = rates->nodes[node].sends, receives = rates->nodes[node].receives;
    const int slow_out = is_slow(judge->result, rates, sends),
              slow_in = is_slow(judge->result, rates, receives);
    const double worst = slow_out && (!slow_in || sends < receives) ? sends : receives;
    if (!slow_out && !slow_in) {
        return;
    }
    tw_doctor_finding_t *finding =
        tw_doctor_finding_add(judge, worst > 0 ? rates->usual / worst : NOTHING_FACTOR);
    tw_doctor_say_node(judge, finding->what, node);
    tw_doctor_say(finding->what, " %s %s by %s, %s is usual",
                  slow_out && slow_in ? "sends and receives"
                  : slow_out          ? "sends"
                                      : "receives",
                  rate_text(worst, own), tw_doctor_device_name(judge, node, rates->device),
                  rate_text(rates->usual, others));
    explain_node(judge, rates, finding, node);
}

/** How many times a pair is slower than its nodes in other pairs. 0: the pair is not slow, or a node is. */
static double pair_factor(const tw_doctor_result_t *result, const rates_t *rates,
                          const tw_doctor_flow_t *flow, double *expected)
{
    const double sends = rates->nodes[flow->from].sends, receives = rates->nodes[flow->to].receives;
    *expected = sends < receives ? sends : receives;
    if (result->n_nodes == 2) { /* the other direction is all there is to compare with */
        const double back = rates->nodes[flow->to].sends;
        *expected = back > *expected ? back : *expected;
    }
    if (flow->bps >= SLOW_SHARE * *expected || is_slow(result, rates, sends) ||
        is_slow(result, rates, receives)) {
        return 0;
    }
    return flow->bps > 0 ? *expected / flow->bps : NOTHING_FACTOR;
}

static void judge_pair(tw_doctor_judge_t *judge, const rates_t *rates, const tw_doctor_flow_t *flow)
{
    const tw_doctor_result_t *result = judge->result;
    char own[32], others[32];
    double expected;
    tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, pair_factor(result, rates, flow, &expected));
    tw_doctor_say(finding->what, "from ");
    tw_doctor_say_node(judge, finding->what, flow->from);
    tw_doctor_say(finding->what, " to ");
    tw_doctor_say_node(judge, finding->what, flow->to);
    tw_doctor_say(finding->what, ": %s, %s %s", rate_text(flow->bps, own), rate_text(expected, others),
                  result->n_nodes == 2 ? "the other way" : "with others");
    const double share = repeated_share(&rates->nodes[flow->from]);
    if (flow->error) {
        tw_doctor_say(finding->why, "%s", strerror(flow->error));
    } else if (share > 0) {
        tw_doctor_say(finding->why,
                      "%.1f %% of the packets are lost and sent again: a bad cable or port, or a limit",
                      100 * share);
    } else {
        tw_doctor_say(finding->why, "the way between them: a switch, a route, a limit");
    }
    tw_doctor_say(finding->change, "the route (ip route get, traceroute) and the switches between %s and %s",
                  tw_doctor_node(result, flow->from)->host, tw_doctor_node(result, flow->to)->host);
}

/** Returns the slowest pair that is not in `said`, or NULL. *n_slow: number of all slow pairs. */
static const tw_doctor_flow_t *worst_pair(const tw_doctor_result_t *result, const rates_t *rates,
                                          const tw_doctor_flow_t *const *said, int n_said, int *n_slow)
{
    const tw_doctor_flow_t *worst = NULL;
    double most = 0;
    *n_slow = 0;
    for (int i = 0; i < result->n_flows; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i];
        double expected;
        const int is_one = flow->kind == TW_DOCTOR_PAIR && flow->device == rates->device;
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

static void judge_links(tw_doctor_judge_t *judge, const rates_t *rates)
{
    const tw_doctor_result_t *result = judge->result;
    const tw_doctor_flow_t *said[PAIRS_MAX];
    int n_said = 0, n_slow = 0;
    for (int node = 0; node < result->n_nodes; node++) {
        judge_node(judge, rates, node);
    }
    while (n_said < PAIRS_MAX && (said[n_said] = worst_pair(result, rates, said, n_said, &n_slow))) {
        judge_pair(judge, rates, said[n_said++]);
    }
    if (n_slow > n_said) {
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1);
        tw_doctor_say(finding->what, "%d more pairs of nodes are slow", n_slow - n_said);
        tw_doctor_say(finding->why, "what is said of the worst ones, or nodes that are busy");
        tw_doctor_say(finding->change, "see --json");
    }
}

/** Add the finding that most nodes send and receive nothing. Then no usual rate exists to compare with. */
static void judge_nothing(tw_doctor_judge_t *judge, int device)
{
    const tw_doctor_result_t *result = judge->result;
    int n = 0, n_nothing = 0, error = 0;
    for (int i = 0; i < result->n_flows; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i];
        if (flow->kind == TW_DOCTOR_PAIR && flow->device == device) {
            n++;
            n_nothing += flow->bps <= 0;
            error = flow->bps <= 0 && flow->error ? flow->error : error;
        }
    }
    if (n_nothing == 0) {
        return;
    }
    tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, NOTHING_FACTOR);
    tw_doctor_say(finding->what, "by %s nothing comes on %d of %d ways from node to node",
                  tw_doctor_device_name(judge, 0, device), n_nothing, n);
    tw_doctor_say(finding->why, "%s: a firewall, or networks that are not the same one",
                  error ? strerror(error) : "no data");
    tw_doctor_say(finding->change, "ip address show %s on all nodes, ip route get from each to the others",
                  tw_doctor_device_name(judge, 0, device));
}

/** Judge the packets that were retransmitted, unless they are part of the finding of a slow node. */
static void judge_repeated(tw_doctor_judge_t *judge, const rates_t *rates)
{
    for (int node = 0; node < judge->result->n_nodes; node++) {
        const traffic_t *own = &rates->nodes[node];
        const double share = repeated_share(own);
        if (share <= 0 || own->sends < SLOW_SHARE * rates->usual) {
            continue;
        }
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1 + share);
        tw_doctor_say_node(judge, finding->what, node);
        tw_doctor_say(finding->what, " sends %.1f %% of its packets again", 100 * share);
        tw_doctor_say(finding->why,
                      "packets are lost: a bad cable, a queue that is too short, a limit that drops");
        tw_doctor_say(finding->change, "counters of %s (ethtool -S) and of its port",
                      tw_doctor_device_name(judge, node, rates->device));
    }
}

/** Fill in the rates of a device. Returns 0 if memory runs out. */
static int init_rates(const tw_doctor_result_t *result, int device, rates_t *rates)
{
    *rates = (rates_t){.device = device, .nodes = traffic_of_nodes(result, device)};
    if (!rates->nodes) {
        return 0;
    }
    rates->usual = usual_of(result, rates->nodes);
    rates->usual_mtu = tw_doctor_usual_mtu(result, device);
    for (int node = 0; node < result->n_nodes; node++) {
        const int speed = tw_doctor_node(result, node)->devices[device].speed_mbps;
        rates->fastest_mbps = speed > rates->fastest_mbps ? speed : rates->fastest_mbps;
    }
    return 1;
}

static void judge_rates(tw_doctor_judge_t *judge, int device)
{
    rates_t rates;
    if (init_rates(judge->result, device, &rates) && rates.usual > 0) {
        judge_links(judge, &rates);
    } else {
        judge_nothing(judge, device);
    }
    if (rates.nodes && device == 0) { /* device 0 stands for all: the counts are sums over devices */
        judge_repeated(judge, &rates);
    }
    free(rates.nodes);
}

/** Divide each node's rate in its only flow of kind `above` by its rate to the same node in the flow of kind
 *  `below`. Return the median over nodes, or 0 if nothing was measured. */
static double median_ratio(const tw_doctor_result_t *result, int device, tw_doctor_kind_t above,
                           tw_doctor_kind_t below)
{
    const size_t n_nodes = (size_t)result->n_nodes;
    /* sent[node]: the node's flow of kind `above` */
    const tw_doctor_flow_t **sent = calloc(n_nodes + 1, sizeof(const tw_doctor_flow_t *));
    double *ratios = calloc(n_nodes + 1, sizeof(*ratios));
    size_t n = 0;
    for (int i = 0; sent && ratios && i < result->n_flows; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i];
        if (flow->kind == (int)above && flow->device == device && flow->bps > 0) {
            sent[flow->from] = flow;
        }
    }
    for (int i = 0; sent && ratios && i < result->n_flows && n < n_nodes; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i], *other = sent[flow->from];
        if (flow->kind == (int)below && flow->device == device && flow->bps > 0 && other &&
            other->to == flow->to) {
            ratios[n++] = other->bps / flow->bps;
        }
    }
    const double median = n > 0 ? tw_median(ratios, n) : 0;
    free(sent);
    free(ratios);
    return median;
}

static double largest_rtt_us(const tw_doctor_result_t *result)
{
    double largest = 0;
    for (int i = 0; i < result->n_flows; i++) {
        largest = result->flows[i].rtt_us > largest ? result->flows[i].rtt_us : largest;
    }
    return largest;
}

static void judge_streams(tw_doctor_judge_t *judge, int device)
{
    const tw_doctor_result_t *result = judge->result;
    const double gain = median_ratio(result, device, TW_DOCTOR_STREAMS, TW_DOCTOR_PAIR),
                 kept = median_ratio(result, device, TW_DOCTOR_ALL, TW_DOCTOR_STREAMS);
    const double usual = tw_doctor_usual_bps(result, device), rtt = largest_rtt_us(result);
    const tw_doctor_facts_t *first = tw_doctor_node(result, 0);
    char rate[32];
    if (gain >= STREAMS_GAIN) {
        const double buffer =
            (double)(first->send_buffer < first->receive_buffer ? first->send_buffer : first->receive_buffer);
        const int is_small = buffer > 0 && buffer < 2 * usual * gain / 8 * rtt * 1e-6;
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, gain);
        tw_doctor_say(finding->what, "one TCP stream makes %s of %s, %d streams %.1f times as much",
                      rate_text(usual, rate), tw_doctor_device_name(judge, 0, device),
                      tw_doctor_most_streams(result), gain);
        tw_doctor_say(finding->why,
                      is_small ? "sockets' buffers hold less than is on the way (%.0f KB, %.0f us)"
                               : "a stream is one core's work (buffers %.0f KB, round trip %.0f us)",
                      buffer / 1000, rtt);
        tw_doctor_say(finding->change, "TW_NET_STREAMS=%d%s", tw_doctor_most_streams(result),
                      is_small ? "; the third number of net.ipv4.tcp_wmem and tcp_rmem" : "");
    }
    if (kept > 0 && kept < SLOW_SHARE) {
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1 / kept);
        tw_doctor_say(finding->what, "all nodes at once get %.0f %% of what each gets alone by %s",
                      100 * kept, tw_doctor_device_name(judge, 0, device));
        tw_doctor_say(finding->why,
                      "switches between them share less than the links have, or a processor is too slow");
        tw_doctor_say(finding->change, "nodes under one switch; fewer bytes (quantized, lossless, delta)");
    }
}

/** Judge whether all links are slow: compare the best rate, with one stream or several, with the speed that
 *  the devices report. */
static void judge_speed(tw_doctor_judge_t *judge, int device)
{
    const tw_doctor_result_t *result = judge->result;
    const double gain = median_ratio(result, device, TW_DOCTOR_STREAMS, TW_DOCTOR_PAIR);
    const double usual = tw_doctor_usual_bps(result, device), best = usual * (gain > 1 ? gain : 1);
    double said = INFINITY;
    for (int node = 0; node < result->n_nodes; node++) {
        const double speed = 1e6 * tw_doctor_node(result, node)->devices[device].speed_mbps;
        said = speed < said ? speed : said;
    }
    char own[32], theirs[32];
    if (isinf(said) || said <= 0 || best <= 0 || best >= SPEED_SHARE * said) {
        return;
    }
    tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, said / best);
    tw_doctor_say(finding->what, "all links make %s by %s, whose devices say %s", rate_text(best, own),
                  tw_doctor_device_name(judge, 0, device), rate_text(said, theirs));
    tw_doctor_say(finding->why,
                  "another device would be the fast one, switches are slower, or TCP costs a core its time");
    tw_doctor_say(finding->change,
                  "TW_NET_DEVICES; more streams (--streams 16); RDMA by TW_NET_TLS where there is some");
}

void tw_doctor_judge_links(tw_doctor_judge_t *judge)
{
    for (int device = 0; device < tw_doctor_measured_devices(judge->result); device++) {
        judge_rates(judge, device);
        judge_streams(judge, device);
        judge_speed(judge, device);
    }
}
