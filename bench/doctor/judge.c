/* What is wrong, of figures alone. A node is blamed where all that it sends or receives is slow; else the pair. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench/doctor/doctor.h"

/* Below this share of what is usual it is slow. */
#define SLOW_SHARE 0.7
/* Several streams are faster than one from here on. */
#define STREAMS_GAIN 1.3
/* Below this share of what the devices say, all links are slow. */
#define SPEED_SHARE 0.6
#define REPEATED_SHARE 0.02
#define REPEATED_MIN 50
#define CLOCK_SEC 0.1
#define SHM_BYTES ((int64_t)64 << 20)
#define HINT "ethtool %s; tc qdisc show dev %s; its cable and its port of the switch"

typedef struct judge {
    const doctor_result_t *result;
    doctor_findings_t *out;
} judge_t;

const doctor_facts_t *doctor_node(const doctor_result_t *result, int node)
{
    return &result->facts[result->leader[node]];
}

static const char *device_name(const judge_t *judge, int node, int device)
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

static doctor_finding_t *add(judge_t *judge, double weight)
{
    static doctor_finding_t beyond; /* so many are not read */
    doctor_findings_t *out = judge->out;
    doctor_finding_t *finding = out->n < DOCTOR_FINDINGS_MAX ? &out->list[out->n++] : &beyond;
    *finding = (doctor_finding_t){.weight = weight};
    return finding;
}

__attribute__((format(printf, 2, 3))) static void say(char text[DOCTOR_TEXT_BYTES], const char *format, ...)
{
    const size_t have = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + have, DOCTOR_TEXT_BYTES - have, format, args);
    va_end(args);
}

/* "node 1 (host)" */
static void say_node(const judge_t *judge, char text[DOCTOR_TEXT_BYTES], int node)
{
    say(text, "node %d (%s)", node, doctor_node(judge->result, node)->host);
}

/* ---- rates --------------------------------------------------------------------------------------------- */

/* The best that a node sends, or receives, alone with one stream. */
static double best_bps(const doctor_result_t *result, int node, int device, int is_sent)
{
    double best = 0;
    for (int i = 0; i < result->n_flows; i++) {
        const doctor_flow_t *flow = &result->flows[i];
        if (flow->kind == DOCTOR_PAIR && flow->device == device &&
            (is_sent ? flow->from : flow->to) == node) {
            best = flow->bps > best ? flow->bps : best;
        }
    }
    return best;
}

double doctor_usual_bps(const doctor_result_t *result, int device)
{
    double *rates = malloc((size_t)(2 * result->n_nodes + 1) * sizeof(*rates));
    if (!rates || result->n_flows == 0) {
        free(rates);
        return 0;
    }
    for (int node = 0; node < result->n_nodes; node++) {
        rates[2 * node] = best_bps(result, node, device, 0);
        rates[2 * node + 1] = best_bps(result, node, device, 1);
    }
    /* Of two nodes the better direction: half of the four are one flow. */
    const double usual = tw_quantile(rates, (size_t)(2 * result->n_nodes), result->n_nodes == 2 ? 1 : 0.5);
    free(rates);
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

static int usual_mtu(const doctor_result_t *result, int device);

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
        say(finding->why, "%s there is a link of %d Mb/s, elsewhere of %d", own->name, own->speed_mbps, fastest);
    } else if (own->mtu > 0 && own->mtu < usual_mtu(judge->result, device)) {
        say(finding->why, "its MTU is %d", own->mtu);
    } else if (share > REPEATED_SHARE && repeated >= REPEATED_MIN) {
        say(finding->why, "%.1f %% of its packets are lost and sent again: a bad cable or port, or a limit",
            100 * share);
    } else {
        say(finding->why, "its link came up slower, a limit is set (tc), or somebody else uses it");
    }
    say(finding->change, "on %s: " HINT, doctor_node(judge->result, node)->host, own->name, own->name);
}

/* 1: the node is slow in that direction. With two nodes nobody can know whose fault it is. */
static int is_slow(const doctor_result_t *result, int node, int device, int is_sent, double usual)
{
    return result->n_nodes > 2 && best_bps(result, node, device, is_sent) < SLOW_SHARE * usual;
}

