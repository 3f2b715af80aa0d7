/* Lists DeepSpeed's keys that are accepted and have no effect here, with the reason. A key stands for all
 * keys inside it, too. For values that are refused, also says which value to use instead. */
#include <string.h>
#include <strings.h>

#include "trainer/config/table.h"

#define ALWAYS "this is always so here"
#define PINNED "what a GPU copies from and to is pinned by itself"
#define OTHERWISE "the trainer decides by itself"

static const struct {
    const char *key, *reason;
} ignored[] = {
    {"prescale_gradients", "sums are made in fp32 and cannot overflow"},
    {"gradient_predivide_factor", "sums are made in fp32 and cannot overflow"},
    {"sparse_gradients", "gradients are dense"},
    {"zero_allow_untested_optimizer", "there are AdamW and Muon"},
    {"zero_force_ds_cpu_optimizer", "there is one AdamW"},
    {"dump_state", "--print-config prints what is in force"},
    {"memory_breakdown", "the planner and the summary line show it"},
    {"seq_parallel_communication_data_type", "there is no sequence parallelism"},
    {"data_types", "gradients are accumulated in fp32"},
    {"disable_allgather", OTHERWISE},
    {"dataloader_drop_last", "an epoch has whole sequences only"},
    {"log_level", "TW_LOG_LEVEL says how much is logged"},
    {"compile", OTHERWISE},
    {"graph_harvesting", OTHERWISE},
    {"torch_autocast", "bf16 needs no loss scaling"},
    {"amp", "bf16 needs no loss scaling"},
    {"flops_profiler", "the live line shows tokens per second"},
    {"compute_grad_norm", "the gradient's norm is always computed"},
    {"comms_logger", "--metrics counts every byte"},
    {"comms_config", "--metrics counts every byte"},
    {"monitor_config", "--metrics writes JSON lines"},
    {"tensorboard", "--metrics writes JSON lines"},
    {"wandb", "--metrics writes JSON lines"},
    {"csv_monitor", "--metrics writes JSON lines"},
    {"comet", "--metrics writes JSON lines"},
    {"timers", "the live line shows times"},
    {"aio", "files are read and written by the system's own means"},
    {"gds", "files are read and written by the system's own means"},
    {"nebula", "see thinwire.checkpoint"},
    {"elasticity", "the number of ranks is the job's"},
    {"autotuning", "//trainer:plan says what to switch on"},
    {"curriculum_learning", "data comes in one order"},
    {"data_efficiency", "data comes in one order"},
    {"progressive_layer_drop", "all layers are trained"},
    {"eigenvalue", "nothing here uses it"},
    {"compression_training", "the network is trained as it is"},
    {"sparse_attention", "attention is dense"},
    {"checkpoint", "see thinwire.checkpoint"},
    {"pipeline", "there is no pipeline parallelism"},
    {"tensor_parallel", "there is no tensor parallelism"},
    {"sequence_parallel_size", "there is no sequence parallelism"},
    {"use_data_before_expert_parallelism", "there are no experts"},
    {"hybrid_engine", "this is for training alone"},
    {"weight_quantization", "this is for training alone"},
    {"quantize_training", "the network is trained as it is"},
    {"vocabulary_size", "see model.vocab_size"},
    {"thinwire.val_batches", "a validation is of thinwire.val_sequences sequences, on any number of ranks"},
    {"fp16", "bf16 needs no loss scaling"},
    {"bf16.immediate_grad_update", "gradients are accumulated in fp32"},
    {"bf16.check_grad_overflow", "a gradient that is not finite always stops a run"},
    {"bf16.bf16_master_weights_and_grads", "masters and moments are fp32"},
    {"bf16.bf16_optimizer_states", "masters and moments are fp32"},
    {"optimizer.params.torch_adam", "there is one AdamW"},
    {"optimizer.params.max_grad_norm", "see gradient_clipping"},
    {"optimizer.legacy_fusion", "there is one AdamW"},
    {"scheduler.params.last_batch_iteration", "a run goes on from its checkpoint's step"},
    {"zero_optimization.allgather_partitions", ALWAYS},
    {"zero_optimization.reduce_scatter", ALWAYS},
    {"zero_optimization.contiguous_gradients", ALWAYS},
    {"zero_optimization.round_robin_gradients", "shards are even"},
    {"zero_optimization.load_from_fp32_weights", ALWAYS},
    {"zero_optimization.elastic_checkpoint", ALWAYS},
    {"zero_optimization.sub_group_size", "the optimizer works layer by layer"},
    {"zero_optimization.stage3_max_reuse_distance", "a layer is gathered when it is needed"},
    {"zero_optimization.stage3_param_persistence_threshold", "small tensors travel with their layer"},
    {"zero_optimization.stage3_model_persistence_threshold", "small tensors travel with their layer"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", "the saved model is always whole"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", "the saved model is always whole"},
    {"zero_optimization.stage3_module_granularity_threshold", "the unit is a layer"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", OTHERWISE},
    {"zero_optimization.ignore_unused_parameters", "all parameters are used"},
    {"zero_optimization.legacy_stage1", "there is one stage 1"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", OTHERWISE},
    {"zero_optimization.cpu_offload", "see offload_optimizer"},
    {"zero_optimization.cpu_offload_param", "see offload_param"},
    {"zero_optimization.cpu_offload_params", "see offload_param"},
    {"zero_optimization.cpu_offload_use_pin_memory", PINNED},
    {"zero_optimization.zenflow", "all of it is offloaded"},
    {"zero_optimization.zeropp_loco_param",
     "what one step rounds away is not kept for the next; thinwire.gradients=ecdq has errors of mean 0"},
    {"zero_optimization.pipeline_loading_checkpoint", OTHERWISE},
    {"zero_optimization.override_module_apply", OTHERWISE},
    {"zero_optimization.log_trace_cache_warnings", OTHERWISE},
    {"zero_optimization.enable_sanity_checks", "see thinwire.check_every"},
    {"zero_optimization.leaf_module", "the unit is a layer"},
    {"zero_optimization.stage3_allgather_sequential", OTHERWISE},
    {"zero_optimization.stage3_partition_stream_chunk_size", OTHERWISE},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", "momenta are where moments are"},
    {"zero_optimization.zero_quantized_nontrainable_weights", "see thinwire.keep_frozen"},
    {"zero_optimization.memory_efficient_linear", OTHERWISE},
    {"zero_optimization.mics_shard_size", "see thinwire.hpz"},
    {"zero_optimization.mics_hierarchical_params_gather", "gathers are hierarchical where that saves bytes"},
    {"zero_optimization.offload_optimizer.pin_memory", PINNED},
    {"zero_optimization.offload_optimizer.buffer_count", OTHERWISE},
    {"zero_optimization.offload_optimizer.fast_init", OTHERWISE},
    {"zero_optimization.offload_optimizer.ratio", "all of it is offloaded"},
    {"zero_optimization.offload_optimizer.pipeline_read", ALWAYS},
    {"zero_optimization.offload_optimizer.pipeline_write", ALWAYS},
    {"zero_optimization.offload_optimizer.super_offload", OTHERWISE},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", OTHERWISE},
    {"zero_optimization.offload_param.pin_memory", PINNED},
    {"zero_optimization.offload_param.buffer_count", OTHERWISE},
    {"zero_optimization.offload_param.buffer_size", OTHERWISE},
    {"zero_optimization.offload_param.max_in_cpu", OTHERWISE},
    {"activation_checkpointing.partition_activations",
     "data parallelism replicates no activations, so there is nothing to partition"},
    {"activation_checkpointing.contiguous_memory_optimization", ALWAYS},
    {"activation_checkpointing.number_checkpoints", "see thinwire.recompute"},
    {"activation_checkpointing.synchronize_checkpoint_boundary", PINNED},
    {"activation_checkpointing.profile", "the live line shows times"},
    {"activation_checkpointing.use_reentrant", "the trainer computes again by itself"},
};

#define N_IGNORED (sizeof(ignored) / sizeof(ignored[0]))

const char *tw_train_ignored_reason(const char *key)
{
    for (size_t i = 0; i < N_IGNORED; i++) {
        size_t length = strlen(ignored[i].key);
        if (strncmp(key, ignored[i].key, length) == 0 && (key[length] == '\0' || key[length] == '.')) {
            return ignored[i].reason;
        }
    }
    return NULL;
}

#define ONE_BIT \
    "one-bit momenta are another algorithm; AdamW with thinwire.gradients=ecdq sends 2.2 bits an element"

const char *tw_train_instead_of(const char *key, const char *value)
{
    static const struct {
        const char *key, *value, *instead;
    } refused[] = {
        {"optimizer.type", "OneBitAdam", ONE_BIT},
        {"optimizer.type", "OneBitLamb", ONE_BIT},
        {"optimizer.type", "ZeroOneAdam", ONE_BIT},
        {"communication_data_type", "fp16", "fp16 would need loss scaling; bf16 has as many bits"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (strcmp(key, refused[i].key) == 0 && strcasecmp(value, refused[i].value) == 0) {
            return refused[i].instead;
        }
    }
    return NULL;
}

size_t tw_train_ignored_names(const char **names, size_t max)
{
    size_t n = 0;
    for (; n < N_IGNORED && n < max; n++) {
        names[n] = ignored[n].key;
    }
    return n;
}
