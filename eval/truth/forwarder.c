/* forwarder: the device under test of `make eval-truth`. It forwards test frames from one interface to another, does to
 * them what a script says, and logs the fate of each. It also captures before and after itself. It shares no code with
 * packetrig.
 *   forwarder SCRIPT DIRECTORY IN OUT RIG_NAMESPACE RX
 * IN and OUT are in the namespace of this process; RX, the rig's receiving interface, is in RIG_NAMESPACE (a path).
 * DIRECTORY gets log.tsv, in.pcap, out.pcap and rx.pcap. All times are CLOCK_REALTIME nanoseconds, those of captures
 * are the kernel's stamps. A test frame is one of IPv4 and UDP; everything else passes untouched and unlogged.
 *
 * The script has one rule per line, `ACTION [name=value …]`; a frame passes the rules in their order. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { FRAME_ROOM = 2048, TAG_BYTES = 16, BATCH = 64, MAX_RULES = 32, BUFFER = 64 << 20,
       PCAP_NANOSECONDS = 0xa1b23c4d };
static const int64_t NS_PER_S = 1000000000;

enum action { DROP, DOUBLE, REFLECT, DAMAGE, ALTER, REORDER, DELAY, ALTERNATE, HOLD, POLICE, ACTIONS };
static const char *const ACTION[ACTIONS] = {"drop", "double", "reflect", "damage", "alter", "reorder", "delay",
                                            "alternate", "hold", "police"};
/* from, to: numbers of frames as they enter, `to` exclusive. begin, end: time since the first one. share: per mille. */
enum param { FROM, TO, EVERY, BEGIN_US, END_US, SHARE, SEED, BY, US, KEEP, PERIOD_US, LENGTH_US, RATE, BURST, PARAMS };
static const char *const PARAM[PARAMS] = {"from", "to", "every", "begin_us", "end_us", "share", "seed", "by", "us",
                                          "keep", "period_us", "length_us", "rate", "burst"};

static struct rule {
    enum action action;
    int64_t value[PARAMS];
    double tokens;
    int64_t refilled;
} rules[MAX_RULES];
static int rule_count;

/* One line of the log: what became of a frame that entered. */
struct record {
    int64_t entered, left[2];
    uint8_t tag[TAG_BYTES], length;
    bool dropped, doubled, reflected, damaged, altered, reordered, refused;
};
static struct record *records;
static size_t record_count, record_room;

/* A frame inside the device. `waiting`: frames that must leave before it, for one that is reordered. */
struct held {
    struct held *next;
    size_t record, length;
    int64_t due;
    int waiting;
    uint8_t bytes[FRAME_ROOM];
};
static struct held *queue, **queue_end = &queue, *aside;
static int64_t first_entered, last_due;
static volatile sig_atomic_t is_ending;
static int in_socket, out_socket;

static int64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* ---- what a rule does ---- */

static uint64_t hash_number(uint64_t seed, uint64_t number) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u ^ number;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static bool selects(const struct rule *rule, int64_t number, int64_t since) {
    const int64_t *v = rule->value;
    if (number < v[FROM] || (v[TO] && number >= v[TO])) return false;
    if (v[EVERY] && (number - v[FROM]) % v[EVERY] != 0) return false;
    if (since < v[BEGIN_US] * 1000 || (v[END_US] && since >= v[END_US] * 1000)) return false;
    return !v[SHARE] || (int64_t)(hash_number((uint64_t)v[SEED], (uint64_t)number) % 1000) < v[SHARE];
}

/* A token bucket (RFC 2697, one rate, one burst), by the times of entry. */
static bool conforms(struct rule *rule, int64_t entered) {
    double burst = (double)rule->value[BURST];
    if (!rule->refilled) rule->tokens = burst;
    else rule->tokens += (double)(entered - rule->refilled) * (double)rule->value[RATE] / (double)NS_PER_S;
    if (rule->tokens > burst) rule->tokens = burst;
    rule->refilled = entered;
    if (rule->tokens < 1) return false;
    rule->tokens -= 1;
    return true;
}

