/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Parses headers for the flow meter. Of a plain frame it writes into a ring (rings.h) only the few fields that a flow
 * is made of (`struct header`). Of any other frame it writes the beginning, and user space parses it.
 *
 * A plain frame is: Ethernet with at most two VLAN tags, IPv4 without options or IPv6 without extension headers,
 * complete and not a fragment, with TCP, UDP, SCTP, ICMP or ICMPv6 inside, but not to a UDP port of a tunnel. User
 * space gets the same result from a plain frame as from the fields that are written here; a test compares them.
 * layout/meter.h states the offsets at which src/parse/unified.rs of `flow` reads `struct header`.
 */
#include "rings.h"

#define TCP 6
#define UDP 17
#define SCTP 132
#define ICMP 1
#define ICMPV6 58
#define VXLAN 4789
#define GENEVE 6081
#define GTP 2152

struct header {
	u8 version;
	u8 protocol;
	u8 tcp_flags;
	u8 ttl;
	u8 tos;
	u8 zero;
	u16 bytes;	/* of the IP packet, as its header states */
	u16 source_port;
	u16 destination_port;
	u16 vlan;
	u16 inner_vlan;
	u8 macs[12];	/* destination and source, as in the frame */
	u32 content;	/* hash of the packet, see parse/content.rs of `flow` */
	u8 addresses[];	/* source, destination: 8 bytes of IPv4, 32 of IPv6 */
};

#define HEADER_V4 40u
#define HEADER_V6 64u

#define BE16(at) __builtin_bswap16(*(const u16 *)(at))
#define BE32(at) __builtin_bswap32(*(const u32 *)(at))
#define WORD(to, from) (*(u32 *)(to) = *(const u32 *)(from))
#define LONG(to, from) (*(u64 *)(to) = *(const u64 *)(from))

MAP(settings);
MAP(rings);

/* Facts about the frame and its VLAN tags. */
struct link {
	const u8 *frame, *end;
	u64 now;
	u32 full;
	u16 vlan, inner_vlan;
};

struct transport {
	u16 source_port, destination_port;
	u8 flags;
	u32 content;
};

/* Hashes the payload of an IP packet, which has at least eight bytes. */
INLINE u32 content(const u8 *at, const u8 *end, u8 protocol, u64 identification, u32 bytes)
{
	u64 word = 0, last = 0;
	if (at + 12 <= end && bytes >= 12)
		word = BE32(at + 8);
	if (protocol != TCP && at + 16 <= end && bytes >= 16)
		last = BE32(at + 12);
	u64 first = (identification << 32 | BE32(at + 4)) * 0x9e3779b97f4a7c15ull;
	u64 second = (first ^ first >> 32 ^ (word << 32 | last)) * 0xd6e8feb86659fd93ull;
	return second >> 32;
}

/*
 * Reads the transport header at `at`. Zero if user space has to parse the frame. `bytes`: length of the
 * packet from `at` on.
 */
INLINE int read_transport(const u8 *at, const u8 *end, u8 protocol, u64 identification, u32 bytes,
	struct transport *t)
{
	if (at + 8 > end || bytes < 8)
		return 0;
	t->flags = 0;
	t->content = content(at, end, protocol, identification, bytes);
	/* As in NetFlow, ICMP type and code are in the destination port. */
	if (protocol == ICMP || protocol == ICMPV6) {
		t->source_port = 0;
		t->destination_port = BE16(at);
		return 1;
	}
	t->source_port = BE16(at);
	t->destination_port = BE16(at + 2);
	if (protocol == TCP) {
		if (at + 14 > end || bytes < 14)
			return 0;
		t->flags = at[13];
		return 1;
	}
	if (protocol == UDP)
		return t->destination_port != VXLAN && t->destination_port != GENEVE && t->destination_port != GTP;
	return protocol == SCTP;
}

INLINE struct header *begin(struct ring *ring, const struct link *l, const struct transport *t, u32 len)
{
	struct record *record = room(ring, len);
	if (!record)
		return 0;
	record->time = l->now;
	record->full_len = l->full;
	record->len = len | HEADER;
	struct header *h = (void *)(record + 1);
	h->tcp_flags = t->flags;
	h->zero = 0;
	h->source_port = t->source_port;
	h->destination_port = t->destination_port;
	h->vlan = l->vlan;
	h->inner_vlan = l->inner_vlan;
	h->content = t->content;
	LONG(h->macs, l->frame);
	WORD(h->macs + 8, l->frame + 8);
	return h;
}

