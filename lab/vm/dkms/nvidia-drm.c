/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * nvidia-drm as it is seen from outside: it uses nvidia-modeset; its parameter is shown in /sys/module. */
#include "small.h"

static bool modeset = true;
module_param(modeset, bool, 0400);

int init_module(void) { return nvidia_modeset_add_client() ? 0 : -ENODEV; }

void cleanup_module(void) {}

DESCRIBE;
