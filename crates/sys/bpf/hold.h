/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Holds a frame back until its release time and notes when it was let go. layout/hold.h states where user space finds the notes. */
#pragma once
#include "kernel.h"

#define SLOTS 4096u

struct slot {
	u64 at;		/* its release time; zero: it was not held */
	u64 entered;	/* when it came */
	u64 released;	/* the reading of the clock that let it go */
	u64 left;	/* the next reading */
	u64 gaps;	/* OR of the times between two readings while it waited: its highest bit is that of the longest gap */
	u64 pad[3];
};

/*
 * Spins until the release time and returns the reading of the clock that reached it. The verifier walks through every iteration and
 * accepts some thousands. So while the release time is more than NEAR ns away, an iteration reads the clock 17 times and compares once.
 * At 30 ns a reading, FAR_TURNS last 1.5 ms (nothing waits longer than 1 ms, see src/hold.rs) and NEAR_TURNS 30 us.
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
		/* Only to pass time. */
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