/* When the hold ends that a frame enters in; 0 outside of holds. */
static int64_t end_of_hold(const struct rule *rule, int64_t since) {
    int64_t period = rule->value[PERIOD_US] * 1000, length = rule->value[LENGTH_US] * 1000;
    int64_t begin = since - (since - rule->value[BEGIN_US] * 1000) % period;
    return since < begin + length ? first_entered + begin + length : 0;
}

/* Applies the rules; returns when the frame is to leave. */
static int64_t apply_rules(struct record *record, uint8_t *bytes, size_t length, int *waiting) {
    int64_t number = (int64_t)record_count - 1, since = record->entered - first_entered, due = record->entered;
    for (struct rule *rule = rules; rule < rules + rule_count && !record->dropped; rule++) {
        if (!selects(rule, number, since)) continue;
        int64_t hold;
        switch (rule->action) {
        case DROP: record->dropped = true; break;
        case POLICE: record->dropped = !conforms(rule, record->entered); break;
        case DOUBLE: record->doubled = true; break;
        case REFLECT: record->reflected = true; break;
        case DAMAGE: bytes[length - TAG_BYTES - 20] ^= 0x10; record->damaged = true; break;
        case ALTER: bytes[11] ^= 0x40; record->altered = true; break; /* the source's MAC address */
        case REORDER: *waiting = (int)rule->value[BY]; record->reordered = true; break;
        case DELAY: due += rule->value[US] * 1000; break;
        case ALTERNATE: if (number / rule->value[KEEP] % 2) due += rule->value[US] * 1000; break;
        case HOLD: if ((hold = end_of_hold(rule, since)) > due) due = hold; break;
        case ACTIONS: break;
        }
    }
    return due;
}

/* ---- frames in and out ---- */

static void *grow(void *array, size_t used, size_t *room, size_t each) {
    if (used < *room) return array;
    *room = *room ? *room * 2 : 16384;
    if (!(array = realloc(array, *room * each))) err(2, "log");
    return array;
}

static bool is_test_frame(const uint8_t *b, size_t length) {
    return length >= 42 + TAG_BYTES + 20 && b[12] == 8 && b[13] == 0 && b[23] == IPPROTO_UDP;
}

static void send_frame(struct held *frame) {
    struct record *record = &records[frame->record];
    for (int copy = 0; copy <= record->doubled; copy++) {
        record->left[copy] = read_clock(CLOCK_REALTIME);
        if (send(out_socket, frame->bytes, frame->length, MSG_DONTWAIT) < 0) record->refused = true;
    }
    if (record->reflected) (void)!send(in_socket, frame->bytes, frame->length, MSG_DONTWAIT);
}

/* A frame has left: those that wait for it are one nearer to their turn. */
static void release_reordered(void) {
    for (struct held **at = &aside; *at;) {
        struct held *frame = *at;
        if (--frame->waiting > 0) { at = &frame->next; continue; }
        *at = frame->next;
        send_frame(frame);
        free(frame);
    }
}

static void release_due(int64_t now) {
    while (queue && queue->due <= now) {
        struct held *frame = queue;
        if (!(queue = frame->next)) queue_end = &queue;
        send_frame(frame);
        free(frame);
        if (aside) release_reordered();
    }
}

static void take_frame(const uint8_t *bytes, size_t length, int64_t entered) {
    if (!is_test_frame(bytes, length)) { (void)!send(out_socket, bytes, length, MSG_DONTWAIT); return; }
    if (!first_entered) { first_entered = entered; printf("first %lld\n", (long long)entered); fflush(stdout); }
    records = grow(records, record_count, &record_room, sizeof *records);
    struct record *record = &records[record_count++];
    *record = (struct record){.entered = entered};
    memcpy(record->tag, bytes + length - TAG_BYTES, TAG_BYTES);
    struct held *frame = malloc(sizeof *frame);
    if (!frame) err(2, "frame");
    *frame = (struct held){.record = record_count - 1, .length = length};
    memcpy(frame->bytes, bytes, length);
    frame->due = apply_rules(record, frame->bytes, length, &frame->waiting);
    if (record->dropped) { free(frame); return; }
    if (frame->waiting) { frame->next = aside; aside = frame; return; }
    if (frame->due < last_due) frame->due = last_due; /* delays keep the order */
    last_due = frame->due;
    *queue_end = frame;
    queue_end = &frame->next;
}

