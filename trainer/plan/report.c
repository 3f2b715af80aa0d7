/* Prints the planner's tables, and a sentence of advice. */
#include "trainer/plan/report.h"

#include <string.h>

/* Smaller gains are within the noise. */
#define LEAST_GAIN 1.03

void tw_plan_print_states(double n_params, int world, FILE *out)
{
    fprintf(out, "# weights, gradients and optimizer of %.4g parameters on %d ranks, GB a rank:", n_params,
            world);
    for (int stage = 0; stage <= 3; stage++) {
        fprintf(out, "%s stage %d %.1f", stage ? "," : "", stage,
                tw_plan_states_bytes(n_params, stage, world) * 1e-9);
    }
    fprintf(out, "\n");
}

double tw_plan_row_device_bytes(const tw_plan_row_t *row)
{
    return tw_plan_memory_sum(&row->memory) - row->memory.off_device + row->memory.gpu;
}

int tw_plan_row_fits(const tw_plan_row_t *row, const tw_plan_cluster_t *cluster)
{
    return cluster->device_bytes <= 0.0 || tw_plan_row_device_bytes(row) <= cluster->device_bytes;
}

void tw_plan_print_memory(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out)
{
    int has_gpu = n_rows > 0 && rows[0].memory.gpu > 0.0;
    fprintf(out,
            "\n# memory of a rank, MB; of chunks on their way there may be fewer\n"
            "%-15s %9s %9s %9s %9s %11s %9s %9s %9s %10s%s\n",
            "# set", "optimizer", "weights", "gradients", "moving", "activations", "scratch", "chunks",
            "besides", "all", has_gpu ? "    on a GPU" : "");
    for (size_t i = 0; i < n_rows; i++) {
        const tw_plan_memory_t *m = &rows[i].memory;
        char gpu[32] = "";
        if (has_gpu) {
            snprintf(gpu, sizeof(gpu), " %11.1f", m->gpu * 1e-6);
        }
        fprintf(out, "%-15s %9.1f %9.1f %9.1f %9.1f %11.1f %9.1f %9.1f %9.1f %10.1f%s%s\n", rows[i].name,
                m->optimizer * 1e-6, m->weights * 1e-6, m->gradients * 1e-6, m->moving * 1e-6,
                m->activations * 1e-6, m->scratch * 1e-6, m->chunks * 1e-6, m->besides * 1e-6,
                tw_plan_memory_sum(m) * 1e-6, gpu, tw_plan_row_fits(&rows[i], cluster) ? "" : "  too much");
    }
}

