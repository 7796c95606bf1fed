/* forwarder: a layer-2 forwarder with deliberate, exactly logged faults.
 * It stands between the ports of a network tester and knows, frame by frame, what it did to the traffic:
 * its log is the truth a tester's verdict is compared with.
 *   forwarder SPEC_FILE LOG_FILE IF_A IF_B [IF_C ...]
 * One thread, plain recvmmsg and send.  All times are CLOCK_MONOTONIC nanoseconds.
 *
 * The rules form a pipeline.  `copy`, `flood` and `reflect` take the frame as the rules above them left it (bytes,
 * hold, and for `copy` the exit too); the frame itself leaves after the last rule.  `drop`, `police` and `arp_drop`
 * end the pipeline: what earlier rules took still leaves. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { MAX_PORTS = 8, MAX_RULES = 256, BATCH = 32, TAG = 4, NO_KEY_SLOT = 65536, HASHED_TAIL = 32, SEND_TRIES = 10,
       NOWHERE = -1, FRAME_ROOM = 65600 /* more than any MTU: what is longer cannot be sent, and send() says so */ };
static const int64_t NS_PER_MS = 1000000, NS_PER_S = 1000000000, REORDER_LIMIT_NS = 2000000000, NAP_NS = 20000000;

/* ---- what can happen to a frame: the names of the rules and of the fates in the log ---- */
enum param { KEY, FROM, FRAMES, EVERY, T, SHARE, SEED, TO, COPIES, OFFSET, MASK, MS, BY, RATE, BUCKET, PARAMS };
static const struct { const char *name; int64_t min, max; } PARAM[PARAMS] = {
    [KEY] = {"key", -1, 65535}, [FROM] = {"from", 0, MAX_PORTS}, [FRAMES] = {"frames", 0, UINT32_MAX},
    [EVERY] = {"every", 1, UINT32_MAX}, [T] = {"t", 0, 1000000000}, [SHARE] = {"share", 0, 1000},
    [SEED] = {"seed", 0, INT64_MAX}, [TO] = {"to", 0, MAX_PORTS}, [COPIES] = {"copies", 1, 100},
    [OFFSET] = {"offset_from_end", 0, 65535}, [MASK] = {"mask", 1, 255}, [MS] = {"ms", 0, 3600000},
    [BY] = {"by", 1, 1000000}, [RATE] = {"rate", 1, 10000000}, [BUCKET] = {"bucket", 1, 1000000},
};
#define BIT(param) (1u << (param))
#define SELECT (BIT(KEY) | BIT(FROM) | BIT(FRAMES) | BIT(EVERY) | BIT(T) | BIT(SHARE) | BIT(SEED))

enum event { SENT, COPY, FLOOD, REFLECT, MISDELIVER, SEND_FAILED, UNSENT, LAST_WITH_PORT = UNSENT, DROP, POLICE,
             ARP_DROP, NO_ROUTE, REWRITE_MAC, CORRUPT, DELAY, REORDER, PASS, EVENTS };
static const struct { const char *name; bool is_rule; unsigned needs, allows; } EVENT[EVENTS] = {
    [SENT] = {.name = "sent"}, [SEND_FAILED] = {.name = "send_failed"}, [UNSENT] = {.name = "unsent"},
    [NO_ROUTE] = {.name = "no_route"}, [PASS] = {"pass", true, BIT(FROM) | BIT(TO), 0},
    [DROP] = {"drop", true, 0, SELECT}, [REFLECT] = {"reflect", true, 0, SELECT},
    [COPY] = {"copy", true, 0, SELECT | BIT(COPIES)}, [CORRUPT] = {"corrupt", true, BIT(OFFSET) | BIT(MASK), SELECT},
    [DELAY] = {"delay", true, BIT(MS), SELECT}, [REORDER] = {"reorder", true, BIT(BY), SELECT},
    [MISDELIVER] = {"misdeliver", true, BIT(TO), SELECT}, [FLOOD] = {"flood", true, BIT(TO), SELECT},
    [REWRITE_MAC] = {"rewrite_mac", true, 0, SELECT},
    [POLICE] = {"police", true, BIT(RATE) | BIT(BUCKET), SELECT}, [ARP_DROP] = {"arp_drop", true, 0, SELECT},
};

