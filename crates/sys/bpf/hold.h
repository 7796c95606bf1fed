/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Holding a frame back until its instant, and writing down when it was let go. layout/hold.h states where user space finds it. */
#pragma once
#include "kernel.h"

#define SLOTS 4096u

struct slot {
	u64 at;		/* when it was to go; zero: it was not held */
	u64 entered;	/* when it came */
	u64 released;	/* the reading of the clock that let it go */
	u64 left;	/* the next one */
	u64 gaps;	/* times between two readings while it waited, or-ed: below a power of two only if all are */
	u64 pad[3];
};

/*
 * Turns until the instant; gives the reading that showed it. The verifier follows each turn by itself and puts up with some thousands, so the
 * first stage looks at every reading but decides once in sixteen.
 */
#define NEAR 4000ull
#define FAR_TURNS 3000
#define NEAR_TURNS 1000

#include "layout/hold.h"

INLINE u64 look(u64 before, u64 *gaps)
{
	u64 now = bpf_ktime_get_ns();
	*gaps |= now - before;
	return now;
}

INLINE u64 hold(u64 at, u64 now, u64 *gaps)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < FAR_TURNS; i++) {
		if (now + NEAR >= at)
			break;
#pragma clang loop unroll(full)
		for (int j = 0; j < 16; j++)
			bpf_ktime_get_ns();
		now = look(now, gaps);
	}
#pragma clang loop unroll(disable)
	for (int i = 0; i < NEAR_TURNS; i++) {
		if (now >= at)
			break;
		now = look(now, gaps);
	}
	return now;
}
