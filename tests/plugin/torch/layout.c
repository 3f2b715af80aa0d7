/** Prints a line "structure field offset" for each field that Python declares again, "structure - size", and
 *  "constant name value" for its constants. */
#include <stddef.h>
#include <stdio.h>

#include "collectives/collectives.h"
#include "doctor/doctor.h"
#include "hpz/keeper.h"
#include "quant/loss.h"
#include "transport/transport.h"

#define SIZE(type) printf(#type " - %zu\n", sizeof(type))
#define CONSTANT(name, value) printf("constant " #name " %d\n", (int)value)
#define FIELD(type, field) printf(#type " " #field " %zu\n", offsetof(type, field))

static void print_jobs(void)
{
    SIZE(tw_job_t);
    FIELD(tw_job_t, rank);
    FIELD(tw_job_t, world);
    FIELD(tw_job_t, local_rank);
    FIELD(tw_job_t, local_world);
    FIELD(tw_job_t, master_addr);
    FIELD(tw_job_t, master_port);
    FIELD(tw_job_t, token);
    FIELD(tw_job_t, launcher);
    SIZE(tw_transport_params_t);
    FIELD(tw_transport_params_t, job);
    FIELD(tw_transport_params_t, listener);
    FIELD(tw_transport_params_t, net_devices);
    FIELD(tw_transport_params_t, node_id);
    FIELD(tw_transport_params_t, peer_timeout_sec);
    SIZE(tw_doctor_params_t);
    FIELD(tw_doctor_params_t, seconds);
    FIELD(tw_doctor_params_t, n_streams);
    FIELD(tw_doctor_params_t, json);
    FIELD(tw_doctor_params_t, n_params);
    SIZE(tw_doctor_cluster_t);
    FIELD(tw_doctor_cluster_t, n_nodes);
    FIELD(tw_doctor_cluster_t, ranks_per_node);
    FIELD(tw_doctor_cluster_t, link_bps);
    FIELD(tw_doctor_cluster_t, n_params);
    SIZE(tw_coll_params_t);
    FIELD(tw_coll_params_t, transport);
    FIELD(tw_coll_params_t, ranks);
    FIELD(tw_coll_params_t, n_ranks);
    FIELD(tw_coll_params_t, id);
    FIELD(tw_coll_params_t, mem);
    FIELD(tw_coll_params_t, wire);
    FIELD(tw_coll_params_t, deterministic);
    FIELD(tw_coll_params_t, progress_thread);
    FIELD(tw_coll_params_t, patient);
    FIELD(tw_coll_params_t, timeout_sec);
    SIZE(tw_coll_nccl_params_t);
    FIELD(tw_coll_nccl_params_t, comm);
    FIELD(tw_coll_nccl_params_t, shared);
    FIELD(tw_coll_nccl_params_t, gate);
    FIELD(tw_coll_nccl_params_t, terms);
    FIELD(tw_coll_nccl_params_t, deterministic);
    FIELD(tw_coll_nccl_params_t, timeout_sec);
}

static void print_operations(void)
{
    SIZE(tw_quant_delta_segment_t);
    FIELD(tw_quant_delta_segment_t, base);
    FIELD(tw_quant_delta_segment_t, src);
    FIELD(tw_quant_delta_segment_t, dst);
    FIELD(tw_quant_delta_segment_t, state);
    FIELD(tw_quant_delta_segment_t, n_elems);

    SIZE(tw_quant_lossless_segment_t);
    FIELD(tw_quant_lossless_segment_t, src);
    FIELD(tw_quant_lossless_segment_t, dst);
    FIELD(tw_quant_lossless_segment_t, n_elems);
    FIELD(tw_quant_lossless_segment_t, row_elems);
    FIELD(tw_quant_lossless_segment_t, first_elem);

    SIZE(tw_quant_codec_t);
    FIELD(tw_quant_codec_t, kind);
    FIELD(tw_quant_codec_t, block);
    FIELD(tw_quant_codec_t, scale);
    FIELD(tw_quant_codec_t, round);
    FIELD(tw_quant_codec_t, hadamard);
    FIELD(tw_quant_codec_t, step);
    SIZE(tw_coll_segment_t);
    FIELD(tw_coll_segment_t, src);
    FIELD(tw_coll_segment_t, dst);
    FIELD(tw_coll_segment_t, n_elems);
    FIELD(tw_coll_segment_t, counts);
    FIELD(tw_coll_segment_t, recv_counts);
    FIELD(tw_coll_segment_t, tensor);
    FIELD(tw_coll_segment_t, first_elem);
    FIELD(tw_coll_segment_t, codec);
    FIELD(tw_coll_segment_t, unquantized);
    FIELD(tw_coll_segment_t, row_elems);
    SIZE(tw_coll_args_t);
    FIELD(tw_coll_args_t, op);
    FIELD(tw_coll_args_t, type);
    FIELD(tw_coll_args_t, segments);
    FIELD(tw_coll_args_t, n_segments);
    FIELD(tw_coll_args_t, reduction);
    FIELD(tw_coll_args_t, factor);
    FIELD(tw_coll_args_t, root);
    FIELD(tw_coll_args_t, codec);
    FIELD(tw_coll_args_t, inner_codec);
    FIELD(tw_coll_args_t, seed);
    FIELD(tw_coll_args_t, step);
    FIELD(tw_coll_args_t, algo);
    FIELD(tw_coll_args_t, force_codec);
    FIELD(tw_coll_args_t, stream);
    FIELD(tw_coll_args_t, elapsed_sec);
    FIELD(tw_coll_args_t, patient);
}

