/* Samples lines of text from a prompt. */
#include "trainer/sampling.h"

#include <stdlib.h>
#include <string.h>

static tw_status_t sampling_no_memory(void)
{
    return tw_fail(TW_ERR_NO_MEMORY, "out of memory for sampled text");
}

/** Return the prompt. An empty prompt becomes a newline, unless the document_token will be its only token. */
static const char *prompt_of(const tw_train_options_t *o)
{
    return *o->sample_prompt || o->document_token >= 0 ? o->sample_prompt : "\n";
}

static tw_status_t read_prompt(const tw_sampling_t *sampling, int32_t **tokens, size_t *n)
{
    const tw_train_options_t *o = sampling->options;
    *tokens = NULL;
    *n = 0;
    if (tw_data_has_text(sampling->data)) {
        return tw_data_text_tokens(sampling->data, "thinwire.sample_prompt", prompt_of(o), tokens, n);
    }
    TW_FAIL_IF(*o->sample_prompt, TW_ERR_CONFIG,
               "thinwire.sample_prompt: the data are tokens, and no vocabulary says which a text has: see "
               "thinwire.tokenizer");
    return TW_OK;
}

static tw_status_t check_tokens(const int32_t *tokens, size_t n, size_t vocab_size)
{
    for (size_t i = 0; i < n; i++) {
        TW_FAIL_IF((size_t)tokens[i] >= vocab_size, TW_ERR_CONFIG,
                   "thinwire.sample_prompt, document_token: token %d is none of the model's %zu",
                   (int)tokens[i], vocab_size);
    }
    return TW_OK;
}

tw_status_t tw_sampling_init(tw_sampling_t *sampling, size_t vocab_size)
{
    const tw_train_options_t *o = sampling->options;
    int32_t *text;
    size_t n_text;
    if (o->sample_steps == 0) {
        return TW_OK;
    }
    TW_TRY(read_prompt(sampling, &text, &n_text));
    size_t n_sampled = (size_t)(o->sample_lines * o->sample_tokens);
    sampling->tokens = calloc(1 + n_text + n_sampled, sizeof(*sampling->tokens));
    if (!sampling->tokens) {
        free(text);
        return sampling_no_memory();
    }
    /* an empty prompt without document_token is the token 0 */
    if (o->document_token >= 0 || n_text == 0) {
        sampling->tokens[sampling->n_prompt++] = o->document_token >= 0 ? (int32_t)o->document_token : 0;
    }
    sampling->n_hidden = sampling->n_prompt;
    if (n_text > 0) {
        memcpy(sampling->tokens + sampling->n_prompt, text, n_text * sizeof(*text));
    }
    sampling->n_prompt += n_text;
    free(text);
    return check_tokens(sampling->tokens, sampling->n_prompt, vocab_size);
}

void tw_sampling_cleanup(tw_sampling_t *sampling)
{
    free(sampling->tokens);
    sampling->tokens = NULL;
}

/** Pass a line to the caller, as text with its prompt: one character may have bytes of both. */
static tw_status_t sampling_tell(const tw_sampling_t *sampling, const tw_engine_t *engine,
                                 const int32_t *sampled)
{
    size_t n_before = *sampling->options->sample_prompt ? sampling->n_prompt - sampling->n_hidden : 0;
    size_t n_sampled = (size_t)sampling->options->sample_tokens;
    int32_t *line = calloc(n_before + n_sampled, sizeof(*line));
    if (!line) {
        return sampling_no_memory();
    }
    memcpy(line, sampling->tokens + sampling->n_hidden, n_before * sizeof(*line));
    memcpy(line + n_before, sampled, n_sampled * sizeof(*line));
    char *text = tw_data_tokens_text(sampling->data, line, n_before + n_sampled);
    if (text) {
        sampling->params->on_sample(sampling->params->ctx, tw_engine_steps_done(engine), text);
    }
    tw_status_t status = text ? TW_OK : TW_ERR_NO_MEMORY;
    free(line);
    free(text);
    return status;
}

tw_status_t tw_sampling_run(tw_sampling_t *sampling, tw_engine_t *engine)
{
    const tw_train_options_t *o = sampling->options;
    int32_t *sampled = sampling->tokens + sampling->n_prompt;
    const tw_engine_lines_t sample = {
        .prompt = sampling->tokens, .n_prompt = sampling->n_prompt, .tokens = sampled};
    TW_TRY(tw_engine_sample(engine, &sample));
    int is_wanted = sampling->is_first && sampling->params->on_sample;
    for (int64_t line = 0; line < o->sample_lines && is_wanted; line++) {
        TW_TRY(sampling_tell(sampling, engine, sampled + line * o->sample_tokens));
    }
    return TW_OK;
}
