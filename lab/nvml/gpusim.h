/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
#ifndef GPUSIM_H
#define GPUSIM_H
#include "state.h"

/* Print an error for a person and exit with status 2. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* exit with the reason if rc, an errno of state.h, is not 0 */
void check(int rc);
unsigned number(const char *text, const char *what);

void command_init(int argc, char **argv);
void command_load(const char *path);
void command_pci(const State *state);
void command_caps(void);
void command_kmsg(const State *state);
#endif
