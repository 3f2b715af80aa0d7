/* Lists the keys that ranks compare, and those that a resumed run compares with its checkpoint. */
#include <stddef.h>
#include <string.h>

#include "trainer/config/state.h"
#include "trainer/config/table.h"

/* Keys that may differ between nodes. What is read from the data's files is compared instead. */
static const char *const places[] = {"thinwire.data",
                                     "thinwire.val_data",
                                     "thinwire.vocab",
                                     "thinwire.merges",
                                     "thinwire.tokenizer",
                                     "thinwire.cache",
                                     "thinwire.activation_path",
                                     "thinwire.threads",
                                     "zero_optimization.offload_optimizer.nvme_path",
                                     "zero_optimization.offload_param.nvme_path",
                                     NULL};

/* Keys whose values a checkpoint has elsewhere: the data's order and the model. tw_train_config_facts makes
 * an exception of model.gather. */
static const char *const said_otherwise[] = {"train_batch_size", "thinwire.seed", "thinwire.sequence_length",
                                             "model.", NULL};

/* Keys that do not change the training's result, except for its last bits if batches are cut differently. */
static const char *const teaches_nothing[] = {"train_micro_batch_size_per_gpu",
                                              "gradient_accumulation_steps",
                                              "steps_per_print",
                                              "wall_clock_breakdown",
                                              "zero_optimization.stage",
                                              "zero_optimization.zero_hpz_partition_size",
                                              "zero_optimization.reduce_bucket_size",
                                              "zero_optimization.allgather_bucket_size",
                                              "zero_optimization.stage3_",
                                              "zero_optimization.overlap_comm",
                                              "zero_optimization.offload_",
                                              "activation_checkpointing.",
                                              "thinwire.steps", /* total_num_steps matters instead */
                                              "thinwire.val_data",
                                              "thinwire.val_every",
                                              "thinwire.val_sequences",
                                              "thinwire.sample_",
                                              "thinwire.keep_frozen",
                                              "thinwire.hpz",
                                              "thinwire.replicas",
                                              "thinwire.check_every",
                                              "thinwire.check_memory",
                                              "thinwire.recompute",
                                              "thinwire.activation_path",
                                              "thinwire.device_mem",
                                              "thinwire.peak_flops",
                                              "thinwire.link",
                                              "thinwire.loss_jump",
                                              "thinwire.loss_z",
                                              "thinwire.norm_z",
                                              "thinwire.z_window",
                                              "thinwire.bad_step",
                                              "thinwire.bad_steps_most",
                                              "thinwire.checkpoint",
                                              "thinwire.checkpoint_",
                                              "thinwire.resume",
                                              "thinwire.save_model",
                                              "thinwire.save_best",
                                              NULL};

/** Return 1 if a key is one of `names`. A name that ends with a dot or underscore is a prefix. */
static int is_among(const char *const *names, const char *key)
{
    for (; *names; names++) {
        size_t length = strlen(*names);
        int is_prefix = strchr("._", (*names)[length - 1]) != NULL;
        if (is_prefix ? strncmp(key, *names, length) == 0 : strcmp(key, *names) == 0) {
            return 1;
        }
    }
    return 0;
}

static void config_add_line(const tw_train_config_t *config, const tw_config_field_t *field,
                            tw_lines_t *lines)
{
    char value[TW_LINES_VALUE_BYTES];
    tw_config_format(field, &config->options, value, sizeof(value));
    tw_lines_add(lines, field->name, "%s", value);
}

/** Return 1 if a key does not change what the training results in. */
static int is_without_result(const tw_train_config_t *config, const char *key)
{
    /* blocks beyond the bound are counted, or also sent plain */
    int counts = strcmp(key, "thinwire.lag_bound") == 0 && !config->options.lag_plain;
    return counts || is_among(teaches_nothing, key);
}

/** Return 1 if `key` is a codec's and the codec is lossless: all lossless codecs give the same result. */
static int is_codec_without_loss(const tw_train_config_t *config, const char *key)
{
    const tw_train_codecs_t *codecs = &config->options.codecs;
    int weights = strcmp(key, "thinwire.weights") == 0 && !tw_train_is_rounded(&codecs->weights) &&
                  !tw_train_is_rounded(&codecs->delta);
    return weights || (strcmp(key, "thinwire.gradients") == 0 && !tw_train_is_rounded(&codecs->gradients));
}

/** Return 1 if thinwire.weights or thinwire.gradients replaces this older key. */
static int is_older(const tw_config_field_t *field)
{
    const size_t first = offsetof(tw_train_options_t, older);
    return field->offset >= first && field->offset < first + sizeof(tw_train_older_t);
}

void tw_train_config_facts(const tw_train_config_t *config, tw_lines_t *lines)
{
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        const tw_config_field_t *field = &tw_train_options_table.fields[i];
        int is_said = is_among(said_otherwise, field->name) && strcmp(field->name, "model.gather") != 0;
        if (is_codec_without_loss(config, field->name)) {
            tw_lines_add(lines, field->name, "without loss");
        } else if (!is_among(places, field->name) && !is_said && !is_without_result(config, field->name) &&
                   !is_older(field)) {
            config_add_line(config, field, lines);
        }
    }
}

void tw_train_config_lines(const tw_train_config_t *config, tw_lines_t *lines)
{
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        const tw_config_field_t *field = &tw_train_options_table.fields[i];
        /* The path may differ between ranks, but either all ranks or none must have one. */
        if (strcmp(field->name, "model.init_from") == 0) {
            tw_lines_add(lines, field->name, "%s", *config->options.init_from ? "(given)" : "");
        } else if (!is_among(places, field->name) && !is_older(field)) {
            config_add_line(config, field, lines);
        }
    }
}

int tw_train_resumes_by_itself(const tw_train_options_t *o)
{
    return strcmp(o->resume, "auto") == 0;
}
