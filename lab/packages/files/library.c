/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A shared library that is there to be found by its name. */
extern const char gpuops_lab_stand_in[];
__attribute__((visibility("default"))) const char gpuops_lab_stand_in[] = VERSION;