INLINE void end(struct ring *ring, u32 len)
{
	PUBLISH(ring->written, sizeof(struct record) + ((len + 7u) & ~7u));
}

/* Writes the fields of an IPv4 packet. Zero if user space has to parse the frame; nonzero also if the ring was full. */
INLINE int v4(const u8 *ip, struct ring *ring, const struct link *l)
{
	struct transport t;
	/*
	 * Only packets without options (a header of five words) and without "more fragments" or a fragment offset (RFC
	 * 791): a fragment may have no ports.
	 */
	if (ip + 28 > l->end || ip[0] != 0x45 || BE16(ip + 6) & 0x3fff)
		return 0;
	/* User space has to judge a length that exceeds the frame or is too short for ports. */
	u32 total = BE16(ip + 2);
	if (total < 28 || ip - l->frame + total > l->full)
		return 0;
	if (!read_transport(ip + 20, l->end, ip[9], BE16(ip + 4), total - 20, &t))
		return 0;
	struct header *h = begin(ring, l, &t, HEADER_V4);
	if (!h)
		return 1;
	h->version = 4;
	h->protocol = ip[9];
	h->ttl = ip[8];
	h->tos = ip[1];
	h->bytes = total;
	LONG(h->addresses, ip + 12);
	end(ring, HEADER_V4);
	return 1;
}

INLINE int v6(const u8 *ip, struct ring *ring, const struct link *l)
{
	struct transport t;
	if (ip + 48 > l->end || ip[0] >> 4 != 6)
		return 0;
	u32 payload = BE16(ip + 4);
	if (payload < 8 || payload > 0xffff - 40 || ip - l->frame + 40 + payload > l->full)
		return 0;
	if (!read_transport(ip + 40, l->end, ip[6], 0, payload, &t))
		return 0;
	struct header *h = begin(ring, l, &t, HEADER_V6);
	if (!h)
		return 1;
	h->version = 6;
	h->protocol = ip[6];
	h->ttl = ip[7];
	h->tos = BE16(ip) >> 4;
	h->bytes = payload + 40;
	LONG(h->addresses, ip + 8);
	LONG(h->addresses + 8, ip + 16);
	LONG(h->addresses + 16, ip + 24);
	LONG(h->addresses + 24, ip + 32);
	end(ring, HEADER_V6);
	return 1;
}

INLINE int is_vlan(u32 type)
{
	return type == 0x8100 || type == 0x88a8 || type == 0x9100;
}

/* Writes the fields of a plain frame. Zero if the frame is not plain, so that user space has to parse it. */
INLINE int put_header(struct xdp_md *ctx, struct ring *ring, u64 now)
{
	struct link l = {
		.frame = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end, .now = now,
		.full = bpf_xdp_get_buff_len(ctx),
	};
	/* No plain frame is shorter: Ethernet and 28 bytes of IPv4. Two VLAN tags end within these bytes, too. */
	if (l.frame + 42 > l.end)
		return 0;
	const u8 *ip = l.frame + 14;
	u32 type = BE16(l.frame + 12);
	if (is_vlan(type)) {
		l.vlan = BE16(l.frame + 14) & 0xfff;
		type = BE16(l.frame + 16);
		ip = l.frame + 18;
		if (is_vlan(type)) {
			l.inner_vlan = BE16(l.frame + 18) & 0xfff;
			type = BE16(l.frame + 20);
			ip = l.frame + 22;
		}
	}
	if (type == 0x0800)
		return v4(ip, ring, &l);
	if (type == 0x86dd)
		return v6(ip, ring, &l);
	return 0;
}

SEC("xdp")
int meter(struct xdp_md *ctx)
{
	u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct ring *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	if (!ring || !s)
		return XDP_PASS;
	u64 now = bpf_ktime_get_ns();
	if (!put_header(ctx, ring, now))
		put_frame(ctx, ring, s, now);
	return answer(ctx, s);
}

#include "layout/meter.h"

char licence[] SEC("license") = "Dual BSD/GPL";
