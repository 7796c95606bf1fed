/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A tap: frames that arrive at one interface leave at another one, and copies of them at the mirrors. Each direction
 * has its own instances of `plain` and `copy` (or `record`), and each mirror has one instance of `mirror` for each
 * direction. The instances differ only in their `orders` and maps.
 *
 *   arrives -> copy --> peer                       the frame itself, never changed
 *                   \-> mirror (per copy): cut, trailer, new destination -> its interface
 *                   \-> rings (rings.h), for a process that writes them to a file
 *
 * The peer is the last exit, because the kernel clones the frame for every exit but the last. Only `handed` and
 * `refused` see whether a frame was sent or dropped behind this program; they run at tracepoints of the kernel.
 * layout/tap.h states the offsets that user space uses; wire/src/trailer.rs describes the trailer.
 */
#include "rings.h"

#define MIRRORS 8u
/*
 * A clone must fit into a memory page, together with its headroom and the kernel's own data. Longer frames are
 * forwarded and not copied.
 */
#define LONGEST_COPY 3500u
#define TRAILER 24u

#define BROADCAST (1u << 3)

static long (*bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static long (*bpf_redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*bpf_xdp_adjust_meta)(struct xdp_md *ctx, int delta) = (void *)54;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static u64 (*bpf_ktime_get_tai_ns)(void) = (void *)208;

struct orders {
	u32 book;	/* index of its counters in `books` */
	u32 direction;
	u32 mirrors;	/* for a direction: number of exits besides the peer */
	u32 capture;	/* for a direction: maximum number of bytes of a frame in the rings */
	u32 snap;	/* for a mirror: maximum number of bytes of a frame in a copy */
	u32 longest;	/* for a mirror: length of the longest copy that its interface can send */
	u32 trailer;
	u32 rewrite;	/* for a mirror: whether copies get station[0] as their destination */
	u64 offset;	/* what to add to the kernel's TAI clock for the time since 1970, ns */
	u64 station[MIRRORS];	/* MAC addresses to which copies are sent, 0 for none */
};

/* Counters of a direction. Each processor has its own values of all counters in this file. */
struct inbound {
	u64 received, bytes;
	u64 gone;	/* not forwarded: the peer's interface no longer exists */
	u64 own;	/* forwarded, not copied: sent to a station that gets copies */
	u64 too_long;	/* forwarded, not copied */
	u64 other;	/* forwarded, not copied: no match with the filter, or no mirrors */
	u64 wanted;	/* handed to the peer and to all mirrors */
	u64 unnoted;	/* `wanted`, but without a note, so that no trailer can be made */
};

/* Counters of a mirror for one direction. */
struct outbound {
	u64 passed, bytes;
	u64 too_long;	/* for the mirror's interface */
	u64 no_room;	/* no space in the frame to make the copy with its trailer */
	u64 rest[4];
};

/* Facts for the trailer: the metadata in front of a frame, from its arrival to its copies. */
struct note {
	u64 time;
	u64 number;
};

MAP(orders);
MAP(books);
MAP(numbers);
MAP(peer);
MAP(exits);
MAP(rings);

/* Settings and counters of this instance. Both always exist; only the verifier needs the checks. */
INLINE struct orders *own_orders(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&orders, &zero);
}

INLINE void *own_book(const struct orders *o)
{
	return o ? bpf_map_lookup_elem(&books, &o->book) : 0;
}

INLINE int forward(struct inbound *book)
{
	int answer = bpf_redirect_map(&peer, 0, XDP_DROP);
	if (UNLIKELY(answer != XDP_REDIRECT))
		book->gone += 1;
	return answer;
}

/* Gets the frames that do not match the filter and, in a tap without mirrors, all frames. */
SEC("plain")
int on_plain(struct xdp_md *ctx)
{
	struct orders *o = own_orders();
	struct inbound *book = own_book(o);
	if (!book)
		return XDP_ABORTED;
	book->received += 1;
	book->bytes += bpf_xdp_get_buff_len(ctx);
	book->other += 1;
	return forward(book);
}

/*
 * Whether the frame is for a station that gets copies. It may then be a copy that a switch has sent back, and copying
 * it again would make a loop.
 */
INLINE int is_own(struct xdp_md *ctx, const struct orders *o)
{
	u8 *frame = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (!o->station[0] || frame + 8 > end)
		return 0;
	u64 to = *(u64 *)frame & 0xffffffffffffull;
#pragma unroll
	for (u32 i = 0; i < MIRRORS; i++)
		if (to == o->station[i])
			return 1;
	return 0;
}

INLINE void keep(struct xdp_md *ctx, u32 snap)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct ring *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct settings s = { .snap = snap };
	if (ring)
		put_frame(ctx, ring, &s, bpf_ktime_get_ns());
}