struct frame {
    uint8_t *bytes;
    size_t length;
    int in, out;
    enum event kind;         /* what its leaving is called in the log */
    uint32_t record, fate;   /* where its leaving is to be logged */
    struct rule *hold;       /* the delay or reorder rule that holds it back, or NULL; the rest is for held ones */
    struct frame *next;
    int64_t due_ns, waiting; /* waiting (reorder): frames that still have to pass; then it is due at once */
};
static struct rule {
    enum event action;
    unsigned given;                      /* which parameters the line has */
    int64_t value[PARAMS], high[PARAMS]; /* high: the exclusive end of a range */
    double tokens;                       /* police */
    int64_t refilled_ns;
    /* What the rule holds back, by ingress port.  One rule has one hold time, so each queue is in order of due_ns. */
    struct frame *first[MAX_PORTS], **end[MAX_PORTS];
} rules[MAX_RULES];

static struct port {
    const char *name;
    int socket, exit;      /* exit: the port its frames are passed to */
    bool failing;          /* the last send failed: do not spend time on retries */
    uint32_t received, partial_checksum, merged, next_number[NO_KEY_SLOT + 1];
} ports[MAX_PORTS];
static int port_count, rule_count;

/* The log, in memory until the end.  The fates of a frame lie side by side, in the order of the rules. */
static struct fate { int64_t value; uint8_t kind, port; } *fates;
static struct record {
    int64_t received_ns; uint64_t hash; uint32_t number; int32_t key;
    uint32_t first_fate; uint16_t fates; uint8_t in; /* first_fate: an index into the array of fates */
} *records;
static size_t fate_count, fate_room, record_count, record_room;
static int64_t start_ns = -1;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void *grown(void *array, size_t used, size_t *room, size_t each) {
    if (used < *room) return array;
    *room = *room ? *room * 2 : 65536;
    if (!(array = realloc(array, *room * each))) err(2, "log of %zu entries", used);
    return array;
}

static uint32_t add_fate(enum event kind, int port, int64_t value) {
    fates = grown(fates, fate_count, &fate_room, sizeof *fates);
    fates[fate_count] = (struct fate){value, (uint8_t)kind, (uint8_t)port};
    records[record_count - 1].fates++;
    return (uint32_t)fate_count++;
}

/* `passed` was just forwarded: it is one of the "further frames" for all held in its direction that came before it. */
static void count_forwarded(const struct frame *passed) {
    for (struct rule *r = rules; r < rules + rule_count; r++)
        for (struct frame *h = r->action == REORDER ? r->first[passed->in] : NULL; h; h = h->next)
            if (h->record < passed->record && --h->waiting == 0) h->due_ns = 0;
}

static void transmit(const struct frame *f) {
    struct port *port = &ports[f->out];
    int error = 0, tries = port->failing ? 1 : SEND_TRIES;
    int64_t stamp;
    do {
        if (error) nanosleep(&(struct timespec){0, 50000}, NULL); /* a full queue: let it drain */
        stamp = now_ns(); /* before the call: a receiver on this machine can never see the frame earlier */
        error = send(port->socket, f->bytes, f->length, MSG_DONTWAIT) < 0 ? errno : 0;
    } while ((error == ENOBUFS || error == EAGAIN || error == ENETDOWN) && --tries > 0);
    port->failing = error && error != EMSGSIZE;
    fates[f->fate] = error ? (struct fate){error, SEND_FAILED, (uint8_t)f->out}
                           : (struct fate){stamp, (uint8_t)f->kind, (uint8_t)f->out};
    if (!error && (f->kind == SENT || f->kind == MISDELIVER)) count_forwarded(f); /* copies do not count */
}

/* The head of the queue whose first frame must leave next; on equal times the one that came first. */
static struct frame **next_due(void) {
    struct frame **next = NULL;
    for (struct rule *r = rules; r < rules + rule_count; r++)
        for (struct frame **head = r->first; head < r->first + port_count; head++)
            if (*head && (!next || (*head)->due_ns < (*next)->due_ns ||
                          ((*head)->due_ns == (*next)->due_ns && (*head)->fate < (*next)->fate)))
                next = head;
    return next;
}

