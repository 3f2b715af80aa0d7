/* Writes the report, as text whose last four lines are the summary, and as JSON. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "doctor/help.h"

#define MATRIX_NODES_MAX 16
#define LINE_BYTES 1024
/* At most this many lines of a list are printed; the JSON has all of them. */
#define LINES_MAX 64

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

static void print_rest(int n)
{
    if (n > LINES_MAX) {
        printf("  and %d more: see --json\n", n - LINES_MAX);
    }
}

static void print_ranks(const tw_doctor_result_t *result)
{
    printf("ranks:\n");
    for (int r = 0; r < result->world && r < LINES_MAX; r++) {
        const tw_doctor_facts_t *facts = &result->facts[r];
        printf("  %d: node %d (%s)", r, facts->node, facts->host);
        for (int i = 0; i < facts->n_devices; i++) {
            const tw_doctor_device_t *device = &facts->devices[i];
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
        for (int i = 0; i < TW_DOCTOR_CODECS; i++) {
            printf(", %s %.2f GB/s", tw_doctor_codec_names[i], facts->encode_GBps[i]);
        }
        printf(", clock %+.1f ms (+- %.1f)\n", 1e3 * facts->clock_sec, 1e3 * facts->clock_uncertain_sec);
    }
    print_rest(result->world);
}

static void print_nodes(const tw_doctor_result_t *result)
{
    printf("nodes:\n");
    for (int node = 0; node < result->n_nodes && node < LINES_MAX; node++) {
        const tw_doctor_facts_t *facts = tw_doctor_node(result, node);
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
    print_rest(result->n_nodes);
}

static const char *kind_text(int kind)
{
    static const char *const names[] = {"in pairs", "several streams", "all at once"};
    return names[kind];
}

static void print_flow(const tw_doctor_result_t *result, const tw_doctor_flow_t *flow)
{
    printf("  %d > %d %s, %s, %d stream%s: ", flow->from, flow->to,
           tw_doctor_node(result, flow->from)->devices[flow->device].name, kind_text(flow->kind),
           flow->n_streams, flow->n_streams > 1 ? "s" : "");
    if (flow->bps <= 0) {
        printf("nothing came: %s\n", flow->error ? strerror(flow->error) : "no data");
        return;
    }
    printf("%.4f GB/s, round trip %.0f us, %s, segments of %d, %lld of %lld sent again\n",
           gb_per_sec(flow->bps), flow->rtt_us, flow->congestion, flow->segment_bytes,
           (long long)flow->repeated, (long long)flow->segments);
}

/** Print the flows. If there are many nodes, print only slow ones. */
static void print_flows(const tw_doctor_result_t *result)
{
    double usual[TW_DOCTOR_DEVICES_MAX];
    int n = 0;
    for (int device = 0; device < TW_DOCTOR_DEVICES_MAX; device++) {
        usual[device] = tw_doctor_usual_bps(result, device);
    }
    printf("links:\n");
    for (int i = 0; i < result->n_flows; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i];
        if (result->n_nodes <= MATRIX_NODES_MAX ||
            (flow->bps < 0.7 * usual[flow->device] && n++ < LINES_MAX)) {
            print_flow(result, flow);
        }
    }
    print_rest(n);
    if (result->n_skipped > 0) {
        printf("  not measured: %d\n", result->n_skipped);
    }
}

static void print_paths(const tw_doctor_result_t *result)
{
    int n = 0;
    printf("paths:\n");
    for (int i = 0; i < result->n_paths; i++) {
        const tw_doctor_path_t *path = &result->paths[i];
        if (result->n_nodes <= MATRIX_NODES_MAX ||
            (path->passed_bytes < path->asked_bytes && n++ < LINES_MAX)) {
            printf("  %d > %d %s: packets of %d bytes pass, of %d tried\n", path->from, path->to,
                   tw_doctor_node(result, path->from)->devices[path->device].name, path->passed_bytes,
                   path->asked_bytes);
        }
    }
    print_rest(n);
}

/** Join the texts at offset `at` of the three heaviest findings into one line of the summary. */
static void doctor_join(const tw_doctor_findings_t *findings, size_t at, char *line)
{
    size_t have = 0;
    line[0] = '\0';
    for (int i = 0; i < findings->n && i < 3; i++) {
        have += (size_t)snprintf(line + have, have < LINE_BYTES ? LINE_BYTES - have : 0, "%s%s",
                                 i ? "; " : "", (const char *)&findings->list[i] + at);
    }
}

static void usual_line(const tw_doctor_result_t *result, char *line)
{
    const double usual = tw_doctor_usual_bps(result, 0);
    if (usual > 0) {
        snprintf(line, LINE_BYTES, "nothing is: links carry %.4f GB/s each way", gb_per_sec(usual));
    } else {
        snprintf(line, LINE_BYTES, "nothing is, on one node");
    }
}

void tw_doctor_print(const tw_doctor_result_t *result, const tw_doctor_findings_t *findings)
{
    char what[LINE_BYTES], why[LINE_BYTES], change[LINE_BYTES];
    const tw_doctor_links_t links = tw_doctor_links_of(result);
    print_ranks(result);
    print_nodes(result);
    if (result->n_flows > 0) {
        print_flows(result);
        print_paths(result);
    } else {
        printf("links: one node, so there are none\n");
    }
    tw_doctor_print_steps(&links, result->n_params);
    for (int i = 3; i < findings->n; i++) {
        printf("also: %s: %s: %s\n", findings->list[i].what, findings->list[i].why, findings->list[i].change);
    }
    doctor_join(findings, offsetof(tw_doctor_finding_t, what), what);
    doctor_join(findings, offsetof(tw_doctor_finding_t, why), why);
    doctor_join(findings, offsetof(tw_doctor_finding_t, change), change);
    if (findings->n == 0) {
        usual_line(result, what);
        snprintf(why, sizeof(why), "all nodes are alike");
        snprintf(change, sizeof(change), "nothing");
    }
    printf("slow: %s\nwhy: %s\nchange: %s\n", what, why, change);
    tw_doctor_print_help(&links, result->n_params);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/** Make a JSON string of a text. If it is not UTF-8, its non-ASCII bytes become '?': host names may have any
 *  bytes, and a long text may be cut inside a character. */
static json_t *text_json(const char *text)
{
    json_t *whole = json_string(text);
    char plain[TW_DOCTOR_TEXT_BYTES];
    if (whole) {
        return whole;
    }
    snprintf(plain, sizeof(plain), "%s", text);
    for (char *at = plain; *at; at++) {
        *at = (*at & 0x80) != 0 ? '?' : *at;
    }
    return json_string(plain);
}

static json_t *device_json(const tw_doctor_device_t *device)
{
    return json_pack("{s:o, s:i, s:i, s:i}", "name", text_json(device->name), "mtu", device->mtu,
                     "speed_mbps", device->speed_mbps, "numa", device->numa);
}

static json_t *rank_json(const tw_doctor_result_t *result, int rank)
{
    const tw_doctor_facts_t *facts = &result->facts[rank];
    json_t *devices = json_array(), *codecs = json_object();
    for (int i = 0; i < facts->n_devices; i++) {
        json_array_append_new(devices, device_json(&facts->devices[i]));
    }
    for (int i = 0; i < TW_DOCTOR_CODECS; i++) {
        json_object_set_new(codecs, tw_doctor_codec_names[i], json_real(facts->encode_GBps[i]));
    }
    return json_pack("{s:o, s:i, s:i, s:o, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o}",
                     "rdma", text_json(facts->rdma), "rank", facts->rank, "node", facts->node, "host",
                     text_json(facts->host), "cores", facts->cores, "numa", facts->numa, "open_files",
                     (json_int_t)facts->descriptors, "open_files_hard", (json_int_t)facts->descriptors_hard,
                     "memory_bytes", (json_int_t)facts->memory_bytes, "shm_bytes",
                     (json_int_t)facts->shm_bytes, "send_buffer_bytes", (json_int_t)facts->send_buffer,
                     "receive_buffer_bytes", (json_int_t)facts->receive_buffer, "clock_sec", facts->clock_sec,
                     "clock_uncertain_sec", facts->clock_uncertain_sec, "devices", devices, "encode_GBps",
                     codecs);
}

static json_t *flow_json(const tw_doctor_result_t *result, int i)
{
    const tw_doctor_flow_t *flow = &result->flows[i];
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:I, s:I, s:i, s:s, s:s}", "kind",
                     kind_text(flow->kind), "from", flow->from, "to", flow->to, "device", flow->device,
                     "streams", flow->n_streams, "bps", flow->bps, "rtt_us", flow->rtt_us, "segments",
                     (json_int_t)flow->segments, "segments_sent_again", (json_int_t)flow->repeated,
                     "segment_bytes", flow->segment_bytes, "congestion", flow->congestion, "error",
                     flow->error ? strerror(flow->error) : "");
}

