/* Client of `packetrig probe serve`: see packetrig_release.h.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "packetrig_release.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, SUBMIT, CANCEL, LISTEN, STATUS, TARGET, WELCOME = 129 };
enum { HEADER = 16, PACKET_HEADER = 32, REPORT_HEADER = 24, ENTRY = 160, FAULT = 8, ANSWER_HEADER = 56, PATIENCE_MS = 2000 };
static const char usual_path[] = "/run/packetrig/release.sock";

struct header { uint16_t type, reserved; uint32_t length; uint64_t id; };

/* The layout on the wire is that of the structures: no compiler may put holes into them. */
#define CHECK_LAYOUT(name, condition) typedef char check_##name[(condition) ? 1 : -1]
CHECK_LAYOUT(header, sizeof(struct header) == HEADER && offsetof(struct header, id) == 8);
CHECK_LAYOUT(stamp, sizeof(struct packetrig_stamp) == 24 && offsetof(struct packetrig_stamp, device) == 18);
CHECK_LAYOUT(entry, sizeof(struct packetrig_entry) == ENTRY);
CHECK_LAYOUT(entry_outcome, offsetof(struct packetrig_entry, outcome) == 36);
CHECK_LAYOUT(entry_wire, offsetof(struct packetrig_entry, wire) == 136);
CHECK_LAYOUT(welcome, sizeof(struct packetrig_welcome) == 152 - HEADER);
CHECK_LAYOUT(welcome_quota, offsetof(struct packetrig_welcome, quota_bytes) == 40 - HEADER);
CHECK_LAYOUT(welcome_name, offsetof(struct packetrig_welcome, interface_name) == 80 - HEADER);
CHECK_LAYOUT(welcome_limits, offsetof(struct packetrig_welcome, limits) == 120 - HEADER);
CHECK_LAYOUT(state, sizeof(((struct packetrig_event *)0)->of.state) == 64 - HEADER);
CHECK_LAYOUT(limits, sizeof(((struct packetrig_event *)0)->of.limits) == 72 - HEADER);

/* Says what failed; keeps errno. */
static int fail(struct packetrig_client *client, int error, const char *what)
{
    snprintf(client->error, sizeof client->error, "%s: %s", what, strerror(error));
    errno = error;
    return -1;
}

/* Waits for `events` at the socket: 1, 0 after the timeout, -1. A signal does not make it longer. */
static int await(int fd, short events, int timeout_ms)
{
    struct pollfd wanted = {fd, events, 0};
    uint64_t end = packetrig_now(PACKETRIG_MONOTONIC) + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000;
    for (;;) {
        int ready = poll(&wanted, 1, timeout_ms);
        if (ready >= 0 || errno != EINTR)
            return ready;
        if (timeout_ms > 0) {
            uint64_t now = packetrig_now(PACKETRIG_MONOTONIC);
            timeout_ms = now < end ? (int)((end - now) / 1000000) : 0;
        }
    }
}

