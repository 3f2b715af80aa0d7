/** The transport's variables: one table that parses, checks and documents them. */
#include "transport/options.h"

#include "transport/transport.h"

#define FIELD(member) offsetof(tw_transport_options_t, member)

static const tw_config_field_t fields[] = {
    {.name = "TW_JOB_TOKEN",
     .dflt = "",
     .doc = "Secret that the ranks of a job share, the same on all of them; it proves that a rank belongs to "
            "the job and is never sent. Take 32 random bytes: openssl rand -hex 32. Empty: made of the "
            "launcher's job id, which guards against accidents, not attackers.",
     .type = TW_CONFIG_SECRET,
     .offset = FIELD(job_token)},
    {.name = "TW_RENDEZVOUS_PORT",
     .dflt = "0",
     .doc = "TCP port on which rank 0 meets the other ranks. 0: MASTER_PORT + 1 (a launcher's own store is "
            "on MASTER_PORT), without MASTER_PORT one derived from the job id.",
     .type = TW_CONFIG_INT,
     .offset = FIELD(rendezvous_port),
     .max = 65535},
    {.name = "TW_JOIN_TIMEOUT",
     .dflt = "60s",
     .unit = "s",
     .doc = "How long to wait for all ranks at the start.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(join_timeout),
     .min = 0.1,
     .max = 86400},
    {.name = "TW_HANDSHAKE_TIMEOUT",
     .dflt = "5s",
     .unit = "s",
     .doc = "How long a connection to the rendezvous port may take to prove that it belongs to the job.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(handshake_timeout),
     .min = 0.05,
     .max = 600},
    {.name = "TW_PEER_TIMEOUT",
     .dflt = "10s",
     .unit = "s",
     .doc = "A rank of which nothing was heard for this long has failed, and with it the job; so has one a "
            "data connection to which carries nothing for so long, though there is something. Rank 0's value "
            "counts. Longer than the longest queue on the way takes to empty.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(peer_timeout),
     .min = 0.2,
     .max = 3600},
    {.name = "TW_SPIN",
     .dflt = "20us",
     .unit = "s",
     .doc = "How long a waiting rank looks for messages before it sleeps. More lowers latency where cores "
            "are idle.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(spin),
     .max = 1},
    {.name = "TW_NET_DEVICES",
     .dflt = "",
     .doc = "Network devices for traffic between nodes, separated by commas; messages are spread over all of "
            "them. Empty: the one on the way to rank 0.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(net_devices)},
    {.name = "TW_NET_STREAMS",
     .dflt = "1",
     .doc = "Connections per peer and device; chunks go to whichever is free. More than 1 helps where one "
            "TCP stream cannot fill the link. Rank 0's value counts.",
     .type = TW_CONFIG_INT,
     .offset = FIELD(net_streams),
     .min = 1,
     .max = TW_NET_STREAMS_MAX},
    {.name = "TW_NET_CHUNK",
     .dflt = "256K",
     .unit = "bytes",
     .doc = "Longer messages between nodes are cut into chunks of this size. Rank 0's value counts.",
     .type = TW_CONFIG_BYTES,
     .offset = FIELD(net_chunk),
     .min = TW_NET_CHUNK_MIN,
     .max = TW_NET_CHUNK_MAX},
    {.name = "TW_EAGER",
     .dflt = "16K",
     .unit = "bytes",
     .doc = "Messages up to this size are sent at once; longer ones wait until the receive is posted. To "
            "another node, over one TCP stream, messages of up to TW_NET_CHUNK are sent at once, too. Of a "
            "peer no more than 9 MB of messages below 16K wait in memory for their receives, and no more "
            "than two chunks of longer ones. Rank 0's value counts.",
     .type = TW_CONFIG_BYTES,
     .offset = FIELD(eager),
     .max = TW_NET_CHUNK_MAX},
    {.name = "TW_NET_TLS",
     .dflt = "tcp",
     .doc = "tcp: connections of our own, on which both ends prove that they hold the job's token. Else "
            "UCX's transports between nodes (a value of UCX_TLS); to these UCX's ways to GPU memory are "
            "added where it has any, while with tcp GPU memory goes through the host's.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(net_tls)},
    {.name = "TW_NET_ENCRYPT",
     .dflt = "no",
     .doc = "Seal the messages between nodes: AES-256-GCM, or ChaCha20-Poly1305 where a processor has no "
            "instructions for it; keys of each connection, from TW_JOB_TOKEN, which it needs. The same on "
            "all ranks; TW_NET_TLS=tcp alone.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(net_encrypt)},
    {.name = "TW_NODE_TLS",
     .dflt = "posix,sysv,cma",
     .doc = "UCX transports inside a node (a value of UCX_TLS); \"none\": ranks of a node talk through "
            "TW_NET_TLS too.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(node_tls)},
    {.name = "TW_NODE_ID",
     .dflt = "",
     .doc =
         "Ranks with the same text are on one node. Empty: the same host name, boot and network namespace.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(node_id)},
};

const tw_config_table_t tw_transport_config_table =
    TW_CONFIG_TABLE("transport", fields, tw_transport_options_t);