static void release_due(int64_t until_ns) {
    for (struct frame **head; (head = next_due()) && (*head)->due_ns <= until_ns;) {
        struct frame *h = *head;
        *head = h->next;
        transmit(h);
        free(h);
    }
}

/* ---- one frame through the rules ---- */
static uint64_t fnv1a_of_tail(const uint8_t *bytes, size_t length) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = length > HASHED_TAIL ? length - HASHED_TAIL : 0; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static unsigned be16(const uint8_t *bytes) { return (unsigned)bytes[0] << 8 | bytes[1]; }

/* The EtherType behind any VLAN tags; *at is set to where its payload begins. */
static unsigned ether_type(const uint8_t *bytes, size_t length, size_t *at) {
    for (*at = 14; *at <= length; *at += TAG) {
        unsigned type = be16(bytes + *at - 2);
        if (type != ETH_P_8021Q && type != ETH_P_8021AD) return type;
    }
    return 0;
}

static int stream_key(const uint8_t *bytes, size_t length) {
    size_t at;
    if (ether_type(bytes, length, &at) != ETH_P_IP || at + 20 > length || bytes[at] >> 4 != 4) return -1;
    const uint8_t *ip = bytes + at;
    size_t header = (size_t)(ip[0] & 15) * 4;
    bool later_fragment = be16(ip + 6) & 0x1fff; /* has no ports */
    if (header < 20 || at + header + 2 > length || later_fragment || (ip[9] != IPPROTO_TCP && ip[9] != IPPROTO_UDP))
        return -1;
    return (int)be16(ip + header);
}

/* The choice must not depend on how streams interleave, so it is a hash and not a running generator. */
static bool in_share(const struct rule *r, const struct record *seen) {
    uint64_t x = (uint64_t)r->value[SEED] * 0x9e3779b97f4a7c15u ^ (uint64_t)seen->in << 56 ^
                 (uint64_t)(uint32_t)(seen->key + 1) << 32 ^ seen->number;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (int64_t)(x % 1000) < r->value[SHARE];
}

static bool selects(const struct rule *r, const struct record *seen) {
    const int64_t *value = r->value, *high = r->high, t = seen->received_ns - start_ns;
    return (!(r->given & BIT(KEY)) || seen->key == value[KEY]) &&
           (!(r->given & BIT(FROM)) || seen->in == value[FROM]) &&
           (!(r->given & BIT(FRAMES)) || (seen->number >= value[FRAMES] && seen->number < high[FRAMES])) &&
           (!(r->given & BIT(EVERY)) || (seen->number - value[FRAMES]) % value[EVERY] == 0) &&
           (!(r->given & BIT(T)) || (start_ns >= 0 && t >= value[T] * NS_PER_MS && t < high[T] * NS_PER_MS)) &&
           (!(r->given & BIT(SHARE)) || in_share(r, seen));
}

/* Does a rule that can end the pipeline end it for this frame? */
static bool ends(struct rule *r, const struct frame *f, int64_t received_ns) {
    size_t at;
    if (r->action != POLICE) return r->action == DROP || ether_type(f->bytes, f->length, &at) == ETH_P_ARP;
    double full = (double)r->value[BUCKET];
    r->tokens += (double)(received_ns - r->refilled_ns) * (double)r->value[RATE] / (double)NS_PER_S;
    if (r->refilled_ns == 0 || r->tokens > full) r->tokens = full;
    r->refilled_ns = received_ns;
    if (r->tokens < 1) return true;
    r->tokens -= 1;
    return false;
}

/* Send the frame as it is now, or hold it back; its fate gets its place in the log right away. */
static void emit(struct frame f, enum event kind, int out) {
    f.kind = kind;
    f.out = out;
    f.fate = add_fate(out == NOWHERE ? NO_ROUTE : UNSENT, out, 0);
    if (!f.hold && out != NOWHERE) transmit(&f);
    if (!f.hold || out == NOWHERE) return;
    struct rule *r = f.hold;
    struct frame *h = malloc(sizeof *h + f.length), ***end = &r->end[f.in];
    if (!h) err(2, "held frame");
    *h = f;
    h->bytes = memcpy(h + 1, f.bytes, f.length);
    h->due_ns = records[f.record].received_ns + (r->action == DELAY ? r->value[MS] * NS_PER_MS : REORDER_LIMIT_NS);
    h->waiting = r->value[BY];
    if (!r->first[f.in]) *end = &r->first[f.in];
    **end = h;
    *end = &h->next;
}

