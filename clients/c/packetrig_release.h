/* Hand packets over to `packetrig probe serve`, which sends each at its time.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A client is one connection. It allocates no memory and starts no thread; only one thread at a time may use it.
 * Functions return -1 and set errno if they fail; packetrig_error() then says in words what failed and what to do.
 * The protocol: docs/book/release-protocol.md. Needs libc, POSIX and Linux; C99. */
#ifndef PACKETRIG_RELEASE_H
#define PACKETRIG_RELEASE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PACKETRIG_MESSAGE_BYTES 65536

/* What the bytes of a packet are. */
enum { PACKETRIG_FRAME = 1, PACKETRIG_IP = 2 };
/* Clocks of release times, as in clock_gettime. */
enum { PACKETRIG_REALTIME = 0, PACKETRIG_MONOTONIC = 1, PACKETRIG_TAI = 11 };

enum packetrig_outcome {
    PACKETRIG_SENT, PACKETRIG_LATE, PACKETRIG_QUEUE_FULL, PACKETRIG_NOT_PERMITTED, PACKETRIG_OVER_LIMIT,
    PACKETRIG_MALFORMED, PACKETRIG_WRONG_SOURCE, PACKETRIG_TOO_LONG, PACKETRIG_CLASH, PACKETRIG_CANCELLED,
    PACKETRIG_NO_ROUTE, PACKETRIG_TOO_FAR_AHEAD, PACKETRIG_DROPPED, PACKETRIG_ENDED, PACKETRIG_FAILED,
    PACKETRIG_TRAIN_REFUSED
};

/* Bits of packetrig_entry.flags. */
enum {
    PACKETRIG_FLAG_LATE = 1, PACKETRIG_FLAG_EARLY = 2, PACKETRIG_FLAG_STOLEN = 4,
    PACKETRIG_FLAG_STAMP_MISSING = 8, PACKETRIG_FLAG_CONTRADICTION = 16, PACKETRIG_FLAG_SHIFTED = 32
};

/* The true time is not before `lo` and not after `hi`, in nanoseconds. clock: 0 not known, 1 CLOCK_MONOTONIC,
 * 2 that of /dev/ptp`device`. */
struct packetrig_stamp {
    uint64_t lo, hi;
    uint8_t clock, source;
    uint16_t device;
    uint32_t reserved;
};

/* What became of a packet. */
struct packetrig_entry {
    uint64_t batch, cookie;
    uint64_t planned; /* nanoseconds of CLOCK_MONOTONIC */
    uint64_t shifted; /* released this many nanoseconds later because of a clash */
    uint32_t train;
    uint16_t outcome, flags;
    struct packetrig_stamp handed_over, released, queue, driver, wire;
};

/* What may be sent to a target. */
struct packetrig_limits {
    uint64_t packets_per_s, bits_per_s;
    uint64_t most; /* packets of this user in all */
    uint32_t burst, reserved;
};

/* What the service granted. */
struct packetrig_welcome {
    uint16_t version, mechanism;
    uint32_t interface_index, mtu, batch_packets, quota_packets, reserved0;
    uint64_t quota_bytes, lead_ns, tolerance_ns, horizon_ns;
    uint8_t mac[6], priority, reserved1;
    char interface_name[16];
    uint32_t train_packets, frame_bytes;
    uint64_t train_ns;
    uint32_t targets, reserved2;
    struct packetrig_limits limits; /* of the target that may be sent the least */
};

/* A packet to be sent. */
struct packetrig_packet {
    uint64_t cookie;     /* any number; the report repeats it */
    uint64_t release_at; /* nanoseconds of `clock` */
    uint64_t latest;     /* not sent if later than this after release_at; 0: however late */
    uint32_t train;      /* consecutive packets with the same number leave together or not at all; 0: alone */
    uint8_t kind, clock; /* PACKETRIG_FRAME or PACKETRIG_IP; PACKETRIG_MONOTONIC, … */
    const void *bytes;
    size_t size;
};

/* Which answers to report; all zeros: every answer to this client's packets. */
struct packetrig_filter {
    uint8_t protocol;
    uint16_t own_port;
    uint32_t most_bytes;
    uint8_t from[16]; /* an IPv6 address, or ::ffff:a.b.c.d */
};

enum packetrig_event_type {
    PACKETRIG_EVENT_ACCEPTED = 130, PACKETRIG_EVENT_REPORT, PACKETRIG_EVENT_CANCELLED, PACKETRIG_EVENT_LISTENING,
    PACKETRIG_EVENT_ANSWER, PACKETRIG_EVENT_ERROR, PACKETRIG_EVENT_STATE, PACKETRIG_EVENT_LIMITS
};