INLINE int note(struct xdp_md *ctx, u32 direction)
{
	u64 *number = bpf_map_lookup_elem(&numbers, &direction);
	if (!number || bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct note)))
		return 0;
	struct note *note = (void *)(long)ctx->data_meta;
	if ((void *)(note + 1) > (void *)(long)ctx->data)
		return 0;
	note->time = bpf_ktime_get_tai_ns();
	note->number = __sync_fetch_and_add(number, 1) + 1;
	return 1;
}

INLINE int forward_and_copy(struct xdp_md *ctx, int records)
{
	struct orders *o = own_orders();
	struct inbound *book = own_book(o);
	if (!book)
		return XDP_ABORTED;
	u32 len = bpf_xdp_get_buff_len(ctx);
	book->received += 1;
	book->bytes += len;
	if (UNLIKELY(is_own(ctx, o))) {
		book->own += 1;
		return forward(book);
	}
	if (records)
		keep(ctx, o->capture);
	if (!o->mirrors)
		return forward(book);
	if (UNLIKELY(len > LONGEST_COPY)) {
		book->too_long += 1;
		return forward(book);
	}
	book->wanted += 1;
	if (o->trailer && UNLIKELY(!note(ctx, o->direction)))
		book->unnoted += 1;
	/*
	 * The kernel clones the frame for every exit but the last. If one clone fails, the whole redirect
	 * fails: LONGEST_COPY prevents this.
	 */
	return bpf_redirect_map(&exits, 0, BROADCAST);
}

SEC("copy")
int on_copy(struct xdp_md *ctx)
{
	return forward_and_copy(ctx, 0);
}

/* As on_copy, but it also writes the frames into the rings. */
SEC("record")
int on_record(struct xdp_md *ctx)
{
	return forward_and_copy(ctx, 1);
}

/*
 * Runs at the peer's exit if frames carry notes, and removes them: otherwise the receiver could not merge packets
 * (GRO), because their metadata differ.
 */
SEC("bare")
int on_bare(struct xdp_md *ctx)
{
	bpf_xdp_adjust_meta(ctx, sizeof(struct note));
	return XDP_PASS;
}

struct trailer {
	u8 mark[4];
	u8 direction, zero;
	u16 full_len;
	u64 number, time;
};

INLINE int put_trailer(struct xdp_md *ctx, const struct orders *o, const struct note *note, u32 full, u32 at)
{
	struct trailer t = {
		.mark = { 'p', 'r', 'T', '1' },
		.direction = o->direction,
		.full_len = __builtin_bswap16(full),
		.number = __builtin_bswap64(note->number),
		.time = __builtin_bswap64(note->time + o->offset),
	};
	return bpf_xdp_store_bytes(ctx, at, &t, sizeof(t)) == 0;
}

#define PIECE 128u

/*
 * Makes space for the trailer in a frame without free memory behind it: moves its first `kept` bytes into the headroom,
 * so that the trailer can follow them. A clone has free memory behind it. But if the kernel skips the peer, the last
 * mirror gets the frame itself, in the memory of the driver that received it.
 */
INLINE int move_forward(struct xdp_md *ctx, u32 kept)
{
	u8 piece[PIECE];
	if (bpf_xdp_adjust_head(ctx, -(int)TRAILER))
		return 0;
	for (u32 at = 0; at < LONGEST_COPY; at += PIECE) {
		u32 len = kept - at;
		if (at >= kept)
			break;
		if (len > PIECE)
			len = PIECE;
		/* `len` is already from 1 to PIECE, but the verifier must see it. */
		len -= 1;
		PIN(len);
		len = (len & (PIECE - 1)) + 1;
		if (bpf_xdp_load_bytes(ctx, at + TRAILER, piece, len) || bpf_xdp_store_bytes(ctx, at, piece, len))
			return 0;
	}
	return 1;
}

/* Changes the length of a frame from `full` to `total` bytes; its first `kept` bytes stay. */
INLINE int resize(struct xdp_md *ctx, u32 full, u32 kept, u32 total)
{
	if (total == full || !bpf_xdp_adjust_tail(ctx, (int)total - (int)full))
		return 1;
	if (total < full || !move_forward(ctx, kept))
		return 0;
	return kept == full || !bpf_xdp_adjust_tail(ctx, (int)kept - (int)full);
}

