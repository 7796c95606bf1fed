/* Sends a pair of UDP packets, 50 us apart, 10 ms from now: cc example.c packetrig_*.c -o example && ./example 198.18.0.2 */
#include "packetrig_release.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    static struct packetrig_client client;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    struct sockaddr_storage from;
    if (argc != 2 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1 || packetrig_source_for((void *)&to, &from) < 0)
        return fprintf(stderr, "usage: example ADDRESS, one that has a route\n"), 2;
    if (packetrig_connect(&client, NULL, "example", 0) < 0)
        return fprintf(stderr, "%s\n", packetrig_error(&client)), 1;
    ((struct sockaddr_in *)&from)->sin_port = htons(40000);
    uint64_t start = packetrig_now(PACKETRIG_MONOTONIC) + 10000000;
    for (unsigned n = 0; n < 2; n++) {
        char bytes[1500];
        int size = packetrig_build_udp(bytes, sizeof bytes, (void *)&from, (void *)&to, "a pair", 6);
        struct packetrig_packet packet = {.cookie = n, .release_at = start + n * 50000, .train = 1,
            .kind = PACKETRIG_IP, .clock = PACKETRIG_MONOTONIC, .bytes = bytes, .size = (size_t)size};
        packetrig_add(&client, &packet);
    }
    struct packetrig_event event;
    int missing = packetrig_submit(&client) ? 2 : 0;
    while (missing > 0 && packetrig_next_event(&client, &event, 2000) > 0)
        if (event.type == PACKETRIG_EVENT_REPORT && missing--) {
            const struct packetrig_entry *sent = &event.of.report;
            printf("%" PRIu64 " %s planned %" PRIu64 " left %" PRIu64 " to %" PRIu64 "\n", sent->cookie,
                   packetrig_outcome_name(sent->outcome), sent->planned, sent->driver.lo, sent->driver.hi);
        }
    packetrig_close(&client);
    return missing ? 1 : 0;
}
