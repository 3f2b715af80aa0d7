/* Judges settings, from facts alone: those that are too small, or differ between ranks or nodes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/findings.h"

#define CLOCK_SEC 0.1
#define SHM_BYTES ((int64_t)64 << 20)

/* ---- settings that differ ------------------------------------------------------------------------------ */

static void mtus(tw_doctor_judge_t *judge, int device)
{
    const tw_doctor_result_t *result = judge->result;
    const int usual = tw_doctor_usual_mtu(result, device);
    for (int node = 0; node < result->n_nodes; node++) {
        const tw_doctor_device_t *own = &tw_doctor_node(result, node)->devices[device];
        if (own->mtu == usual) {
            continue;
        }
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, own->mtu < usual ? 1.2 : 1.1);
        tw_doctor_say_node(judge, finding->what, node);
        tw_doctor_say(finding->what, ": %s has an MTU of %d, elsewhere it is %d", own->name, own->mtu, usual);
        tw_doctor_say(finding->why, "somebody has set it, or its driver's default differs");
        tw_doctor_say(finding->change, "ip link set %s mtu %d on %s", own->name, usual,
                      tw_doctor_node(result, node)->host);
    }
}

static void paths(tw_doctor_judge_t *judge)
{
    const tw_doctor_result_t *result = judge->result;
    for (int i = 0; i < result->n_paths; i++) {
        const tw_doctor_path_t *path = &result->paths[i];
        if (path->passed_bytes >= path->asked_bytes || path->asked_bytes >= UINT16_MAX) {
            continue;
        }
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, path->passed_bytes > 0 ? 1.5 : 1.05);
        tw_doctor_say(finding->what, "from ");
        tw_doctor_say_node(judge, finding->what, path->from);
        tw_doctor_say(finding->what, " to ");
        tw_doctor_say_node(judge, finding->what, path->to);
        if (path->passed_bytes == 0) {
            tw_doctor_say(finding->what, " no UDP packet passes");
            tw_doctor_say(finding->why, "a firewall; the MTU of the path is not known then");
            tw_doctor_say(finding->change, "let UDP pass, or see that TCP is fast");
            continue;
        }
        tw_doctor_say(finding->what, " packets of %d bytes pass, of %d they do not", path->passed_bytes,
                      path->asked_bytes);
        tw_doctor_say(finding->why, "a switch or a tunnel between them has a smaller MTU than the devices");
        tw_doctor_say(finding->change, "the switch's MTU, or ip link set %s mtu %d on all nodes",
                      tw_doctor_device_name(judge, path->from, path->device), path->passed_bytes);
    }
}

/** The name of the congestion control that most flows have. */
static const char *usual_congestion(const tw_doctor_result_t *result)
{
    const char *usual = "";
    int most = 0;
    for (int i = 0; i < result->n_flows; i++) {
        int n = 0, first = 0;
        while (strcmp(result->flows[first].congestion, result->flows[i].congestion) != 0) {
            first++;
        }
        /* flow i is the first one with its name: count all flows with that name */
        for (int k = i; first == i && k < result->n_flows; k++) {
            n += strcmp(result->flows[i].congestion, result->flows[k].congestion) == 0;
        }
        if (result->flows[i].congestion[0] && n > most) {
            usual = result->flows[i].congestion;
            most = n;
        }
    }
    return usual;
}

/** For each node, the congestion control of one of its flows that differs from the usual one, or NULL.
 *  [n_nodes]; the caller frees it. Returns NULL if memory runs out. */
static const char **other_congestion(const tw_doctor_result_t *result, const char *usual)
{
    const char **other = calloc((size_t)result->n_nodes + 1, sizeof(*other));
    for (int i = 0; other && i < result->n_flows; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i];
        if (!other[flow->from] && flow->congestion[0] && strcmp(flow->congestion, usual) != 0) {
            other[flow->from] = flow->congestion;
        }
    }
    return other;
}