SEC("mirror")
int on_mirror(struct xdp_md *ctx)
{
	struct orders *o = own_orders();
	struct outbound *book = own_book(o);
	if (!book)
		return XDP_ABORTED;
	struct note note = {};
	if (o->trailer) {
		struct note *noted = (void *)(long)ctx->data_meta;
		if ((void *)(noted + 1) > (void *)(long)ctx->data) {
			book->no_room += 1;
			return XDP_DROP;
		}
		note = *noted;
		bpf_xdp_adjust_meta(ctx, sizeof(note));
	}
	u32 full = bpf_xdp_get_buff_len(ctx), kept = full;
	if (kept > o->snap)
		kept = o->snap;
	u32 total = o->trailer ? kept + TRAILER : kept;
	if (total > o->longest) {
		book->too_long += 1;
		return XDP_DROP;
	}
	if (!resize(ctx, full, kept, total)) {
		book->no_room += 1;
		return XDP_DROP;
	}
	if (o->trailer && !put_trailer(ctx, o, &note, full, kept)) {
		book->no_room += 1;
		return XDP_DROP;
	}
	u8 *frame = (void *)(long)ctx->data;
	if (o->rewrite && frame + 6 <= (u8 *)(long)ctx->data_end)
		__builtin_memcpy(frame, o->station, 6);
	book->passed += 1;
	book->bytes += total;
	return XDP_PASS;
}

/*
 * Settings of the tracepoint programs: the interfaces of the tap, and the offsets at which this kernel stores the
 * number and the namespace of an interface (from its BTF).
 */
struct places {
	u32 number_at;	/* offset of the interface number in struct net_device */
	u32 net_at;	/* offset of the namespace pointer in struct net_device */
	u32 space_at;	/* offset of the namespace number in struct net */
	u32 space;	/* namespace number of the tap */
	u32 index[2 + MIRRORS];	/* interface numbers of the two sides, then of the mirrors; 0 for none */
	u32 book;	/* index of the counters of the first side's first exit; all other exits follow */
	u32 failures;	/* index of the counters of the first side's failed redirects; the second side follows */
};

struct handed_book {
	u64 sent, dropped;
	u64 rest[6];
};

struct failures {
	u64 down, too_long, memory, other;
	u64 deaf;	/* the peer accepts no redirected frames */
	u64 rest[3];
};

MAP(places);

/* Position of a device in `index`; negative if it is none of the first `most` interfaces of the tap. */
INLINE int place_of(const struct places *p, u64 device, u32 most)
{
	u32 number = 0;
	if (bpf_probe_read_kernel(&number, 4, (void *)(device + p->number_at)) || !number)
		return -1;
#pragma unroll
	for (u32 i = 0; i < 2 + MIRRORS; i++)
		if (i < most && p->index[i] == number)
			return i;
	return -1;
}

INLINE int is_here(const struct places *p, u64 device)
{
	u64 net = 0;
	u32 space = 0;
	return !bpf_probe_read_kernel(&net, 8, (void *)(device + p->net_at)) &&
	       !bpf_probe_read_kernel(&space, 4, (void *)(net + p->space_at)) && space == p->space;
}

/* Arguments of the tracepoint xdp_devmap_xmit: from device, to device, frames sent, frames dropped, error. */
SEC("handed")
int on_handed(const u64 *args)
{
	u32 zero = 0;
	struct places *p = bpf_map_lookup_elem(&places, &zero);
	if (!p)
		return 0;
	int from = place_of(p, args[0], 2);
	if (from < 0)
		return 0;
	int to = place_of(p, args[1], 2 + MIRRORS);
	/* Tracepoints fire for all namespaces, and interface numbers are not unique across them. */
	if (to < 0 || !is_here(p, args[0]))
		return 0;
	u32 at = p->book + (u32)from * (2 + MIRRORS) + (u32)to;
	struct handed_book *book = bpf_map_lookup_elem(&books, &at);
	if (!book)
		return 0;
	book->sent += (u32)args[2];
	book->dropped += (u32)args[3];
	return 0;
}

/* Arguments of the tracepoint xdp_redirect_err: device, program, target, error, and others. */
SEC("refused")
int on_refused(const u64 *args)
{
	u32 zero = 0;
	struct places *p = bpf_map_lookup_elem(&places, &zero);
	if (!p)
		return 0;
	int from = place_of(p, args[0], 2);
	if (from < 0 || !is_here(p, args[0]))
		return 0;
	u32 at = p->failures + (u32)from;
	struct failures *book = bpf_map_lookup_elem(&books, &at);
	if (!book)
		return 0;
	/* ENETDOWN, EMSGSIZE, ENOMEM, EOPNOTSUPP: errors of the kernel before it calls the driver. */
	int error = -(int)args[3];
	if (error == 100)
		book->down += 1;
	else if (error == 90)
		book->too_long += 1;
	else if (error == 12)
		book->memory += 1;
	else if (error == 95)
		book->deaf += 1;
	else
		book->other += 1;
	return 0;
}

#include "layout/tap.h"

char licence[] SEC("license") = "Dual BSD/GPL";
