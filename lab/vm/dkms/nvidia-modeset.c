/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * nvidia-modeset as it is seen from outside: it uses nvidia, and nvidia-drm uses it. */
#include "small.h"

int nvidia_modeset_add_client(void) { return nvidia_add_client(); }
EXPORT_SYMBOL(nvidia_modeset_add_client);

int init_module(void) { return nvidia_add_client() ? 0 : -ENODEV; }

void cleanup_module(void) {}

DESCRIBE;
