/* The report: text for people, which ends in three lines, and the same as JSON. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "bench/doctor/doctor.h"

#define MATRIX_NODES_MAX 16
#define LINE_BYTES 1024

static double gb_per_sec(double bps)
{
    return bps / 8e9;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static void print_number(int64_t value, const char *unit)
{
    if (value == INT64_MAX) {
        printf(" unlimited");
    } else {
        printf(" %lld%s", (long long)value, unit);
    }
}

static void print_ranks(const doctor_result_t *result)
{
    printf("ranks:\n");
    for (int r = 0; r < result->n_ranks; r++) {
        const doctor_facts_t *facts = &result->facts[r];
        printf("  %d: node %d (%s)", r, facts->node, facts->host);
        for (int i = 0; i < facts->n_devices; i++) {
            const doctor_device_t *device = &facts->devices[i];
            printf(", %s mtu %d", device->name, device->mtu);
            if (device->speed_mbps > 0) {
                printf(" %d Mb/s", device->speed_mbps);
            }
            if (device->numa >= 0) {
                printf(" numa %d", device->numa);
            }
        }
        printf(", %d cores", facts->cores);
        if (facts->numa >= 0) {
            printf(" of numa %d", facts->numa);
        }
        for (int i = 0; i < DOCTOR_CODECS; i++) {
            printf(", %s %.2f GB/s", doctor_codec_names[i], facts->encode_GBps[i]);
        }
        printf(", clock %+.1f ms (+- %.1f)\n", 1e3 * facts->clock_sec, 1e3 * facts->clock_uncertain_sec);
    }
}

static void print_nodes(const doctor_result_t *result)
{
    printf("nodes:\n");
    for (int node = 0; node < result->n_nodes; node++) {
        const doctor_facts_t *facts = doctor_node(result, node);
        printf("  %d (%s): %.1f GB of memory available (replicas of %.1f G weights), /dev/shm %.1f GB, open "
               "files",
               node, facts->host, (double)facts->memory_bytes / 1e9, (double)facts->memory_bytes / 3e9,
               (double)facts->shm_bytes / 1e9);
        print_number(facts->descriptors, "");
        printf(" of");
        print_number(facts->descriptors_hard, "");
        printf(", tcp_wmem up to %lld KB, tcp_rmem %lld KB\n", (long long)facts->send_buffer / 1000,
               (long long)facts->receive_buffer / 1000);
    }
}

static const char *kind_text(int kind)
{
    static const char *const names[] = {"alone", "several streams", "all at once"};
    return names[kind];
}

static void print_flow(const doctor_result_t *result, const doctor_flow_t *flow)
{
    printf("  %d > %d %s, %s, %d stream%s: ", flow->from, flow->to,
           doctor_node(result, flow->from)->devices[flow->device].name, kind_text(flow->kind),
           flow->n_streams, flow->n_streams > 1 ? "s" : "");
    if (flow->bps <= 0) {
        printf("nothing came: %s\n", flow->error ? strerror(flow->error) : "no data");
        return;
    }
    printf("%.4f GB/s, round trip %.0f us, %s, segments of %d, %lld of %lld sent again\n",
           gb_per_sec(flow->bps), flow->rtt_us, flow->congestion, flow->segment_bytes,
           (long long)flow->repeated, (long long)flow->segments);
}

/* Of many nodes only what is not usual: JSON has all. */
static void print_flows(const doctor_result_t *result)
{
    if (result->n_flows == 0) {
        printf("links: one node, so there are none\n");
        return;
    }
    double usual[DOCTOR_DEVICES_MAX];
    for (int device = 0; device < DOCTOR_DEVICES_MAX; device++) {
        usual[device] = doctor_usual_bps(result, device);
    }
    printf("links:\n");
    for (int i = 0; i < result->n_flows; i++) {
        const doctor_flow_t *flow = &result->flows[i];
        if (result->n_nodes <= MATRIX_NODES_MAX || flow->bps < 0.7 * usual[flow->device]) {
            print_flow(result, flow);
        }
    }
    printf("paths:\n");
    for (int i = 0; i < result->n_paths; i++) {
        const doctor_path_t *path = &result->paths[i];
        if (result->n_nodes <= MATRIX_NODES_MAX || path->passed_bytes < path->asked_bytes) {
            printf("  %d > %d %s: packets of %d bytes pass, of %d tried\n", path->from, path->to,
                   doctor_node(result, path->from)->devices[path->device].name, path->passed_bytes,
                   path->asked_bytes);
        }
    }
}

/* What stands in one of the last three lines: of the worst findings. */
static void join(const doctor_findings_t *findings, size_t at, char *line)
{
    size_t have = 0;
    line[0] = '\0';
    for (int i = 0; i < findings->n && i < 3; i++) {
        have += (size_t)snprintf(line + have, have < LINE_BYTES ? LINE_BYTES - have : 0, "%s%s",
                                 i ? "; " : "", (const char *)&findings->list[i] + at);
    }
}