static json_t *path_json(const tw_doctor_result_t *result, int i)
{
    const tw_doctor_path_t *path = &result->paths[i];
    return json_pack("{s:i, s:i, s:i, s:i, s:i}", "from", path->from, "to", path->to, "device", path->device,
                     "asked_bytes", path->asked_bytes, "passed_bytes", path->passed_bytes);
}

static json_t *finding_json(const tw_doctor_finding_t *one)
{
    return json_pack("{s:f, s:o, s:o, s:o}", "weight", one->weight, "what", text_json(one->what), "why",
                     text_json(one->why), "change", text_json(one->change));
}

/** Write the start of the JSON object, up to its lists. Jansson writes it, since its decimal points do not
 *  depend on the locale. Returns 0 on failure. */
static int write_head(FILE *out, const tw_doctor_result_t *result)
{
    json_t *head = json_pack("{s:i, s:f, s:i}", "nodes", result->n_nodes, "usual_bps",
                             tw_doctor_usual_bps(result, 0), "ways_not_measured", result->n_skipped);
    const int done = head && fputs("{", out) != EOF && json_dumpf(head, out, JSON_EMBED) == 0;
    json_decref(head);
    return done;
}

/** Write a row of a list on a line of its own. Rows are not kept, since a thousand nodes have hundreds of
 *  thousands of them. Returns 0 on failure. */