static const tw_plan_row_t *find(const tw_plan_row_t *rows, size_t n_rows, const char *name)
{
    for (size_t i = 0; i < n_rows; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static double ratio(double a, double b)
{
    return b > 0.0 ? a / b : 1.0;
}

void tw_plan_print_steps(const tw_plan_row_t *rows, size_t n_rows, FILE *out)
{
    const tw_plan_row_t *zero3 = find(rows, n_rows, "zero3");
    fprintf(out,
            "\n# a step; MB between nodes and inside them, all ranks together\n%-15s %12s %9s %12s %10s %8s "
            "%9s  %s\n",
            "# set", "between", "of zero3", "inside", "ms", "waiting", "speed-up",
            "in PyTorch, with TW_FSDP=1");
    for (size_t i = 0; i < n_rows; i++) {
        const tw_plan_row_t *row = &rows[i];
        fprintf(out, "%-15s %12.3f %9.3f %12.3f %10.1f %6.0f %% %9.2f  %s\n", row->name,
                row->inter_node_bytes * 1e-6, ratio(row->inter_node_bytes, zero3->inter_node_bytes),
                row->in_node_bytes * 1e-6, row->time.step_sec * 1e3,
                100.0 * ratio(row->time.wait_sec, row->time.step_sec),
                ratio(zero3->time.step_sec, row->time.step_sec), row->torch ? row->torch : "");
    }
}

static tw_status_t report_write_row(const tw_plan_row_t *row, const tw_plan_row_t *zero3,
                                    const tw_plan_cluster_t *cluster, FILE *out)
{
    const tw_plan_memory_t *m = &row->memory;
    tw_json_t *json = tw_json_create();
    tw_json_add_string(json, "set", row->name);
    tw_json_add_int(json, "stage", row->stage);
    tw_json_add_bool(json, "lossless", row->is_lossless);
    tw_json_add_int(json, "nodes", cluster->n_nodes);
    tw_json_add_int(json, "ranks_per_node", cluster->ranks_per_node);
    tw_json_add_double(json, "link_bps", cluster->link_bps);
    tw_json_add_double(json, "step_sec", row->time.step_sec);
    tw_json_add_double(json, "wait_share", ratio(row->time.wait_sec, row->time.step_sec));
    tw_json_add_double(json, "speedup", ratio(zero3->time.step_sec, row->time.step_sec));
    tw_json_add_double(json, "inter_node_bytes_per_step", row->inter_node_bytes);
    tw_json_add_double(json, "in_node_bytes_per_step", row->in_node_bytes);
    tw_json_add_double(json, "bytes_ratio", ratio(row->inter_node_bytes, zero3->inter_node_bytes));
    tw_json_add_double(json, "optimizer_bytes", m->optimizer);
    tw_json_add_double(json, "weights_bytes", m->weights);
    tw_json_add_double(json, "gradients_bytes", m->gradients);
    tw_json_add_double(json, "moving_bytes", m->moving);
    tw_json_add_double(json, "activations_bytes", m->activations);
    tw_json_add_double(json, "scratch_bytes", m->scratch);
    tw_json_add_double(json, "chunks_bytes", m->chunks);
    tw_json_add_double(json, "besides_bytes", m->besides);
    tw_json_add_double(json, "memory_bytes", tw_plan_memory_sum(m));
    tw_json_add_double(json, "off_device_bytes", m->off_device);
    tw_json_add_double(json, "gpu_bytes", m->gpu);
    tw_json_add_bool(json, "fits", tw_plan_row_fits(row, cluster));
    tw_status_t status = tw_json_write_line(json, out);
    tw_json_destroy(json);
    return status;
}

tw_status_t tw_plan_write_json(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                               FILE *out)
{
    const tw_plan_row_t *zero3 = find(rows, n_rows, "zero3");
    tw_status_t status = TW_OK;
    for (size_t i = 0; i < n_rows && status == TW_OK; i++) {
        status = report_write_row(&rows[i], zero3, cluster, out);
    }
    return status;
}

const tw_plan_row_t *tw_plan_row_fastest(const tw_plan_row_t *rows, size_t n_rows,
                                         const tw_plan_cluster_t *cluster, int lossless_only)
{
    const tw_plan_row_t *best = NULL;
    for (size_t i = 0; i < n_rows; i++) {
        int counts = tw_plan_row_fits(&rows[i], cluster) && (!lossless_only || rows[i].is_lossless);
        if (counts && (!best || rows[i].time.step_sec < best->time.step_sec)) {
            best = &rows[i];
        }
    }
    return best;
}

void tw_plan_print_torch(const tw_plan_row_t *any, const tw_plan_row_t *lossless, FILE *out)
{
    if (any->torch) {
        fprintf(out, "# in PyTorch (FSDP2) that is TW_FSDP=1 %s\n", any->torch);
    }
    if (lossless != any && lossless->torch) {
        fprintf(out, "# in PyTorch (FSDP2) with no change to any loss TW_FSDP=1 %s\n", lossless->torch);
    }
}

void tw_plan_print_advice(const tw_plan_row_t *rows, size_t n_rows, const tw_plan_cluster_t *cluster,
                          FILE *out)
{
    const tw_plan_row_t *zero3 = find(rows, n_rows, "zero3");
    const tw_plan_row_t *lossless = tw_plan_row_fastest(rows, n_rows, cluster, 1),
                        *any = tw_plan_row_fastest(rows, n_rows, cluster, 0);
    double step = zero3->time.step_sec;
    fprintf(out, "\n");
    if (!any) {
        fprintf(out, "# nothing fits into a rank's %.1f GB: more ranks, or a smaller model\n",
                cluster->device_bytes * 1e-9);
    } else if (cluster->n_nodes == 1) {
        fprintf(out, "# one node: no byte crosses a network, and this will not help you\n");
    } else if (ratio(step, any->time.step_sec) < LEAST_GAIN) {
        fprintf(out, "# this will not help you: plain zero3 waits for the network %.0f %% of its time\n",
                100.0 * ratio(zero3->time.wait_sec, step));
    } else {
        fprintf(out, "# switch on %s: %.2f times as fast as zero3", any->name,
                ratio(step, any->time.step_sec));
        int is_other = lossless && lossless != any && ratio(step, lossless->time.step_sec) >= LEAST_GAIN;
        if (is_other) {
            fprintf(out, "; with no change to any loss %s: %.2f times", lossless->name,
                    ratio(step, lossless->time.step_sec));
        }
        fprintf(out, "\n");
        tw_plan_print_torch(any, is_other ? lossless : any, out);
    }
}
