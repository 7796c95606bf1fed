/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A tap: what arrives at one interface leaves at another, and copies of it at further ones. Each direction has instances of
 * its own of `plain` and `copy`, each mirror one of `mirror` per direction; they differ in their `orders` and maps alone.
 *
 *   arrives -> copy --> peer                       the frame itself, never changed
 *                   \-> mirror (per copy): cut, trailer, new destination -> its interface
 *                   \-> rings (rings.h), for a process that writes them to a file
 *
 * The frame that is forwarded is the last of the exits, so it is the one that the kernel does not clone. What the driver makes
 * of frames handed to it is visible to `handed` and `refused` only, at the kernel's tracepoints.
 * layout/tap.h states where user space finds all this; the trailer is known to wire/src/trailer.rs.
 */
#include "rings.h"

#define MIRRORS 8u
/* A clone has to fit a page with its headroom and the kernel's notes: longer frames are forwarded and not copied. */
#define LONGEST_COPY 3500u
#define TRAILER 24u

#define BROADCAST (1u << 3)

static long (*bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static long (*bpf_redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*bpf_xdp_adjust_meta)(struct xdp_md *ctx, int delta) = (void *)54;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static u64 (*bpf_ktime_get_tai_ns)(void) = (void *)208;

struct orders {
	u32 book;	/* where it counts */
	u32 direction;
	u32 mirrors;	/* of a direction: exits besides the peer */
	u32 capture;	/* of a direction: bytes of a frame for the rings */
	u32 snap;	/* of a mirror: bytes of a frame to keep */
	u32 longest;	/* of a mirror: bytes of a copy that it takes */
	u32 trailer;
	u32 rewrite;	/* of a mirror: whether copies go to station[0] */
	u64 offset;	/* from the kernel's TAI to the time since 1970 */
	u64 station[MIRRORS];	/* of a direction: MAC addresses that copies go to, 0 for none */
};

/* Of a direction. Per processor, like all books. */
struct inbound {
	u64 received, bytes;
	u64 gone;	/* no peer any more */
	u64 own;	/* copies that came back, or frames to the logger: forwarded, not copied */
	u64 too_long;	/* forwarded, not copied */
	u64 other;	/* forwarded; the filter did not want them copied */
	u64 wanted;	/* handed to all exits */
	u64 unnoted;	/* copies without what a trailer is made of */
};

/* Of a mirror and a direction. */
struct outbound {
	u64 passed, bytes;
	u64 too_long;	/* for the mirror */
	u64 no_room;	/* for the trailer */
	u64 rest[4];
};

/* What follows a frame from its arrival to its copies, in front of it. */
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

/* What this instance is to do, and where it counts. Both always exist; the check is for the verifier. */
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

/* Frames that the filter does not want copied, and all of a tap without mirrors. */
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

/* Whether the frame is for a station that copies go to: then it may be a copy that a switch has sent back. Copying it would loop. */
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
	/* The kernel clones the frame for every exit but the last. One clone that fails makes the redirect fail, hence LONGEST_COPY. */
	return bpf_redirect_map(&exits, 0, BROADCAST);
}

SEC("copy")
int on_copy(struct xdp_md *ctx)
{
	return forward_and_copy(ctx, 0);
}

/* The same, and into the rings. */
SEC("record")
int on_record(struct xdp_md *ctx)
{
	return forward_and_copy(ctx, 1);
}

/* On the peer's exit, where frames carry notes: the station behind would not merge packets whose metadata differ. */
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
 * Makes a frame whose memory ends where it ends as long as it is to be: its first `kept` bytes are moved into the room in front of it,
 * and what follows them is for the trailer. A clone has room behind it; but where the peer is passed over, the last of the mirrors gets
 * the frame itself, in the memory that its driver gave it.
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
		/* It is from 1 to PIECE already; the verifier wants to see it. */
		len -= 1;
		PIN(len);
		len = (len & (PIECE - 1)) + 1;
		if (bpf_xdp_load_bytes(ctx, at + TRAILER, piece, len) || bpf_xdp_store_bytes(ctx, at, piece, len))
			return 0;
	}
	return 1;
}

/* Makes a frame of `full` bytes, of which `kept` are kept, as long as it is to be. */
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

/* What the tracepoint programs look for: the interfaces of the tap, and where the kernel keeps an interface's number (from its BTF). */
struct places {
	u32 number_at;	/* in struct net_device */
	u32 net_at;	/* in struct net_device */
	u32 space_at;	/* the namespace's number, in struct net */
	u32 space;	/* of the tap */
	u32 index[2 + MIRRORS];	/* the two sides, then the mirrors; 0 for none */
	u32 book;	/* of the first side's first exit; then each side's exits in the order above */
	u32 failures;	/* book of the first side's failed redirects */
};

struct handed_book {
	u64 sent, dropped;
	u64 rest[6];
};

struct failures {
	u64 down, too_long, memory, other;
	u64 deaf;	/* the peer takes no redirected frames */
	u64 rest[3];
};

MAP(places);

/* Which of the tap's interfaces a device is; negative if none. */
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

/* xdp_devmap_xmit: from, to, sent, dropped, error. */
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

/* xdp_redirect_err: device, program, target, error, ... */
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
	/* ENETDOWN, EMSGSIZE, ENOMEM, EOPNOTSUPP: the kernel's answers before it asks the driver. */
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