static void print_answers(void)
{
    SIZE(tw_coll_plan_t);
    FIELD(tw_coll_plan_t, algo);
    FIELD(tw_coll_plan_t, quantized);
    FIELD(tw_coll_plan_t, model_sec);
    FIELD(tw_coll_plan_t, chunk_bytes);
    FIELD(tw_coll_plan_t, reason);
    SIZE(tw_quant_loss_t);
    FIELD(tw_quant_loss_t, squares);
    FIELD(tw_quant_loss_t, errors);
    FIELD(tw_quant_loss_t, n_values);
    FIELD(tw_quant_loss_t, n_vanished);
    SIZE(tw_coll_counters_t);
    FIELD(tw_coll_counters_t, inter_node_bytes);
    FIELD(tw_coll_counters_t, inter_node_messages);
    FIELD(tw_coll_counters_t, in_node_bytes);
    FIELD(tw_coll_counters_t, in_node_messages);
    FIELD(tw_coll_counters_t, inter_node_spared_bytes);
    SIZE(tw_hpz_part_t);
    FIELD(tw_hpz_part_t, offset_bytes);
    FIELD(tw_hpz_part_t, n_elems);
    FIELD(tw_hpz_part_t, type);
    FIELD(tw_hpz_part_t, rounded);
    SIZE(tw_hpz_kept_params_t);
    FIELD(tw_hpz_kept_params_t, name);
    FIELD(tw_hpz_kept_params_t, run_bytes);
    FIELD(tw_hpz_kept_params_t, parts);
    FIELD(tw_hpz_kept_params_t, n_parts);
    FIELD(tw_hpz_kept_params_t, has_room);
    FIELD(tw_hpz_kept_params_t, codec);
    SIZE(tw_hpz_gathered_t);
    FIELD(tw_hpz_gathered_t, inter_node_bytes);
    FIELD(tw_hpz_gathered_t, changed_bytes);
    FIELD(tw_hpz_gathered_t, rounded_bytes);
    FIELD(tw_hpz_gathered_t, elapsed_sec);
    SIZE(tw_config_field_t);
    FIELD(tw_config_field_t, name);
    FIELD(tw_config_field_t, dflt);
    FIELD(tw_config_field_t, unit);
    FIELD(tw_config_field_t, doc);
    FIELD(tw_config_field_t, type);
    FIELD(tw_config_field_t, offset);
    FIELD(tw_config_field_t, min);
    FIELD(tw_config_field_t, max);
    FIELD(tw_config_field_t, choices);
    SIZE(tw_config_table_t);
    FIELD(tw_config_table_t, module);
    FIELD(tw_config_table_t, fields);
    FIELD(tw_config_table_t, n_fields);
    FIELD(tw_config_table_t, options_bytes);
}

static void print_constants(void)
{
    CONSTANT(OK, TW_OK);
    CONSTANT(IN_PROGRESS, TW_IN_PROGRESS);
    CONSTANT(UNSUPPORTED, TW_ERR_UNSUPPORTED);
    CONSTANT(TIMEOUT, TW_ERR_TIMEOUT);
    CONSTANT(FP32, TW_TYPE_FP32);
    CONSTANT(BF16, TW_TYPE_BF16);
    CONSTANT(FP16, TW_TYPE_FP16);
    CONSTANT(BYTE, TW_TYPE_BYTE);
    CONSTANT(ALLGATHER, TW_COLL_ALLGATHER);
    CONSTANT(REDUCE_SCATTER, TW_COLL_REDUCE_SCATTER);
    CONSTANT(ALLREDUCE, TW_COLL_ALLREDUCE);
    CONSTANT(SUM, TW_COLL_SUM);
    CONSTANT(MEAN, TW_COLL_MEAN);
    CONSTANT(HOST, TW_MEM_HOST);
    CONSTANT(CUDA, TW_MEM_CUDA);
    CONSTANT(WIRE_TRANSPORT, TW_COLL_WIRE_TRANSPORT);
    CONSTANT(WIRE_NCCL, TW_COLL_WIRE_NCCL);
    CONSTANT(CONFIG_ENUM, TW_CONFIG_ENUM);
    CONSTANT(CONFIG_BYTES, TW_CONFIG_BYTES);
    CONSTANT(CONFIG_TIME, TW_CONFIG_TIME);
    CONSTANT(CONFIG_STRING, TW_CONFIG_STRING);
}

int main(void)
{
    print_constants();
    print_jobs();
    print_operations();
    print_answers();
    return 0;
}
