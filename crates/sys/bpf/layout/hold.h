/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "check.h"
NUMBER(SLOTS, 4096)
FIELD(slot, at, 0)
FIELD(slot, entered, 8)
FIELD(slot, released, 16)
FIELD(slot, left, 24)
FIELD(slot, gaps, 32)
SIZE(slot, 64)