/* No packet, no byte: in `packet` and `byte` of an event. */
#define PACKETRIG_NONE UINT32_MAX


struct packetrig_event {
    enum packetrig_event_type type;
    uint64_t id; /* of the message that this answers; of ACCEPTED: the batch */
    /* REPORT and ERROR: the packet of the batch that was wrong (from 0), and the byte at which its wrong field begins: of
     * the packet in SUBMIT (32: its first own byte), and with ERROR of the message. PACKETRIG_NONE: none, or not known. */
    uint32_t packet, byte;
    union {
        struct { uint32_t accepted, refused, queued, reserved; } accepted;
        struct packetrig_entry report;
        struct { uint32_t packets, reserved; } cancelled;
        struct {
            struct packetrig_stamp arrival;
            uint32_t lost;
            uint16_t size, flags;
            uint32_t frame_size, reserved;
            const uint8_t *frame; /* `size` bytes, until the next call */
        } answer;
        struct { uint16_t code; uint8_t closes; char text[201]; } error;
        struct { uint32_t queued, clients; uint64_t sent, late, shifted, refused, answers; } state;
        struct { uint8_t address[16]; uint32_t permitted, reserved; struct packetrig_limits limits; } limits;
    } of;
};

/* Members are private; read `welcome` and `fd` (for poll: readable means that an event may be there). */
struct packetrig_client {
    int fd;
    struct packetrig_welcome welcome;
    uint64_t next_id;
    uint32_t reported, entries; /* of the REPORT in `in` */
    uint32_t count;             /* packets in `out` */
    size_t used;                /* bytes in `out` */
    char error[256];
    uint64_t in[PACKETRIG_MESSAGE_BYTES / 8], out[PACKETRIG_MESSAGE_BYTES / 8];
};

/* Connects, and waits at most two seconds for the service. `path` NULL: $PACKETRIG_RELEASE_SOCKET, else
 * /run/packetrig/release.sock. `name` is the program's, for the service's report. `priority`: 0 (usual) to 7. */
int packetrig_connect(struct packetrig_client *client, const char *path, const char *name, int priority);
/* Closes the connection. The service drops what is queued. */
void packetrig_close(struct packetrig_client *client);
const char *packetrig_error(const struct packetrig_client *client);

/* Adds a packet to the batch; ENOBUFS: the batch is full, submit it first. The bytes are copied. */
int packetrig_add(struct packetrig_client *client, const struct packetrig_packet *packet);
/* Submits the batch and returns its number; 0 if that failed. The batch is empty afterwards. If the service does
 * not read, waits for it up to two seconds (EAGAIN). */
uint64_t packetrig_submit(struct packetrig_client *client);
/* Takes packets out of the queue. `batch` 0: of all batches. `train` 0: all packets. */
int packetrig_cancel(struct packetrig_client *client, uint64_t batch, uint32_t train);
/* Asks for answers that pass the filter; NULL: no more answers. */
int packetrig_listen(struct packetrig_client *client, const struct packetrig_filter *filter);
int packetrig_ask_state(struct packetrig_client *client);
/* Asks for the limits of a target: an IPv6 address, or ::ffff:a.b.c.d. */
int packetrig_ask_limits(struct packetrig_client *client, const uint8_t target[16]);
/* Waits for the next event: 1 an event, 0 none within the timeout (-1: forever), -1 failed or closed. */
int packetrig_next_event(struct packetrig_client *client, struct packetrig_event *event, int timeout_ms);

/* Writes an IP packet to `buffer` and returns its length; -1 with EMSGSIZE or EAFNOSUPPORT. Addresses are
 * sockaddr_in or sockaddr_in6; those of an echo request have no ports. */
int packetrig_build_udp(void *buffer, size_t room, const struct sockaddr *source, const struct sockaddr *target,
                        const void *payload, size_t size);
int packetrig_build_echo(void *buffer, size_t room, const struct sockaddr *source, const struct sockaddr *target,
                         uint16_t identifier, uint16_t sequence, const void *payload, size_t size);
/* Finds the address that this machine uses towards `target` (at most sizeof(struct sockaddr_in6) bytes). */
int packetrig_source_for(const struct sockaddr *target, struct sockaddr_storage *source);
/* The ones' complement sum of `size` bytes, added to `sum`; complement it at the end. */
uint16_t packetrig_checksum_add(uint16_t sum, const void *bytes, size_t size);

uint64_t packetrig_now(int clock); /* nanoseconds */
const char *packetrig_outcome_name(unsigned outcome);

#ifdef __cplusplus
}
#endif
#endif
