/** What is behind a configuration. Private to config. */
#ifndef TW_TRAINER_CONFIG_STATE_H
#define TW_TRAINER_CONFIG_STATE_H

#include "trainer/config/config.h"

typedef enum tw_train_origin {
    TW_TRAIN_FROM_DEFAULT,
    TW_TRAIN_FROM_AUTO,
    TW_TRAIN_FROM_FILE,
    TW_TRAIN_FROM_COMMAND,
    TW_TRAIN_FOLLOWS
} tw_train_origin_t;

struct tw_train_config {
    tw_train_options_t options;
    unsigned char *origins; /* [n_fields] of the table: tw_train_origin_t */
    char **notes;           /* [n_notes] */
    size_t n_notes;
};

#endif
