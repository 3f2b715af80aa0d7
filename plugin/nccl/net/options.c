/* The net's variables. Those that mean the same as a variable of the transport have its name. */
#include "plugin/nccl/net/state.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/plugin.h"

#define FIELD(member) offsetof(tw_net_options_t, member)

static const tw_config_field_t fields[] = {
    {.name = "TW_NET_DEVICES",
     .dflt = "",
     .doc = "Network devices that NCCL is offered, separated by commas. Empty: as NCCL_SOCKET_IFNAME and "
            "NCCL_SOCKET_FAMILY say; without these all that are up and have an address, but for those of "
            "containers.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(devices)},
    {.name = "TW_NET_MERGE",
     .dflt = "no",
     .doc = "Offer NCCL one device that spreads each message over all of them, instead of each by itself "
            "(with both it would count every link twice). The same on all nodes.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(merge)},
    {.name = "TW_NET_STREAMS",
     .dflt = "1",
     .doc = "Connections for the data of each of NCCL's, on each device; chunks go to whichever is free. The "
            "same on all nodes.",
     .type = TW_CONFIG_INT,
     .offset = FIELD(streams),
     .min = 1,
     .max = 16},
    {.name = "TW_NET_CHUNK",
     .dflt = "512K",
     .unit = "bytes",
     .doc = "Longer messages are cut into chunks of this size, with one connection and one device of 8 MB at "
            "least. NCCL's own steps are of 512K.",
     .type = TW_CONFIG_BYTES,
     .offset = FIELD(chunk_bytes),
     .min = 4096,
     .max = 64 << 20},
    {.name = "TW_EAGER",
     .dflt = "16K",
     .unit = "bytes",
     .doc = "Up to so long a message is sent before the receiver has asked for it. With one connection and "
            "one device so is one of up to 4 MB. Of a connection no more than 9 MB of messages below 16K "
            "wait in memory for their receives, and no more than 96 MB of longer ones (9 MB with several "
            "connections or devices).",
     .type = TW_CONFIG_BYTES,
     .offset = FIELD(eager_bytes),
     .max = 1 << 20},
    {.name = "TW_SPIN",
     .dflt = "20us",
     .unit = "s",
     .doc = "How long whoever waits looks for messages before it sleeps.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(spin_sec),
     .max = 1},
    {.name = "TW_PEER_TIMEOUT",
     .dflt = "120s",
     .unit = "s",
     .doc = "How long a connection may be dead before its peer is given up: a network that is away for half "
            "as long is waited for. Also how long what was sent may take to go out when the last one is "
            "closed, and how long a stranger may take to prove that it belongs to the job.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(timeout_sec),
     .min = 0.2,
     .max = 3600},
    {.name = "TW_JOB_TOKEN",
     .dflt = "",
     .doc = "Secret that all processes of the job share; it proves that one belongs to it and is never sent. "
            "Empty: who has a handle from NCCL may come in.",
     .type = TW_CONFIG_SECRET,
     .offset = FIELD(token)},
    {.name = "TW_NET_ENCRYPT",
     .dflt = "no",
     .doc = "Seal what NCCL sends: AES-256-GCM, or ChaCha20-Poly1305 where a processor has no instructions "
            "for it; keys of each connection, from TW_JOB_TOKEN, which it needs. The same on all nodes.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(encrypt)},
    {.name = "TW_NET_GBPS",
     .dflt = "0",
     .unit = "Gb/s",
     .doc = "Speed between nodes, each way, of all links of a node together. For NCCL's search, devices "
            "whose speed the system does not know share it equally. 0: those have 10 Gb/s each.",
     .type = TW_CONFIG_DOUBLE,
     .offset = FIELD(gbps),
     .max = 1e5},
    {.name = "TW_NET_ALPHA_US",
     .dflt = "0",
     .unit = "us",
     .doc = "What a small message takes between nodes, told to NCCL. 0: NCCL's own guess.",
     .type = TW_CONFIG_DOUBLE,
     .offset = FIELD(alpha_us),
     .max = 1e6},
};

const tw_config_table_t tw_net_config_table = TW_CONFIG_TABLE("nccl net", fields, tw_net_options_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *nccls_secret;
static _Atomic(tw_nccl_profiler_t) nccls_profiler;

tw_status_t tw_net_begin(tw_nccl_profiler_t profiler, const char *secret)
{
    char *copy = secret ? strdup(secret) : NULL;
    TW_FAIL_IF(secret && !copy, TW_ERR_NO_MEMORY, "net: out of memory");
    nccls_profiler = profiler;
    (void)pthread_mutex_lock(&lock);
    free(nccls_secret);
    nccls_secret = copy;
    (void)pthread_mutex_unlock(&lock);
    return TW_OK;
}

tw_nccl_profiler_t tw_net_profiler(void)
{
    return nccls_profiler;
}

/** Encrypt with the secret that the job gave ncclSetEncryption, unless the variables ask for encryption. */
static tw_status_t take_nccls_secret(tw_net_options_t *options)
{
    tw_status_t status = TW_OK;
    (void)pthread_mutex_lock(&lock);
    options->is_nccls = nccls_secret && !options->encrypt;
    if (options->is_nccls) {
        options->encrypt = 1;
        status = tw_config_set(&tw_net_config_table, options, "TW_JOB_TOKEN", nccls_secret);
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}

tw_status_t tw_net_options_init(tw_net_options_t *options)
{
    tw_status_t status = tw_config_init(&tw_net_config_table, options);
    TW_TRY(status);
    status = take_nccls_secret(options);
    if (status == TW_OK && options->encrypt && options->token[0] == '\0') {
        tw_error("TW_NET_ENCRYPT=y needs TW_JOB_TOKEN, the same on all nodes: keys are made of it");
        status = TW_ERR_CONFIG;
    }
    if (status != TW_OK) {
        tw_config_cleanup(&tw_net_config_table, options);
    }
    return status;
}