static int send_message(struct packetrig_client *client, void *message, uint16_t type, uint64_t id, size_t length)
{
    struct header header = {type, 0, (uint32_t)length, id};
    uint64_t end = packetrig_now(PACKETRIG_MONOTONIC) + PATIENCE_MS * (uint64_t)1000000;
    memcpy(message, &header, HEADER);
    for (;;) {
        if (send(client->fd, message, length, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return 0;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return fail(client, errno, "the release service does not take a message");
        if (await(client->fd, POLLOUT, PATIENCE_MS) <= 0 || packetrig_now(PACKETRIG_MONOTONIC) > end)
            return fail(client, EAGAIN, "the release service does not read");
    }
}

/* Receives one message into `in`: its length, 0 after the timeout, -1. */
static int receive_message(struct packetrig_client *client, int timeout_ms, struct header *header)
{
    ssize_t got;
    for (;;) {
        got = recv(client->fd, client->in, sizeof client->in, MSG_DONTWAIT);
        if (got >= 0)
            break;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return fail(client, errno, "the connection to the release service broke");
        int ready = await(client->fd, POLLIN, timeout_ms);
        if (ready <= 0)
            return ready ? fail(client, errno, "cannot wait for the release service") : 0;
    }
    if (got == 0)
        return fail(client, ECONNRESET, "the release service closed the connection");
    memset(header, 0, sizeof *header);
    if (got >= HEADER)
        memcpy(header, client->in, HEADER);
    if (got < HEADER || header->length != (uint32_t)got)
        return fail(client, EPROTO, "the release service sent a message of a wrong length");
    return (int)got;
}

static int say_hello(struct packetrig_client *client, const char *name, int priority)
{
    struct { uint64_t header[2]; uint32_t magic; uint16_t version; uint8_t priority, reserved; char name[32];
             uint64_t end; } hello;
    struct packetrig_event event;
    struct header header;
    memset(&hello, 0, sizeof hello);
    hello.magic = 0x50525253;
    hello.version = 1;
    hello.priority = (uint8_t)priority;
    snprintf(hello.name, sizeof hello.name, "%s", name ? name : "");
    if (send_message(client, &hello, HELLO, client->next_id++, sizeof hello) < 0)
        return -1;
    int got = receive_message(client, PATIENCE_MS, &header);
    if (got == 0)
        return fail(client, ETIMEDOUT, "the release service does not answer");
    if (got >= 0 && header.type == PACKETRIG_EVENT_ERROR && got >= 224) {
        memcpy(event.of.error.text, (char *)client->in + 24, 200);
        event.of.error.text[200] = 0;
        return fail(client, EACCES, event.of.error.text);
    }
    if (got >= 0 && (header.type != WELCOME || (size_t)got < HEADER + sizeof client->welcome))
        return fail(client, EPROTO, "this is not a release service");
    if (got >= 0)
        memcpy(&client->welcome, client->in + HEADER / 8, sizeof client->welcome);
    return got < 0 ? -1 : 0;
}

int packetrig_connect(struct packetrig_client *client, const char *path, const char *name, int priority)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char what[sizeof address.sun_path + 64];
    if (!path)
        path = getenv("PACKETRIG_RELEASE_SOCKET");
    if (!path || !*path)
        path = usual_path;
    client->next_id = 1;
    client->reported = client->entries = client->count = 0;
    client->used = REPORT_HEADER;
    client->fd = -1;
    if (strlen(path) >= sizeof address.sun_path)
        return fail(client, ENAMETOOLONG, "the path of the release service's socket");
    strcpy(address.sun_path, path);
    client->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (client->fd < 0)
        return fail(client, errno, "cannot open a Unix socket");
    if (connect(client->fd, (struct sockaddr *)&address, sizeof address) < 0) {
        snprintf(what, sizeof what, "cannot connect to %s (does `packetrig probe serve` run?)", path);
        fail(client, errno, what);
    } else if (say_hello(client, name, priority) == 0) {
        return 0;
    }
    int error = errno;
    packetrig_close(client);
    errno = error;
    return -1;
}

void packetrig_close(struct packetrig_client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
}

const char *packetrig_error(const struct packetrig_client *client) { return client->error; }

int packetrig_add(struct packetrig_client *client, const struct packetrig_packet *packet)
{
    struct { uint64_t cookie, release_at, latest; uint32_t train; uint16_t size; uint8_t kind, clock; } head;
    size_t padded = (packet->size + 7) & ~(size_t)7;
    uint8_t *end = (uint8_t *)client->out + client->used;
    if (packet->size == 0 || packet->size > sizeof client->out - REPORT_HEADER - PACKET_HEADER)
        return fail(client, EMSGSIZE, "the size of a packet");
    if (client->count == client->welcome.batch_packets || client->used + PACKET_HEADER + padded > sizeof client->out)
        return fail(client, ENOBUFS, "the batch is full");
    memset(&head, 0, sizeof head);
    head.cookie = packet->cookie;
    head.release_at = packet->release_at;
    head.latest = packet->latest;
    head.train = packet->train;
    head.size = (uint16_t)packet->size;
    head.kind = packet->kind;
    head.clock = packet->clock;
    memcpy(end, &head, PACKET_HEADER);
    memcpy(end + PACKET_HEADER, packet->bytes, packet->size);
    memset(end + PACKET_HEADER + packet->size, 0, padded - packet->size);
    client->used += PACKET_HEADER + padded;
    client->count++;
    return 0;
}

uint64_t packetrig_submit(struct packetrig_client *client)
{
    uint32_t counts[2] = {client->count, 0};
    uint64_t batch = client->next_id++;
    size_t length = client->used;
    if (client->count == 0)
        return fail(client, EINVAL, "the batch is empty"), 0;
    memcpy(client->out + HEADER / 8, counts, sizeof counts);
    client->count = 0;
    client->used = REPORT_HEADER;
    return send_message(client, client->out, SUBMIT, batch, length) < 0 ? 0 : batch;
}

int packetrig_cancel(struct packetrig_client *client, uint64_t batch, uint32_t train)
{
    struct { uint64_t header[2], batch; uint32_t train, reserved; } message;
    memset(&message, 0, sizeof message);
    message.batch = batch;
    message.train = train;
    return send_message(client, &message, CANCEL, client->next_id++, sizeof message);
}

int packetrig_listen(struct packetrig_client *client, const struct packetrig_filter *filter)
{
    struct { uint64_t header[2]; uint8_t on, protocol; uint16_t own_port; uint32_t most_bytes; uint8_t from[16]; } message;
    memset(&message, 0, sizeof message);
    if (filter) {
        message.on = 1;
        message.protocol = filter->protocol;
        message.own_port = filter->own_port;
        message.most_bytes = filter->most_bytes;
        memcpy(message.from, filter->from, sizeof message.from);
    }
    return send_message(client, &message, LISTEN, client->next_id++, sizeof message);
}

int packetrig_ask_state(struct packetrig_client *client)
{
    uint64_t message[2];
    return send_message(client, message, STATUS, client->next_id++, sizeof message);
}

int packetrig_ask_limits(struct packetrig_client *client, const uint8_t target[16])
{
    uint64_t message[4];
    memcpy(message + 2, target, 16);
    return send_message(client, message, TARGET, client->next_id++, sizeof message);
}

/* Reads the message in `in` into an event: 1, 0 for a message without an event, -1 if it is damaged. */
static int read_event(struct packetrig_client *client, const struct header *header, struct packetrig_event *event)
{
    const uint8_t *body = (const uint8_t *)client->in + HEADER;
    size_t size = header->length - HEADER;
    event->type = (enum packetrig_event_type)header->type;
    event->id = header->id;
    event->packet = event->byte = PACKETRIG_NONE;
    switch (header->type) {
    case PACKETRIG_EVENT_ACCEPTED:
        return size < 16 ? -1 : (memcpy(&event->of.accepted, body, 16), 1);
    case PACKETRIG_EVENT_CANCELLED:
        return size < 8 ? -1 : (memcpy(&event->of.cancelled, body, 8), 1);
    case PACKETRIG_EVENT_LISTENING:
        return 1;
    case PACKETRIG_EVENT_STATE:
        return size < 48 ? -1 : (memcpy(&event->of.state, body, 48), 1);
    case PACKETRIG_EVENT_LIMITS:
        return size < sizeof event->of.limits ? -1 : (memcpy(&event->of.limits, body, sizeof event->of.limits), 1);
    case PACKETRIG_EVENT_ERROR:
        if (size < 216)
            return -1;
        memcpy(&event->packet, body + 208, 4);
        memcpy(&event->byte, body + 212, 4);
        memcpy(&event->of.error.code, body, 2);
        event->of.error.closes = body[2];
        memcpy(event->of.error.text, body + 8, 200);
        event->of.error.text[200] = 0;
        return 1;
    case PACKETRIG_EVENT_ANSWER:
        if (size < ANSWER_HEADER - HEADER)
            return -1;
        memcpy(&event->of.answer, body, ANSWER_HEADER - HEADER);
        event->of.answer.frame = body + ANSWER_HEADER - HEADER;
        return event->of.answer.size > size - (ANSWER_HEADER - HEADER) ? -1 : 1;
    case PACKETRIG_EVENT_REPORT:
        if (size < 8)
            return -1;
        memcpy(&client->entries, body, 4);
        client->reported = 0;
        if (client->entries > PACKETRIG_MESSAGE_BYTES / ENTRY || size < 8 + (size_t)client->entries * (ENTRY + FAULT))
            return client->entries = 0, -1;
        return 0;
    default:
        return 0;
    }
}

int packetrig_next_event(struct packetrig_client *client, struct packetrig_event *event, int timeout_ms)
{
    struct header header;
    for (;;) {
        if (client->reported < client->entries) {
            const uint8_t *entries = (uint8_t *)client->in + REPORT_HEADER;
            const uint8_t *faults = entries + (size_t)client->entries * ENTRY;
            uint16_t fault[2];
            memcpy(&event->of.report, entries + (size_t)client->reported * ENTRY, ENTRY);
            memcpy(fault, faults + (size_t)client->reported++ * FAULT, sizeof fault);
            event->packet = fault[0] == UINT16_MAX ? PACKETRIG_NONE : fault[0];
            event->byte = fault[1] == UINT16_MAX ? PACKETRIG_NONE : fault[1];
            event->type = PACKETRIG_EVENT_REPORT;
            event->id = event->of.report.batch;
            return 1;
        }
        int got = receive_message(client, timeout_ms, &header);
        if (got <= 0)
            return got;
        int read = read_event(client, &header, event);
        if (read < 0)
            return fail(client, EPROTO, "the release service sent a damaged message");
        if (read > 0)
            return 1;
    }
}

uint64_t packetrig_now(int clock)
{
    struct timespec now = {0, 0};
    clock_gettime((clockid_t)clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

const char *packetrig_outcome_name(unsigned outcome)
{
    static const char *const names[] = {
        "sent", "late", "queue_full", "not_permitted", "over_limit", "malformed", "wrong_source", "too_long",
        "clash", "cancelled", "no_route", "too_far_ahead", "dropped", "ended", "failed", "train_refused"};
    return outcome < sizeof names / sizeof *names ? names[outcome] : "unknown";
}
