/* What the service tells of limits and of wrong packets: refusals ADDRESS prints one line for each.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "packetrig_release.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct packetrig_client client;

/* Waits for an event of this type. */
static int await_event(struct packetrig_event *event, enum packetrig_event_type type)
{
    while (packetrig_next_event(&client, event, 5000) > 0)
        if (event->type == type)
            return 1;
    return fprintf(stderr, "no event: %s\n", packetrig_error(&client)), 0;
}

static void show_place(const char *what, const struct packetrig_event *event)
{
    printf("%s packet %d byte %d\n", what, (int)event->packet, (int)event->byte);
}

int main(int argc, char **argv)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    struct sockaddr_storage from;
    struct packetrig_event event;
    uint8_t target[16] = {[10] = 0xff, [11] = 0xff}, bytes[100];
    if (argc != 2 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1 || packetrig_source_for((void *)&to, &from) < 0 ||
        packetrig_connect(&client, NULL, "refusals", 0) < 0)
        return fprintf(stderr, "cannot begin: %s\n", packetrig_error(&client)), 1;
    ((struct sockaddr_in *)&from)->sin_port = htons(40001);
    printf("welcome burst %" PRIu32 " train %" PRIu32 "\n", client.welcome.limits.burst, client.welcome.train_packets);
    memcpy(target + 12, &to.sin_addr, 4);
    packetrig_ask_limits(&client, target);
    if (!await_event(&event, PACKETRIG_EVENT_LIMITS))
        return 1;
    printf("limits permitted %" PRIu32 " packets_per_s %" PRIu64 "\n", event.of.limits.permitted,
           event.of.limits.limits.packets_per_s);
    int size = packetrig_build_udp(bytes, sizeof bytes, (void *)&from, (void *)&to, "wrong", 5);
    struct packetrig_packet packet = {.release_at = packetrig_now(PACKETRIG_MONOTONIC), .kind = PACKETRIG_IP,
        .clock = PACKETRIG_MONOTONIC, .bytes = bytes, .size = (size_t)size};
    packetrig_add(&client, &packet);
    bytes[10] ^= 1; /* the header's checksum */
    packet.cookie = 1;
    packetrig_add(&client, &packet);
    packetrig_submit(&client);
    do
        if (!await_event(&event, PACKETRIG_EVENT_REPORT))
            return 1;
    while (event.of.report.cookie != 1);
    show_place(packetrig_outcome_name(event.of.report.outcome), &event);
    packet.clock = 99;
    packetrig_add(&client, &packet);
    packetrig_submit(&client);
    if (!await_event(&event, PACKETRIG_EVENT_ERROR))
        return 1;
    show_place(event.of.error.text, &event);
    packetrig_close(&client);
    return 0;
}