static void handle_frame(int in, uint8_t *bytes, size_t length, int64_t received_ns) {
    struct frame f = {.bytes = bytes, .length = length, .in = in, .record = (uint32_t)record_count};
    int key = stream_key(bytes, length), exit = ports[in].exit;
    enum event kind = SENT;
    if (key >= 0 && start_ns < 0) start_ns = received_ns;
    records = grown(records, record_count, &record_room, sizeof *records);
    const struct record *seen = &records[record_count++];
    records[f.record] = (struct record){.received_ns = received_ns, .hash = fnv1a_of_tail(bytes, length), .key = key,
        .number = ports[in].next_number[key < 0 ? NO_KEY_SLOT : key]++, .first_fate = (uint32_t)fate_count,
        .in = (uint8_t)in};
    ports[in].received++;
    for (struct rule *r = rules; r < rules + rule_count; r++) {
        if (!selects(r, seen)) continue;
        switch (r->action) {
        case DROP: case POLICE: case ARP_DROP:
            if (!ends(r, &f, received_ns)) break;
            add_fate(r->action, 0, 0);
            return;
        case COPY: case FLOOD: case REFLECT:
            for (int64_t i = 0; i < r->value[COPIES]; i++) /* 1 unless given */
                emit(f, r->action, r->action == COPY ? exit : r->action == FLOOD ? (int)r->value[TO] : in);
            break;
        case MISDELIVER:
            exit = (int)r->value[TO];
            kind = MISDELIVER;
            break;
        case CORRUPT:
            if ((size_t)r->value[OFFSET] >= length) break; /* has no such byte */
            bytes[length - 1 - (size_t)r->value[OFFSET]] ^= (uint8_t)r->value[MASK];
            add_fate(CORRUPT, 0, (int64_t)length - 1 - r->value[OFFSET]);
            break;
        case REWRITE_MAC:
            memcpy(bytes, "\x02\x00\x00\x00\x99\x99", 6);
            add_fate(REWRITE_MAC, 0, 0);
            break;
        default: /* DELAY, REORDER */
            f.hold = r;
            add_fate(r->action, 0, r->value[r->action == DELAY ? MS : BY]);
        }
    }
    emit(f, kind, exit);
}

/* ---- receiving: at most one batch; false when nothing is left ---- */
static bool read_port(int in) {
    static uint8_t room[BATCH][TAG + FRAME_ROOM];
    static union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(struct tpacket_auxdata))]; } control[BATCH];
    struct iovec iov[BATCH];
    struct mmsghdr messages[BATCH] = {0};
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){room[i] + TAG, FRAME_ROOM}; /* space in front for the VLAN tag */
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1,
                                              .msg_control = &control[i], .msg_controllen = sizeof control[i]};
    }
    int count = recvmmsg(ports[in].socket, messages, BATCH, MSG_DONTWAIT, NULL);
    int last_error = errno;
    int64_t received_ns = now_ns();
    for (int i = 0; i < count; i++) {
        uint8_t *bytes = room[i] + TAG;
        size_t length = messages[i].msg_len;
        struct tpacket_auxdata aux = {0};
        struct cmsghdr *note = CMSG_FIRSTHDR(&messages[i].msg_hdr); /* the only kind that was asked for */
        if (note && note->cmsg_type == PACKET_AUXDATA) memcpy(&aux, CMSG_DATA(note), sizeof aux);
        ports[in].partial_checksum += !!(aux.tp_status & TP_STATUS_CSUMNOTREADY);
        ports[in].merged += aux.tp_status >> 8 & 1; /* TP_STATUS_GSO_TCP, only in newer headers */
        if (aux.tp_status & TP_STATUS_VLAN_VALID) { /* the kernel took the tag off: put it back */
            uint16_t tag[2] = {htons(aux.tp_vlan_tpid), htons(aux.tp_vlan_tci)};
            bytes = memmove(bytes - TAG, bytes, 12);
            memcpy(bytes + 12, tag, TAG);
            length += TAG;
        }
        handle_frame(in, bytes, length, received_ns);
        release_due(received_ns);
    }
    return count >= 0 || last_error != EAGAIN; /* ENETDOWN is reported once, frames may be queued behind it */
}