static void judge_node(judge_t *judge, int node, int device, double usual)
{
    char own[32], others[32];
    const double sends = best_bps(judge->result, node, device, 1),
                 receives = best_bps(judge->result, node, device, 0);
    const int slow_out = is_slow(judge->result, node, device, 1, usual),
              slow_in = is_slow(judge->result, node, device, 0, usual);
    const double worst = slow_out && (!slow_in || sends < receives) ? sends : receives;
    if (!slow_out && !slow_in) {
        return;
    }
    doctor_finding_t *finding = add(judge, worst > 0 ? usual / worst : 1e6);
    say_node(judge, finding->what, node);
    say(finding->what, " %s %s by %s, %s is usual",
        slow_out && slow_in ? "sends and receives"
        : slow_out          ? "sends"
                            : "receives",
        rate_text(worst, own), device_name(judge, node, device), rate_text(usual, others));
    explain_node(judge, finding, node, device);
}

/* Between nodes that are well otherwise. */
static void judge_pair(judge_t *judge, const doctor_flow_t *flow, double usual)
{
    const doctor_result_t *result = judge->result;
    const double sends = best_bps(result, flow->from, flow->device, 1);
    const double receives = best_bps(result, flow->to, flow->device, 0);
    double expected = sends < receives ? sends : receives;
    if (result->n_nodes == 2) { /* the other way is what there is to compare with */
        const double back = best_bps(result, flow->to, flow->device, 1);
        expected = back > expected ? back : expected;
    }
    char own[32], others[32];
    if (flow->bps >= SLOW_SHARE * expected || is_slow(result, flow->from, flow->device, 1, usual) ||
        is_slow(result, flow->to, flow->device, 0, usual)) {
        return;
    }
    doctor_finding_t *finding = add(judge, flow->bps > 0 ? expected / flow->bps : 1e6);
    say(finding->what, "from ");
    say_node(judge, finding->what, flow->from);
    say(finding->what, " to ");
    say_node(judge, finding->what, flow->to);
    say(finding->what, ": %s, %s %s", rate_text(flow->bps, own), rate_text(expected, others),
        result->n_nodes == 2 ? "the other way" : "with others");
    int64_t repeated;
    const double share = repeated_share(result, flow->from, &repeated);
    if (flow->error) {
        say(finding->why, "%s", strerror(flow->error));
    } else if (share > REPEATED_SHARE && repeated >= REPEATED_MIN) {
        say(finding->why, "%.1f %% of the packets are lost and sent again: a bad cable or port, or a limit",
            100 * share);
    } else {
        say(finding->why, "the way between them: a switch, a route, a limit");
    }
    say(finding->change, "the route (ip route get, traceroute) and the switches between %s and %s",
        doctor_node(result, flow->from)->host, doctor_node(result, flow->to)->host);
}

static void judge_rates(judge_t *judge, int device)
{
    const doctor_result_t *result = judge->result;
    const double usual = doctor_usual_bps(result, device);
    for (int node = 0; node < result->n_nodes && usual > 0; node++) {
        judge_node(judge, node, device, usual);
    }
    for (int i = 0; i < result->n_flows; i++) {
        if (result->flows[i].kind == DOCTOR_PAIR && result->flows[i].device == device) {
            judge_pair(judge, &result->flows[i], usual);
        }
    }
}

/* The median over neighbours of one kind of flow's rate against another's; 0: not measured. */
static double median_ratio(const doctor_result_t *result, int device, doctor_kind_t above, doctor_kind_t below)
{
    double *ratios = malloc((size_t)(result->n_flows + 1) * sizeof(*ratios));
    size_t n = 0;
    for (int i = 0; ratios && i < result->n_flows; i++) {
        for (int k = 0; k < result->n_flows; k++) {
            const doctor_flow_t *a = &result->flows[i], *b = &result->flows[k];
            if (a->kind == (int)above && b->kind == (int)below && a->from == b->from && a->to == b->to &&
                a->device == device && b->device == device && a->bps > 0 && b->bps > 0 &&
                n < (size_t)result->n_flows) {
                ratios[n++] = a->bps / b->bps;
            }
        }
    }
    const double median = n > 0 ? tw_median(ratios, n) : 0;
    free(ratios);
    return median;
}