static void usual_line(const doctor_result_t *result, char *line)
{
    const double usual = doctor_usual_bps(result, 0);
    if (usual > 0) {
        snprintf(line, LINE_BYTES, "nothing is: links carry %.4f GB/s each way", gb_per_sec(usual));
    } else {
        snprintf(line, LINE_BYTES, "nothing is, on one node");
    }
}

void doctor_print(const doctor_result_t *result, const doctor_findings_t *findings)
{
    char what[LINE_BYTES], why[LINE_BYTES], change[LINE_BYTES];
    print_ranks(result);
    print_nodes(result);
    print_flows(result);
    for (int i = 3; i < findings->n; i++) {
        printf("also: %s: %s: %s\n", findings->list[i].what, findings->list[i].why, findings->list[i].change);
    }
    join(findings, offsetof(doctor_finding_t, what), what);
    join(findings, offsetof(doctor_finding_t, why), why);
    join(findings, offsetof(doctor_finding_t, change), change);
    if (findings->n == 0) {
        usual_line(result, what);
        snprintf(why, sizeof(why), "all nodes are alike");
        snprintf(change, sizeof(change), "nothing");
    }
    printf("slow: %s\nwhy: %s\nchange: %s\n", what, why, change);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static json_t *device_json(const doctor_device_t *device)
{
    return json_pack("{s:s, s:i, s:i, s:i}", "name", device->name, "mtu", device->mtu, "speed_mbps",
                     device->speed_mbps, "numa", device->numa);
}

static json_t *rank_json(const doctor_facts_t *facts)
{
    json_t *devices = json_array(), *codecs = json_object();
    for (int i = 0; i < facts->n_devices; i++) {
        json_array_append_new(devices, device_json(&facts->devices[i]));
    }
    for (int i = 0; i < DOCTOR_CODECS; i++) {
        json_object_set_new(codecs, doctor_codec_names[i], json_real(facts->encode_GBps[i]));
    }
    return json_pack("{s:s, s:i, s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o}",
                     "rdma", facts->rdma, "rank", facts->rank, "node", facts->node, "host", facts->host,
                     "cores", facts->cores, "numa", facts->numa, "open_files", (json_int_t)facts->descriptors,
                     "open_files_hard", (json_int_t)facts->descriptors_hard, "memory_bytes",
                     (json_int_t)facts->memory_bytes, "shm_bytes", (json_int_t)facts->shm_bytes,
                     "send_buffer_bytes", (json_int_t)facts->send_buffer, "receive_buffer_bytes",
                     (json_int_t)facts->receive_buffer, "clock_sec", facts->clock_sec, "clock_uncertain_sec",
                     facts->clock_uncertain_sec, "devices", devices, "encode_GBps", codecs);
}

static json_t *flow_json(const doctor_flow_t *flow)
{
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:I, s:I, s:i, s:s, s:s}", "kind",
                     kind_text(flow->kind), "from", flow->from, "to", flow->to, "device", flow->device,
                     "streams", flow->n_streams, "bps", flow->bps, "rtt_us", flow->rtt_us, "segments",
                     (json_int_t)flow->segments, "segments_sent_again", (json_int_t)flow->repeated,
                     "segment_bytes", flow->segment_bytes, "congestion", flow->congestion, "error",
                     flow->error ? strerror(flow->error) : "");
}

static json_t *all_json(const doctor_result_t *result, const doctor_findings_t *findings)
{
    json_t *ranks = json_array(), *flows = json_array(), *paths = json_array(), *found = json_array();
    for (int r = 0; r < result->n_ranks; r++) {
        json_array_append_new(ranks, rank_json(&result->facts[r]));
    }
    for (int i = 0; i < result->n_flows; i++) {
        json_array_append_new(flows, flow_json(&result->flows[i]));
    }
    for (int i = 0; i < result->n_paths; i++) {
        const doctor_path_t *path = &result->paths[i];
        json_array_append_new(paths, json_pack("{s:i, s:i, s:i, s:i, s:i}", "from", path->from, "to",
                                               path->to, "device", path->device, "asked_bytes",
                                               path->asked_bytes, "passed_bytes", path->passed_bytes));
    }
    for (int i = 0; i < findings->n; i++) {
        const doctor_finding_t *one = &findings->list[i];
        json_array_append_new(found, json_pack("{s:f, s:s, s:s, s:s}", "weight", one->weight, "what",
                                               one->what, "why", one->why, "change", one->change));
    }
    return json_pack("{s:i, s:f, s:o, s:o, s:o, s:o}", "nodes", result->n_nodes, "usual_bps",
                     doctor_usual_bps(result, 0), "findings", found, "ranks", ranks, "flows", flows, "paths",
                     paths);
}

tw_status_t doctor_write_json(const doctor_result_t *result, const doctor_findings_t *findings, FILE *out,
                              const char *path)
{
    json_t *all = all_json(result, findings);
    const int written =
        all && json_dumpf(all, out, JSON_INDENT(1)) == 0 && fputc('\n', out) != EOF && fflush(out) == 0;
    json_decref(all);
    if (!written) {
        tw_error("doctor: %s: cannot write: %s", path, strerror(errno));
        return TW_ERR_IO;
    }
    return TW_OK;
}
