/* Reads an interface's counters, and compares them with the bytes that the library counted. */
#include "bench/collectives/netdev.h"

#include <stdlib.h>
#include <string.h>

#include "core/line.h"

#define ACK_BYTES 66
#define FRAME_BYTES 1514
#define MESSAGE_BYTES 300
#define PAUSE_BYTES 2048

/** Add a counter of a device to *sum. The device's name is the first `n` characters of `device`. */
static tw_status_t add_counter(const char *device, size_t n, const char *counter, uint64_t *sum)
{
    char path[128], line[32];
    snprintf(path, sizeof(path), "/sys/class/net/%.*s/statistics/%s", (int)n, device, counter);
    TW_FAIL_IF(!tw_line_read(path, "", line, sizeof(line)), TW_ERR_NOT_FOUND, "%s: cannot be read", path);
    *sum += strtoull(line, NULL, 10);
    return TW_OK;
}

tw_status_t tw_netdev_read(const char *devices, tw_netdev_counters_t *out)
{
    *out = (tw_netdev_counters_t){0};
    for (const char *at = devices; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const size_t n = strcspn(at, ",");
        TW_TRY(add_counter(at, n, "rx_bytes", &out->rx_bytes));
        TW_TRY(add_counter(at, n, "rx_packets", &out->rx_packets));
        TW_TRY(add_counter(at, n, "tx_bytes", &out->tx_bytes));
        TW_TRY(add_counter(at, n, "tx_packets", &out->tx_packets));
    }
    return TW_OK;
}

int tw_netdev_fits(const tw_netdev_counters_t *delta, const tw_netdev_claim_t *claim)
{
    double acks = ACK_BYTES * ((double)delta->rx_packets + (double)delta->rx_bytes / (2 * FRAME_BYTES));
    double most = 1.1 * (double)claim->sent_bytes + acks + MESSAGE_BYTES * (double)claim->sent_messages +
                  PAUSE_BYTES * (double)claim->n_pauses;
    return delta->tx_bytes >= claim->sent_bytes && (double)delta->tx_bytes <= most;
}