static int write_row(FILE *out, int i, json_t *row)
{
    const int done = row && fputs(i > 0 ? ",\n  " : "\n  ", out) != EOF && json_dumpf(row, out, 0) == 0;
    json_decref(row);
    return done;
}

static int write_list(FILE *out, const char *name, const tw_doctor_result_t *result, int n,
                      json_t *(*make)(const tw_doctor_result_t *result, int i))
{
    int done = fprintf(out, ",\n \"%s\": [", name) > 0;
    for (int i = 0; i < n && done; i++) {
        done = write_row(out, i, make(result, i));
    }
    return done && fputs("]", out) != EOF;
}

static int write_findings(FILE *out, const tw_doctor_findings_t *findings)
{
    int done = fputs(",\n \"findings\": [", out) != EOF;
    for (int i = 0; i < findings->n && done; i++) {
        done = write_row(out, i, finding_json(&findings->list[i]));
    }
    return done && fputs("]", out) != EOF;
}

tw_status_t tw_doctor_write_json(const tw_doctor_result_t *result, const tw_doctor_findings_t *findings,
                                 FILE *out, const char *path)
{
    const tw_doctor_links_t links = tw_doctor_links_of(result);
    tw_doctor_step_t steps[TW_DOCTOR_STEPS];
    const int n_steps = tw_doctor_steps(&links, result->n_params, steps);
    const int written = write_head(out, result) && write_findings(out, findings) &&
                        write_list(out, "cases", result, n_steps > 0, tw_doctor_case_json) &&
                        write_list(out, "steps", result, n_steps, tw_doctor_step_json) &&
                        write_list(out, "ranks", result, result->world, rank_json) &&
                        write_list(out, "flows", result, result->n_flows, flow_json) &&
                        write_list(out, "paths", result, result->n_paths, path_json) &&
                        fputs("}\n", out) != EOF && fflush(out) == 0;
    return written ? TW_OK : tw_fail(TW_ERR_IO, "doctor: %s: cannot write: %s", path, strerror(errno));
}