static void congestion(tw_doctor_judge_t *judge)
{
    const tw_doctor_result_t *result = judge->result;
    const char *usual = usual_congestion(result), **other = other_congestion(result, usual);
    for (int node = 0; other && node < result->n_nodes; node++) {
        if (!other[node]) {
            continue;
        }
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.15);
        tw_doctor_say_node(judge, finding->what, node);
        tw_doctor_say(finding->what, " sends with the congestion control %s, others with %s", other[node],
                      usual);
        tw_doctor_say(finding->why,
                      "a sysctl or a route says so; streams of different kinds do not share a link alike");
        tw_doctor_say(finding->change,
                      "sysctl net.ipv4.tcp_congestion_control=%s on %s, or congctl of its route", usual,
                      tw_doctor_node(result, node)->host);
    }
    free(other);
}

static const char *first_device(const tw_doctor_result_t *result, int node)
{
    return tw_doctor_node(result, node)->devices[0].name;
}

/** The name of the device that is the first one on most nodes. */
static const char *usual_device(const tw_doctor_result_t *result)
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

static void interfaces(tw_doctor_judge_t *judge)
{
    const tw_doctor_result_t *result = judge->result;
    const char *usual = usual_device(result);
    for (int r = 0; r < result->world; r++) {
        const tw_doctor_facts_t *facts = &result->facts[r];
        if (strcmp(facts->devices[0].name, usual) == 0) {
            continue;
        }
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.1);
        tw_doctor_say(finding->what, "rank %d of ", r);
        tw_doctor_say_node(judge, finding->what, facts->node);
        tw_doctor_say(finding->what, " uses %s, others %s", facts->devices[0].name, usual);
        tw_doctor_say(finding->why, "TW_NET_DEVICES differs, or another way leads to rank 0 from there");
        tw_doctor_say(finding->change, "TW_NET_DEVICES=%s on all ranks", usual);
    }
}

/** Judge RDMA: a job that uses TCP although there is a faster RDMA network, and nodes that lack RDMA. */
static void rdma(tw_doctor_judge_t *judge)
{
    const tw_doctor_result_t *result = judge->result;
    int n = 0, last = 0;
    for (int node = 0; node < result->n_nodes; node++) {
        n += tw_doctor_node(result, node)->rdma[0] != '\0';
        last = tw_doctor_node(result, node)->rdma[0] ? node : last;
    }
    for (int node = 0; node < result->n_nodes && n > 0; node++) {
        if (!tw_doctor_node(result, node)->rdma[0]) {
            tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.4);
            tw_doctor_say_node(judge, finding->what, node);
            tw_doctor_say(finding->what, " has no active RDMA port, others have %s",
                          tw_doctor_node(result, last)->rdma);
            tw_doctor_say(finding->why, "a cable, a port or a driver that is down");
            tw_doctor_say(finding->change, "ibstat on %s", tw_doctor_node(result, node)->host);
        }
    }
    if (n == result->n_nodes && n > 1 && tw_doctor_node(result, 0)->is_tcp) {
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.3);
        tw_doctor_say(finding->what, "all nodes have RDMA (%s), which jobs do not use",
                      tw_doctor_node(result, 0)->rdma);
        tw_doctor_say(finding->why, "TW_NET_TLS is tcp, the default");
        tw_doctor_say(finding->change, "TW_NET_TLS=rc, in a network that is trusted");
    }
}

/* ---- ranks and nodes ----------------------------------------------------------------------------------- */

