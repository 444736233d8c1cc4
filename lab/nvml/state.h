/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The simulated machine: what the kernel module and the GPUs know. It lives in one text file, so that what one
 * process changes is seen by the next. README.md describes the lines. */
#ifndef STATE_H
#define STATE_H
#include "boards.h"
#include <stdint.h>
#include <stdio.h>

enum { MAX_GPUS = 16, MAX_GIS = 8, MAX_CIS = 8, MAX_CLIENTS = 64, MAX_FAULTS = 32, MAX_NVSWITCHES = 16 };
#define DEFAULT_STATE "/var/lib/gpusim/state"
#define ALL_GPUS (-1)

typedef struct { unsigned id, profile, start, size; } Ci;
typedef struct { unsigned id, profile, start, size; unsigned ci_count; Ci cis[MAX_CIS]; } Gi;   /* profile: enum */

typedef struct {
    char name[96], uuid[96], pci[32], serial[30];
    unsigned minor, memory_mib;
    unsigned mig_capable, mig_current, mig_pending, persistence, swapped;
    /* What a driver forgets, except the mode of ECC. Clocks in MHz; locks: lowest and highest, 0 0 = not locked. */
    unsigned power_limit_mw, memory_application, graphics_application, graphics_lock[2], memory_lock[2], compute_mode;
    unsigned ecc_current, ecc_pending;
    const Board *board;
    unsigned gi_count;
    Gi gis[MAX_GIS];
} Gpu;

typedef struct {
    unsigned pid;
    int gpu, gi, ci;     /* gi, ci: -1 = the whole GPU */
    unsigned memory_mib;
    char kind;           /* C compute, G graphics, M under MPS */
    bool live;           /* counts only while /proc/PID exists */
    char name[96];
} Client;

typedef struct { char name[32]; int gpu; long value, code; } Fault;
typedef struct { char pci[32]; unsigned device; } NvSwitch;

typedef struct {
    uint64_t generation;
    char driver[32];     /* the kernel module's version, "" = not loaded; decides only where GPUSIM_STATE is set */
    unsigned fabric;     /* NVML's fabric state of boards that have one: 1 not started, 2 in progress, 3 completed */
    unsigned clique;     /* of all of them; a fabric within one machine has no cluster: the UUID is then zero */
    unsigned char cluster[16];
    unsigned gpu_count, client_count, fault_count, nvswitch_count;
    Gpu gpus[MAX_GPUS];
    Client clients[MAX_CLIENTS];
    Fault faults[MAX_FAULTS];
    NvSwitch nvswitches[MAX_NVSWITCHES];
} State;

/* All return 0 or an errno; EINVAL = a line cannot be read (state_error says which). */
const char *state_path(void);
const char *state_error(void);
int state_parse(State *state, char *text);
int state_cluster(State *state, const char *digits);   /* the fabric's UUID */
int state_read(State *state);                 /* cheap when nothing changed since `state` was read */
int state_edit(State *state, int *fd);        /* exclusive lock, then read; fd < 0 on error */
int state_commit(State *state, int fd);       /* write and unlock */
void state_abandon(int fd);
int state_create(State *state);               /* a new file, or the old one's contents replaced */
void state_print(const State *state, FILE *out);

/* The settings as they are without any program that has set them; ECC is not one of them. */
void gpu_default_settings(Gpu *gpu);
const Fault *fault_find(const State *state, const char *name, int gpu);
void fault_remove(State *state, const Fault *fault);
bool client_alive(const Client *client);
/* Is anybody on this GPU, GPU instance, compute instance (-1 = any)? */
bool is_busy(const State *state, int gpu, int gi, int ci);

/* What survives a reset of a GPU and a reload of the module (or a reboot): NVIDIA MIG User Guide, "Persistence". */
void gpu_reset(State *state, int gpu);
void module_reload(State *state);
#endif