static int n_streams(const doctor_result_t *result)
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
        const double buffer = (double)(first->send_buffer < first->receive_buffer ? first->send_buffer
                                                                                  : first->receive_buffer);
        const int is_small = buffer > 0 && buffer < 2 * usual * gain / 8 * rtt * 1e-6;
        doctor_finding_t *finding = add(judge, gain);
        say(finding->what, "one TCP stream makes %s of %s, %d streams %.1f times as much", rate_text(usual, rate),
            device_name(judge, 0, device), n_streams(result), gain);
        say(finding->why, is_small ? "sockets' buffers hold less than is on the way (%.0f KB, %.0f us)"
                                   : "a stream is one core's work (buffers %.0f KB, round trip %.0f us)",
            buffer / 1000, rtt);
        say(finding->change, "TW_NET_STREAMS=%d%s", n_streams(result),
            is_small ? "; the third number of net.ipv4.tcp_wmem and tcp_rmem" : "");
    }
    if (kept > 0 && kept < SLOW_SHARE) {
        doctor_finding_t *finding = add(judge, 1 / kept);
        say(finding->what, "all nodes at once get %.0f %% of what each gets alone by %s", 100 * kept,
            device_name(judge, 0, device));
        say(finding->why, "switches between them share less than the links have, or a processor is too slow");
        say(finding->change, "nodes under one switch; fewer bytes (quantized, lossless, delta)");
    }
}

/* All nodes are alike, and slow: the rate, the best of one stream and several, beside what the devices say. */
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
    doctor_finding_t *finding = add(judge, said / best);
    say(finding->what, "all links make %s by %s, whose devices say %s", rate_text(best, own),
        device_name(judge, 0, device), rate_text(said, theirs));
    say(finding->why, "another device would be the fast one, switches are slower, or TCP costs a core its time");
    say(finding->change, "TW_NET_DEVICES; more streams (--streams 16); RDMA by TW_NET_TLS where there is some");
}

/* ---- settings that differ ------------------------------------------------------------------------------ */

static int usual_mtu(const doctor_result_t *result, int device)
{
    int best = 0, most = 0;
    for (int a = 0; a < result->n_nodes; a++) {
        const int mtu = doctor_node(result, a)->devices[device].mtu;
        int n = 0;
        for (int b = 0; b < result->n_nodes; b++) {
            n += doctor_node(result, b)->devices[device].mtu == mtu;
        }
        if (n > most || (n == most && mtu > best)) {
            most = n;
            best = mtu;
        }
    }
    return best;
}

static void judge_mtu(judge_t *judge, int device)
{
    const doctor_result_t *result = judge->result;
    const int usual = usual_mtu(result, device);
    for (int node = 0; node < result->n_nodes; node++) {
        const doctor_device_t *own = &doctor_node(result, node)->devices[device];
        if (own->mtu == usual) {
            continue;
        }
        doctor_finding_t *finding = add(judge, own->mtu < usual ? 1.2 : 1.1);
        say_node(judge, finding->what, node);
        say(finding->what, ": %s has an MTU of %d, elsewhere it is %d", own->name, own->mtu, usual);
        say(finding->why, "somebody has set it, or its driver's default differs");
        say(finding->change, "ip link set %s mtu %d on %s", own->name, usual, doctor_node(result, node)->host);
    }
}

static void judge_paths(judge_t *judge)
{
    const doctor_result_t *result = judge->result;
    for (int i = 0; i < result->n_paths; i++) {
        const doctor_path_t *path = &result->paths[i];
        if (path->passed_bytes >= path->asked_bytes || path->asked_bytes >= UINT16_MAX) {
            continue;
        }
        doctor_finding_t *finding = add(judge, path->passed_bytes > 0 ? 1.5 : 1.05);
        say(finding->what, "from ");
        say_node(judge, finding->what, path->from);
        say(finding->what, " to ");
        say_node(judge, finding->what, path->to);
        if (path->passed_bytes == 0) {
            say(finding->what, " no UDP packet passes");
            say(finding->why, "a firewall; the MTU of the path is not known then");
            say(finding->change, "let UDP pass, or see that TCP is fast");
            continue;
        }
        say(finding->what, " packets of %d bytes pass, of %d they do not", path->passed_bytes, path->asked_bytes);
        say(finding->why, "a switch or a tunnel between them has a smaller MTU than the devices");
        say(finding->change, "the switch's MTU, or ip link set %s mtu %d on all nodes",
            device_name(judge, path->from, path->device), path->passed_bytes);
    }
}