/* The kernel's stamp of a message. */
static int64_t stamp_of(struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            return t.tv_sec * NS_PER_S + t.tv_nsec;
        }
    errx(2, "a frame without a stamp of the kernel");
}

struct batch {
    struct mmsghdr messages[BATCH];
    struct iovec iov[BATCH];
    struct sockaddr_ll from[BATCH];
    uint8_t bytes[BATCH][FRAME_ROOM], control[BATCH][256];
};

static int receive_batch(int socket, struct batch *batch) {
    for (int i = 0; i < BATCH; i++) {
        batch->iov[i] = (struct iovec){batch->bytes[i], FRAME_ROOM};
        batch->messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &batch->iov[i], .msg_iovlen = 1, .msg_name = &batch->from[i],
            .msg_namelen = sizeof batch->from[i], .msg_control = batch->control[i],
            .msg_controllen = sizeof batch->control[i]};
    }
    return recvmmsg(socket, batch->messages, BATCH, MSG_DONTWAIT, NULL);
}

static int open_socket(const char *interface, bool ignore_outgoing) {
    int one = ignore_outgoing, buffer = BUFFER, on = 1, index = (int)if_nametoindex(interface);
    struct packet_mreq promiscuous = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index};
    int s = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (!index || s < 0 || setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) ||
        setsockopt(s, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) ||
        setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) ||
        setsockopt(s, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) ||
        bind(s, (struct sockaddr *)&address, sizeof address))
        err(2, "%s", interface);
    return s;
}

/* ---- captures ---- */

static struct capture { int socket; bool outgoing; FILE *file; } captures[3];
static FILE *log_file;

static void open_capture(struct capture *c, const char *directory, const char *name, const char *interface,
                         bool outgoing) {
    char path[4096];
    uint32_t header[6] = {PCAP_NANOSECONDS, 2 | 4 << 16, 0, 0, FRAME_ROOM, 1};
    snprintf(path, sizeof path, "%s/%s.pcap", directory, name);
    if (!(c->file = fopen(path, "w"))) err(2, "%s", path);
    fwrite(header, sizeof header, 1, c->file);
    c->socket = open_socket(interface, !outgoing);
    c->outgoing = outgoing;
}

static bool drain_capture(struct capture *c) {
    static struct batch batch;
    int count = receive_batch(c->socket, &batch);
    for (int i = 0; i < count; i++) {
        if ((batch.from[i].sll_pkttype == PACKET_OUTGOING) != c->outgoing) continue;
        int64_t stamp = stamp_of(&batch.messages[i].msg_hdr);
        uint32_t length = batch.messages[i].msg_len;
        uint32_t header[4] = {(uint32_t)(stamp / NS_PER_S), (uint32_t)(stamp % NS_PER_S), length, length};
        fwrite(header, sizeof header, 1, c->file);
        fwrite(batch.bytes[i], length, 1, c->file);
    }
    return count == BATCH || (count < 0 && errno == ENETDOWN);
}

/* Realtime less monotonic: the tag's send time is of the monotonic clock. The narrowest of several readings. */
static void log_clocks(void) {
    int64_t narrowest = INT64_MAX, at = 0, difference = 0;
    for (int i = 0; i < 8; i++) {
        int64_t before = read_clock(CLOCK_MONOTONIC), real = read_clock(CLOCK_REALTIME);
        int64_t after = read_clock(CLOCK_MONOTONIC);
        if (after - before >= narrowest) continue;
        narrowest = after - before;
        at = real;
        difference = real - (before + after) / 2;
    }
    fprintf(log_file, "# clock %lld %lld %lld\n", (long long)at, (long long)difference, (long long)narrowest);
}

