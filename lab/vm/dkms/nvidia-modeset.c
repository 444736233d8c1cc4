/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * nvidia-modeset as it is seen from outside: it uses nvidia. */
#include "small.h"

int init_module(void) { return nvidia_add_client() ? 0 : -ENODEV; }

void cleanup_module(void) {}

DESCRIBE;
