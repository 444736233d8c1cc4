/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What every call of the library begins with: the trace, the lock, the state as it is now, the faults. */
#ifndef LIB_H
#define LIB_H
#include "abi.h"
#include "mig.h"

#define API(name) __attribute__((visibility("default"))) int name

typedef struct { State *state; int rc; } Call;

/* Each of these ends the calling function with its error. CALL serves calls without a device. */
Call call_begin(const char *name);
void call_end(Call *call);
#define CALL_RAW(name) __attribute__((cleanup(call_end))) Call call = call_begin(name)
#define CALL(name)                  \
    CALL_RAW(name);                 \
    if (call.rc) return call.rc

/* A device call: `d` says which GPU or MIG device `handle` is; device faults apply. */
typedef struct { int gpu; Gpu *g; Gi *gi; Ci *ci; } Device;
int device_find(State *state, Handle handle, Device *out);
#define DEVICE_CALL(name, handle)                          \
    CALL(name);                                            \
    Device d;                                              \
    call.rc = device_find(call.state, (handle), &d);       \
    if (call.rc) return call.rc
/* The same for calls that make sense for a whole GPU only. */
#define GPU_CALL(name, handle)     \
    DEVICE_CALL(name, handle);     \
    if (d.gi) return INVALID_ARGUMENT
int instance_find(State *state, Handle handle, Device *out);

Handle gpu_handle(unsigned gpu);
Handle mig_handle(unsigned gpu, unsigned gi, unsigned ci);
Handle gi_handle(unsigned gpu, unsigned gi);
Handle ci_handle(unsigned gpu, unsigned gi, unsigned ci);

/* Change the state under its lock: `change` gets a freshly read one and returns an NVML error. */
int change_state(int (*change)(State *state, void *argument), void *argument);
/* Privileged calls: may this process write the state, and is the fault no-permission unset? */
int check_privilege(const State *state, int gpu);

/* The error that the fault insufficient-resources or create-fails-at gives this creation; counts it down. */
int creation_fault(State *state, int gpu);
int copy_text(const char *text, char *buffer, unsigned length);
bool gpu_present(const State *state, unsigned gpu);
/* The slot of a GPU by its place in NVML's list, -1 where the list has no such place. */
int gpu_at(const State *state, unsigned index);
int library_version(char out[32]);   /* 0 where the file's name carries none */
void kernel_version(const State *state, char out[32]);
void trace(const char *name);
int unsimulated(const char *name);
#endif