/* What most flows have. */
static const char *usual_congestion(const doctor_result_t *result)
{
    const char *usual = "";
    int most = 0;
    for (int i = 0; i < result->n_flows; i++) {
        int n = 0;
        for (int k = 0; k < result->n_flows; k++) {
            n += strcmp(result->flows[i].congestion, result->flows[k].congestion) == 0;
        }
        if (result->flows[i].congestion[0] && n > most) {
            usual = result->flows[i].congestion;
            most = n;
        }
    }
    return usual;
}

/* What some flow of a node has instead; "": none. */
static const char *other_congestion(const doctor_result_t *result, int node, const char *usual)
{
    for (int i = 0; i < result->n_flows; i++) {
        const doctor_flow_t *flow = &result->flows[i];
        if (flow->from == node && flow->congestion[0] && strcmp(flow->congestion, usual) != 0) {
            return flow->congestion;
        }
    }
    return "";
}

static void judge_congestion(judge_t *judge)
{
    const doctor_result_t *result = judge->result;
    const char *usual = usual_congestion(result);
    for (int node = 0; node < result->n_nodes; node++) {
        const char *other = other_congestion(result, node, usual);
        if (!other[0]) {
            continue;
        }
        doctor_finding_t *finding = add(judge, 1.15);
        say_node(judge, finding->what, node);
        say(finding->what, " sends with the congestion control %s, others with %s", other, usual);
        say(finding->why, "a sysctl or a route says so; streams of different kinds do not share a link alike");
        say(finding->change, "sysctl net.ipv4.tcp_congestion_control=%s on %s, or congctl of its route", usual,
            doctor_node(result, node)->host);
    }
}

static const char *first_device(const doctor_result_t *result, int node)
{
    return doctor_node(result, node)->devices[0].name;
}

/* The device that most nodes use first; of equals the first one's. */
static const char *usual_device(const doctor_result_t *result)
{
    const char *usual = "";
    int most = 0;
    for (int a = 0; a < result->n_nodes; a++) {
        int n = 0;
        for (int b = 0; b < result->n_nodes; b++) {
            n += strcmp(first_device(result, a), first_device(result, b)) == 0;
        }
        if (n > most) {
            usual = first_device(result, a);
            most = n;
        }
    }
    return usual;
}

static void judge_interfaces(judge_t *judge)
{
    const doctor_result_t *result = judge->result;
    const char *usual = usual_device(result);
    for (int r = 0; r < result->n_ranks; r++) {
        const doctor_facts_t *facts = &result->facts[r];
        if (strcmp(facts->devices[0].name, usual) == 0) {
            continue;
        }
        doctor_finding_t *finding = add(judge, 1.1);
        say(finding->what, "rank %d of ", r);
        say_node(judge, finding->what, facts->node);
        say(finding->what, " uses %s, others %s", facts->devices[0].name, usual);
        say(finding->why, "TW_NET_DEVICES differs, or another way leads to rank 0 from there");
        say(finding->change, "TW_NET_DEVICES=%s on all ranks", usual);
    }
}

/* ---- ranks and nodes ----------------------------------------------------------------------------------- */

static void judge_placement(judge_t *judge)
{
    for (int r = 0; r < judge->result->n_ranks; r++) {
        const doctor_facts_t *facts = &judge->result->facts[r];
        const doctor_device_t *device = &facts->devices[0];
        if (facts->numa < 0 || device->numa < 0 || facts->numa == device->numa) {
            continue;
        }
        doctor_finding_t *finding = add(judge, 1.08);
        say(finding->what, "rank %d runs on NUMA node %d of %s, its device %s is at node %d", r, facts->numa,
            facts->host, device->name, device->numa);
        say(finding->why, "the launcher binds ranks without a look at devices");
        say(finding->change, "bind it there (numactl --cpunodebind=%d), or name a device of node %d", device->numa,
            facts->numa);
    }
}

