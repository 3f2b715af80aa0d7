/** The state of a configuration. Private to config. */
#pragma once

#include "trainer/config/config.h"

TW_C_BEGIN

typedef enum tw_train_origin {
    TW_TRAIN_FROM_DEFAULT,
    TW_TRAIN_FROM_AUTO,
    TW_TRAIN_FROM_FILE,
    TW_TRAIN_FROM_COMMAND,
    TW_TRAIN_FOLLOWS
} tw_train_origin_t;

/** A message about a key for the user. */
typedef struct tw_train_note {
    char *key;
    const char *reason; /**< why the key has no effect here; NULL: its value is "auto" */
    int is_file;        /**< 1: the key is in the file; 0: it is on the command line */
} tw_train_note_t;

struct tw_train_config {
    tw_train_options_t options;
    char *name;             /* name of the file, for messages */
    unsigned char *origins; /* [n_fields of the table] tw_train_origin_t */
    tw_train_note_t *notes; /* [n_notes] */
    size_t n_notes;
};

/** A combination of keys that is refused if is_wrong is 1, and the reason. */
typedef struct tw_train_refusal {
    int is_wrong;
    const char *why;
} tw_train_refusal_t;
/** Log the reason and return TW_ERR_CONFIG. */
tw_status_t tw_train_refuse(const char *why);
/** Log the reason of the first refusal with is_wrong 1, and return TW_ERR_CONFIG; TW_OK if there is none. */
tw_status_t tw_train_refuse_any(const tw_train_refusal_t *refusals, size_t n);
/** A list and its length, as arguments. */
#define TW_TRAIN_LIST(list) list, sizeof(list) / sizeof((list)[0])

/** Keep a note for tw_train_config_say. If memory runs out, the note is lost. */
void tw_train_note(tw_train_config_t *config, int is_file, const char *key, const char *reason);
void tw_train_notes_cleanup(tw_train_config_t *config);
/** Read the shape of the model that model.init_from names, if a config.json lies beside the weights. Sets the
 *  keys that the user has not set. TW_ERR_CONFIG, logged: the user has set other values, or the model is not
 *  supported. */
tw_status_t tw_train_pretrained(tw_train_config_t *config);
/** Keep a note of a key of the table if the user has set this key. */
void tw_train_note_key(tw_train_config_t *config, const char *key, const char *reason);
/** Note each key that the user has set and that has no effect. Call it after all keys are resolved. */
void tw_train_note_without_effect(tw_train_config_t *config);
/** Return 1 if the user has set this key. */
int tw_train_is_said(const tw_train_config_t *config, const char *key);
/** Fill in options.codecs, and replace the texts of thinwire.weights and thinwire.gradients by ones with all
 *  options. TW_ERR_CONFIG, logged: a codec is unknown or excludes other keys, or two keys ask for one. */
tw_status_t tw_train_codecs_resolve(tw_train_config_t *config, int n_nodes);
/** Record that the value of this member of `options` follows from other keys. */
void tw_train_note_follows(tw_train_config_t *config, const void *member);

TW_C_END