static void placement(tw_doctor_judge_t *judge)
{
    for (int r = 0; r < judge->result->world; r++) {
        const tw_doctor_facts_t *facts = &judge->result->facts[r];
        const tw_doctor_device_t *device = &facts->devices[0];
        if (facts->numa < 0 || device->numa < 0 || facts->numa == device->numa) {
            continue;
        }
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.08);
        tw_doctor_say(finding->what, "rank %d runs on NUMA node %d of %s, its device %s is at node %d", r,
                      facts->numa, facts->host, device->name, device->numa);
        tw_doctor_say(finding->why, "the launcher binds ranks without a look at devices");
        tw_doctor_say(finding->change,
                      "bind it there (numactl --cpunodebind=%d), or name a device of node %d", device->numa,
                      facts->numa);
    }
}

static void codecs(tw_doctor_judge_t *judge)
{
    const tw_doctor_result_t *result = judge->result;
    double *speeds = malloc((size_t)(result->world + 1) * sizeof(*speeds));
    for (int r = 0; r < result->world && speeds; r++) {
        speeds[r] = result->facts[r].encode_GBps[0];
    }
    const double usual = speeds ? tw_median(speeds, (size_t)result->world) : 0;
    free(speeds);
    for (int r = 0; r < result->world; r++) {
        const tw_doctor_facts_t *facts = &result->facts[r];
        if (facts->encode_GBps[0] >= usual / 2) {
            continue;
        }
        tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.12);
        tw_doctor_say(finding->what, "rank %d (%s) encodes %.2f GB/s, %.2f is usual", r, facts->host,
                      facts->encode_GBps[0], usual);
        tw_doctor_say(finding->why, "a slower or busy processor, or a low clock (power)");
        tw_doctor_say(finding->change, "what else runs on %s; its governor and power limits", facts->host);
    }
}

static void limits(tw_doctor_judge_t *judge)
{
    const tw_doctor_result_t *result = judge->result;
    const int64_t needed = (int64_t)result->world * tw_doctor_most_streams(result) + 256;
    for (int node = 0; node < result->n_nodes; node++) {
        const tw_doctor_facts_t *facts = tw_doctor_node(result, node);
        if (facts->descriptors < needed) {
            tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.09);
            tw_doctor_say_node(judge, finding->what, node);
            tw_doctor_say(finding->what, ": %lld files and sockets may be open, %lld may be needed",
                          (long long)facts->descriptors, (long long)needed);
            tw_doctor_say(finding->why, "the limit of the shell or of the service that starts ranks");
            tw_doctor_say(finding->change, "ulimit -n %lld", (long long)needed);
        }
        if (facts->shm_bytes < SHM_BYTES && result->world > result->n_nodes) {
            tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.03);
            tw_doctor_say_node(judge, finding->what, node);
            tw_doctor_say(finding->what, ": /dev/shm has %lld MB", (long long)(facts->shm_bytes >> 20));
            tw_doctor_say(finding->why, "a container's default");
            tw_doctor_say(finding->change, "docker run --shm-size=1g, or --ipc=host");
        }
    }
    for (int r = 1; r < result->world; r++) {
        const tw_doctor_facts_t *facts = &result->facts[r];
        if (result->leader[facts->node] == r &&
            fabs(facts->clock_sec) > CLOCK_SEC + facts->clock_uncertain_sec) {
            tw_doctor_finding_t *finding = tw_doctor_finding_add(judge, 1.01);
            tw_doctor_say_node(judge, finding->what, facts->node);
            tw_doctor_say(finding->what, ": its clock is %.2f s %s rank 0's", fabs(facts->clock_sec),
                          facts->clock_sec > 0 ? "ahead of" : "behind");
            tw_doctor_say(finding->why,
                          "no NTP there; logs of ranks do not fit together, training is not hurt");
            tw_doctor_say(finding->change, "chronyd or ntpd on %s", facts->host);
        }
    }
}

void tw_doctor_judge_settings(tw_doctor_judge_t *judge)
{
    for (int device = 0; device < tw_doctor_measured_devices(judge->result); device++) {
        mtus(judge, device);
    }
    paths(judge);
    congestion(judge);
    interfaces(judge);
    rdma(judge);
    placement(judge);
    codecs(judge);
    limits(judge);
}