static void judge_codecs(judge_t *judge)
{
    const doctor_result_t *result = judge->result;
    double *speeds = malloc((size_t)(result->n_ranks + 1) * sizeof(*speeds));
    for (int r = 0; r < result->n_ranks && speeds; r++) {
        speeds[r] = result->facts[r].encode_GBps[0];
    }
    const double usual = speeds ? tw_median(speeds, (size_t)result->n_ranks) : 0;
    free(speeds);
    for (int r = 0; r < result->n_ranks; r++) {
        const doctor_facts_t *facts = &result->facts[r];
        if (facts->encode_GBps[0] >= usual / 2) {
            continue;
        }
        doctor_finding_t *finding = add(judge, 1.12);
        say(finding->what, "rank %d (%s) encodes %.2f GB/s, %.2f is usual", r, facts->host, facts->encode_GBps[0],
            usual);
        say(finding->why, "a slower or busy processor, or a low clock (power)");
        say(finding->change, "what else runs on %s; its governor and power limits", facts->host);
    }
}

static void judge_retransmissions(judge_t *judge)
{
    for (int node = 0; node < judge->result->n_nodes; node++) {
        int64_t repeated;
        const double share = repeated_share(judge->result, node, &repeated);
        const int is_said = best_bps(judge->result, node, 0, 1) < SLOW_SHARE * doctor_usual_bps(judge->result, 0);
        if (share <= REPEATED_SHARE || repeated < REPEATED_MIN || is_said) {
            continue;
        }
        doctor_finding_t *finding = add(judge, 1 + share);
        say_node(judge, finding->what, node);
        say(finding->what, " sends %.1f %% of its packets again", 100 * share);
        say(finding->why, "packets are lost: a bad cable, a queue that is too short, a limit that drops");
        say(finding->change, "counters of %s (ethtool -S) and of its port", device_name(judge, node, 0));
    }
}

static void judge_limits(judge_t *judge)
{
    const doctor_result_t *result = judge->result;
    const int64_t needed = (int64_t)result->n_ranks * n_streams(result) + 256;
    for (int node = 0; node < result->n_nodes; node++) {
        const doctor_facts_t *facts = doctor_node(result, node);
        if (facts->descriptors < needed) {
            doctor_finding_t *finding = add(judge, 1.09);
            say_node(judge, finding->what, node);
            say(finding->what, ": %lld files and sockets may be open, %lld may be needed",
                (long long)facts->descriptors, (long long)needed);
            say(finding->why, "the limit of the shell or of the service that starts ranks");
            say(finding->change, "ulimit -n %lld", (long long)needed);
        }
        if (facts->shm_bytes < SHM_BYTES && result->n_ranks > result->n_nodes) {
            doctor_finding_t *finding = add(judge, 1.03);
            say_node(judge, finding->what, node);
            say(finding->what, ": /dev/shm has %lld MB", (long long)(facts->shm_bytes >> 20));
            say(finding->why, "a container's default");
            say(finding->change, "docker run --shm-size=1g, or --ipc=host");
        }
    }
    for (int r = 1; r < result->n_ranks; r++) {
        const doctor_facts_t *facts = &result->facts[r];
        if (result->leader[facts->node] == r && fabs(facts->clock_sec) > CLOCK_SEC + facts->clock_uncertain_sec) {
            doctor_finding_t *finding = add(judge, 1.01);
            say_node(judge, finding->what, facts->node);
            say(finding->what, ": its clock is %.2f s %s rank 0's", fabs(facts->clock_sec),
                facts->clock_sec > 0 ? "ahead of" : "behind");
            say(finding->why, "no NTP there; logs of ranks do not fit together, training is not hurt");
            say(finding->change, "chronyd or ntpd on %s", facts->host);
        }
    }
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
    judge_paths(&judge);
    judge_congestion(&judge);
    judge_interfaces(&judge);
    judge_placement(&judge);
    judge_codecs(&judge);
    judge_retransmissions(&judge);
    judge_limits(&judge);
    qsort(out->list, (size_t)out->n, sizeof(out->list[0]), by_weight);
}