static void open_port(struct port *p) {
    int one = 1, buffer = 64 << 20, index = (int)if_nametoindex(p->name);
    struct packet_mreq promiscuous = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index};
    p->socket = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); /* protocol 0: silent until bound */
    if (index == 0 || p->socket < 0) err(2, "%s", p->name);
    /* The bypass: without it a port that has no carrier takes frames, loses them and reports success. */
    if (setsockopt(p->socket, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) ||
        setsockopt(p->socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) ||
        setsockopt(p->socket, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) ||
        setsockopt(p->socket, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) ||
        setsockopt(p->socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) ||
        bind(p->socket, (struct sockaddr *)&address, sizeof address))
        err(2, "%s", p->name);
}

/* ---- the spec file ---- */
static int port_named(const char *name) {
    for (int i = 0; i < port_count; i++)
        if (strcmp(ports[i].name, name) == 0) return i;
    return NOWHERE;
}

static void read_parameter(struct rule *r, char *word, int line) {
    char *text = strchr(word, '='), *end = NULL;
    int p = 0;
    if (text) *text++ = 0;
    while (p < PARAMS && strcmp(PARAM[p].name, word) != 0) p++;
    if (!text || p == PARAMS || !((EVENT[r->action].needs | EVENT[r->action].allows) & BIT(p)) || r->given & BIT(p))
        errx(2, "spec line %d: %s does not take '%s' (here)", line, EVENT[r->action].name, word);
    r->given |= BIT(p);
    errno = 0;
    bool is_port = p == FROM || p == TO, is_range = p == FRAMES || p == T;
    r->value[p] = is_port ? port_named(text) : strtoll(text, &end, p == MASK ? 0 : 10);
    if (is_range && *end == '-') r->high[p] = strtoll(end + 1, &end, 10);
    if (errno || r->value[p] < PARAM[p].min || r->value[p] > PARAM[p].max || (!is_port && (end == text || *end)) ||
        (is_range && r->high[p] <= r->value[p]))
        errx(2, "spec line %d: bad value for '%s'", line, word);
}

static void read_spec(const char *file) {
    char text[1024];
    FILE *spec = fopen(file, "r");
    if (!spec) err(2, "%s", file);
    for (int line = 1; fgets(text, sizeof text, spec); line++) {
        text[strcspn(text, "#")] = 0;
        char *word = strtok(text, " \t\r\n");
        if (!word) continue;
        struct rule r = {.value[COPIES] = 1, .value[SEED] = 1};
        while (r.action < EVENTS && (!EVENT[r.action].is_rule || strcmp(EVENT[r.action].name, word) != 0)) r.action++;
        if (r.action == EVENTS || rule_count == MAX_RULES)
            errx(2, "spec line %d: '%s' is no rule, or one too many", line, word);
        while ((word = strtok(NULL, " \t\r\n"))) read_parameter(&r, word, line);
        unsigned missing = EVENT[r.action].needs & ~r.given;
        if (missing)
            errx(2, "spec line %d: %s needs '%s'", line, EVENT[r.action].name, PARAM[__builtin_ctz(missing)].name);
        if (r.action == PASS) ports[r.value[FROM]].exit = (int)r.value[TO];
        else rules[rule_count++] = r;
    }
    fclose(spec);
}

