/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * What the stand-in modules call of each other: so the kernel knows who uses whom. */
int nvidia_add_client(void);