static void *run_captures(void *unused) {
    (void)unused;
    for (int round = 0;; round++) {
        bool was_ending = is_ending;
        if (round % 20 == 0) log_clocks();
        for (struct capture *c = captures; c < captures + 3; c++)
            while (drain_capture(c)) {}
        if (was_ending) break;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    log_clocks();
    for (struct capture *c = captures; c < captures + 3; c++) {
        struct tpacket_stats seen = {0};
        socklen_t size = sizeof seen;
        getsockopt(c->socket, SOL_PACKET, PACKET_STATISTICS, &seen, &size);
        fprintf(log_file, "# frames that a capture lacks: %u\n", seen.tp_drops);
        fclose(c->file);
    }
    return NULL;
}

/* ---- the script, the log, the loop ---- */

static void read_rule(char *line) {
    struct rule *rule = &rules[rule_count];
    char *word = strtok(line, " \n");
    if (!word) return;
    *rule = (struct rule){.value[KEEP] = 1, .value[PERIOD_US] = INT64_MAX / 2000};
    while (rule->action < ACTIONS && strcmp(ACTION[rule->action], word)) rule->action++;
    if (rule->action == ACTIONS || ++rule_count == MAX_RULES) errx(2, "script: '%s'", word);
    while ((word = strtok(NULL, " \n"))) {
        char *text = strchr(word, '=');
        int p = 0;
        if (text) *text++ = 0;
        while (p < PARAMS && strcmp(PARAM[p], word)) p++;
        if (!text || p == PARAMS) errx(2, "script: '%s'", word);
        rule->value[p] = atoll(text);
    }
}

static void write_log(void) {
    struct tpacket_stats seen = {0};
    socklen_t size = sizeof seen;
    getsockopt(in_socket, SOL_PACKET, PACKET_STATISTICS, &seen, &size);
    fprintf(log_file, "# frames that the forwarder's own socket dropped: %u\n", seen.tp_drops);
    for (struct record *r = records; r < records + record_count; r++) {
        fprintf(log_file, "%lld\t%s%s%s%s%s%s%s\t%lld\t%lld\t", (long long)r->entered, r->dropped ? "D" : "F",
                r->doubled ? "2" : "", r->reflected ? "B" : "", r->damaged ? "C" : "", r->altered ? "A" : "",
                r->reordered ? "R" : "", r->refused ? "E" : "", (long long)r->left[0], (long long)r->left[1]);
        for (int i = 0; i < TAG_BYTES; i++) fprintf(log_file, "%02x", r->tag[i]);
        fputc('\n', log_file);
    }
    fclose(log_file);
}

static void on_signal(int signal) { (void)signal; is_ending = 1; }

static void forward(const sigset_t *unblocked) {
    static struct batch batch;
    while (!is_ending) {
        int64_t now = read_clock(CLOCK_REALTIME), wait = queue ? queue->due - now : NS_PER_S;
        if (wait > 0) {
            struct timespec timeout = {wait / NS_PER_S, wait % NS_PER_S};
            ppoll(&(struct pollfd){in_socket, POLLIN, 0}, 1, &timeout, unblocked);
        }
        int count = receive_batch(in_socket, &batch);
        for (int i = 0; i < count; i++)
            take_frame(batch.bytes[i], batch.messages[i].msg_len, stamp_of(&batch.messages[i].msg_hdr));
        release_due(read_clock(CLOCK_REALTIME));
    }
}

int main(int count, char **arguments) {
    char path[4096], line[1024];
    if (count != 7) errx(2, "forwarder SCRIPT DIRECTORY IN OUT RIG_NAMESPACE RX");
    FILE *script = fopen(arguments[1], "r");
    if (!script) err(2, "%s", arguments[1]);
    while (fgets(line, sizeof line, script)) read_rule(line);
    snprintf(path, sizeof path, "%s/log.tsv", arguments[2]);
    if (!(log_file = fopen(path, "w"))) err(2, "%s", path);
    in_socket = open_socket(arguments[3], true);
    out_socket = open_socket(arguments[4], true);
    open_capture(&captures[0], arguments[2], "in", arguments[3], false);
    open_capture(&captures[1], arguments[2], "out", arguments[4], true);
    int rig = open(arguments[5], O_RDONLY);
    if (rig < 0 || setns(rig, CLONE_NEWNET)) err(2, "%s", arguments[5]);
    open_capture(&captures[2], arguments[2], "rx", arguments[6], false);
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal}, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_captures, NULL)) errx(2, "no thread");
    /* The device is a box of its own: load on this machine must not slow it down. Without the right it may. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    puts("ready");
    fflush(stdout);
    forward(&before);
    pthread_join(thread, NULL);
    write_log();
    return 0;
}