static void write_log(FILE *log, int64_t end_ns) {
    uint64_t totals[EVENTS] = {0};
    fprintf(log, "in_if\tkey\tnumber\thash\treceived_ns\tfates\n");
    for (const struct record *r = records; r < records + record_count; r++) {
        fprintf(log, "%s\t%" PRId32 "\t%" PRIu32 "\t%016" PRIx64 "\t%" PRId64 "\t",
                ports[r->in].name, r->key, r->number, r->hash, r->received_ns);
        for (const struct fate *f = fates + r->first_fate; f < fates + r->first_fate + r->fates; f++) {
            totals[f->kind]++;
            fprintf(log, f == fates + r->first_fate ? "%s" : ",%s", EVENT[f->kind].name);
            if (f->kind <= LAST_WITH_PORT) fprintf(log, ":%s:%" PRId64, ports[f->port].name, f->value);
            else if (f->kind >= CORRUPT) fprintf(log, ":%" PRId64, f->value);
        }
        fputc('\n', log);
    }
    for (struct port *p = ports; p < ports + port_count; p++) {
        struct tpacket_stats seen;
        socklen_t size = sizeof seen;
        if (getsockopt(p->socket, SOL_PACKET, PACKET_STATISTICS, &seen, &size) != 0) err(2, "%s", p->name);
        unsigned unread = seen.tp_packets - seen.tp_drops - p->received; /* tp_packets counts the drops too */
        fprintf(log, "# pass %s %s\n", p->name, p->exit == NOWHERE ? "-" : ports[p->exit].name);
        fprintf(log, "# kernel_drops %s %u\n# unread %s %u\n", p->name, seen.tp_drops, p->name, unread);
        fprintf(log, "# offload %s partial_checksum=%u merged=%u\n", p->name, p->partial_checksum, p->merged);
    }
    fprintf(log, "# start_ns %" PRId64 "\n# end_ns %" PRId64 "\n# totals received=%zu", start_ns, end_ns, record_count);
    for (int kind = 0; kind < PASS; kind++) fprintf(log, " %s=%" PRIu64, EVENT[kind].name, totals[kind]);
    fputc('\n', log);
}

static volatile sig_atomic_t stopping;
static void on_stop(int number) { stopping = number; }

int main(int argc, char **argv) {
    if (argc < 5 || argc > 3 + MAX_PORTS)
        errx(2, "usage: forwarder SPEC_FILE LOG_FILE IF_A IF_B [IF_C ...] (at most %d interfaces)", MAX_PORTS);
    for (; port_count < argc - 3; port_count++) {
        if (port_named(argv[3 + port_count]) != NOWHERE) errx(2, "interface %s given twice", argv[3 + port_count]);
        ports[port_count].name = argv[3 + port_count];
        ports[port_count].exit = port_count < 2 ? 1 - port_count : NOWHERE;
    }
    read_spec(argv[1]);
    FILE *log = fopen(argv[2], "w"); /* now, so that a bad path is known before the test */
    if (!log) err(2, "%s", argv[2]);
    signal(SIGTERM, on_stop);
    signal(SIGINT, on_stop);
    signal(SIGPIPE, SIG_IGN);
    struct pollfd polled[MAX_PORTS];
    for (int i = 0; i < port_count; i++) {
        open_port(&ports[i]);
        polled[i] = (struct pollfd){ports[i].socket, POLLIN, 0};
    }
    puts("ready");
    fflush(stdout);
    while (!stopping) {
        struct frame **next = next_due();
        int64_t rest = next ? (*next)->due_ns - now_ns() : NAP_NS; /* naps: a signal may come just before ppoll */
        struct timespec timeout = {0, rest < 0 ? 0 : rest > NAP_NS ? NAP_NS : rest};
        if (ppoll(polled, (nfds_t)port_count, &timeout, NULL) < 0 && errno != EINTR) err(2, "poll");
        release_due(now_ns());
        for (int i = 0; i < port_count; i++) read_port(i);
    }
    /* Shut the doors with a filter that takes nothing, so that emptying the queues comes to an end. */
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog filter = {1, &nothing};
    for (int i = 0; i < port_count; i++)
        if (setsockopt(ports[i].socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter)) err(2, "filter");
    int64_t end_ns = now_ns();
    for (int i = 0; i < port_count; i++)
        while (read_port(i)) continue;
    release_due(INT64_MAX);
    write_log(log, end_ns);
    if (ferror(log) || fclose(log) != 0) err(2, "%s", argv[2]);
    puts("done");
    return 0;
}
