/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvidia-smi for the simulated machine. Like the vendor's it knows GPUs only through libnvidia-ml.so.1. */
#ifndef SMI_H
#define SMI_H
#include "abi.h"
#include <stdbool.h>
#include <stdio.h>

/* name in the struct, exported symbol, parameters */
#define NVML_CALLS(X) \
    X(init, "nvmlInit_v2", (void)) \
    X(shutdown, "nvmlShutdown", (void)) \
    X(driver_version, "nvmlSystemGetDriverVersion", (char *, unsigned)) \
    X(nvml_version, "nvmlSystemGetNVMLVersion", (char *, unsigned)) \
    X(cuda_version, "nvmlSystemGetCudaDriverVersion_v2", (int *)) \
    X(process_name, "nvmlSystemGetProcessName", (unsigned, char *, unsigned)) \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *)) \
    X(by_index, "nvmlDeviceGetHandleByIndex_v2", (unsigned, Handle *)) \
    X(name, "nvmlDeviceGetName", (Handle, char *, unsigned)) \
    X(uuid, "nvmlDeviceGetUUID", (Handle, char *, unsigned)) \
    X(serial, "nvmlDeviceGetSerial", (Handle, char *, unsigned)) \
    X(vbios, "nvmlDeviceGetVbiosVersion", (Handle, char *, unsigned)) \
    X(minor, "nvmlDeviceGetMinorNumber", (Handle, unsigned *)) \
    X(pci, "nvmlDeviceGetPciInfo_v3", (Handle, PciInfo *)) \
    X(capability, "nvmlDeviceGetCudaComputeCapability", (Handle, int *, int *)) \
    X(memory, "nvmlDeviceGetMemoryInfo_v2", (Handle, MemoryV2 *)) \
    X(temperature, "nvmlDeviceGetTemperature", (Handle, unsigned, unsigned *)) \
    X(power, "nvmlDeviceGetPowerUsage", (Handle, unsigned *)) \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", (Handle, unsigned *)) \
    X(compute_mode, "nvmlDeviceGetComputeMode", (Handle, unsigned *)) \
    X(pstate, "nvmlDeviceGetPerformanceState", (Handle, unsigned *)) \
    X(utilization, "nvmlDeviceGetUtilizationRates", (Handle, Utilization *)) \
    X(persistence, "nvmlDeviceGetPersistenceMode", (Handle, unsigned *)) \
    X(set_persistence, "nvmlDeviceSetPersistenceMode", (Handle, unsigned)) \
    X(ecc, "nvmlDeviceGetEccMode", (Handle, unsigned *, unsigned *)) \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors", (Handle, unsigned, unsigned, unsigned long long *)) \
    X(compute, "nvmlDeviceGetComputeRunningProcesses_v3", (Handle, unsigned *, ProcessInfo *)) \
    X(graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3", (Handle, unsigned *, ProcessInfo *)) \
    X(mig_mode, "nvmlDeviceGetMigMode", (Handle, unsigned *, unsigned *)) \
    X(set_mig_mode, "nvmlDeviceSetMigMode", (Handle, unsigned, unsigned *)) \
    X(mig_max, "nvmlDeviceGetMaxMigDeviceCount", (Handle, unsigned *)) \
    X(mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex", (Handle, unsigned, Handle *)) \
    X(mig_gi, "nvmlDeviceGetGpuInstanceId", (Handle, unsigned *)) \
    X(mig_ci, "nvmlDeviceGetComputeInstanceId", (Handle, unsigned *)) \
    X(attributes, "nvmlDeviceGetAttributes_v2", (Handle, Attributes *)) \
    X(gi_profile, "nvmlDeviceGetGpuInstanceProfileInfoV", (Handle, unsigned, GiProfileInfoV2 *)) \
    X(gi_placements, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", (Handle, unsigned, Placement *, unsigned *)) \
    X(gi_remaining, "nvmlDeviceGetGpuInstanceRemainingCapacity", (Handle, unsigned, unsigned *)) \
    X(gi_create, "nvmlDeviceCreateGpuInstance", (Handle, unsigned, Handle *)) \
    X(gi_create_at, "nvmlDeviceCreateGpuInstanceWithPlacement", (Handle, unsigned, const Placement *, Handle *)) \
    X(gi_destroy, "nvmlGpuInstanceDestroy", (Handle)) \
    X(gi_list, "nvmlDeviceGetGpuInstances", (Handle, unsigned, Handle *, unsigned *)) \
    X(gi_info, "nvmlGpuInstanceGetInfo", (Handle, GiInfo *)) \
    X(ci_profile, "nvmlGpuInstanceGetComputeInstanceProfileInfoV", (Handle, unsigned, unsigned, CiProfileInfoV2 *)) \
    X(ci_remaining, "nvmlGpuInstanceGetComputeInstanceRemainingCapacity", (Handle, unsigned, unsigned *)) \
    X(ci_create, "nvmlGpuInstanceCreateComputeInstance", (Handle, unsigned, Handle *)) \
    X(ci_destroy, "nvmlComputeInstanceDestroy", (Handle)) \
    X(ci_list, "nvmlGpuInstanceGetComputeInstances", (Handle, unsigned, Handle *, unsigned *)) \
    X(ci_info, "nvmlComputeInstanceGetInfo_v2", (Handle, CiInfo *)) \
    X(pci_at, "gpusimPciInfo", (unsigned, PciInfo *)) \
    X(reset, "gpusimResetGpu", (unsigned))

#define DECLARE(name, symbol, parameters) int(*name) parameters;
typedef struct {
    NVML_CALLS(DECLARE)
    const char *(*error)(int);
} Nvml;
extern Nvml nv;

enum { MAX_SELECTED = 16, MAX_LISTED = 8 };
typedef struct { unsigned index; Handle handle; PciInfo pci; char uuid[96], name[96]; } Selected;
extern Selected gpus[MAX_SELECTED];
extern unsigned gpu_count;

typedef struct { Handle handle; GiInfo info; GiProfileInfoV2 profile; } GiRow;
typedef struct { Handle handle; CiInfo info; CiProfileInfoV2 profile; } CiRow;
unsigned list_gis(Handle gpu, GiRow rows[MAX_LISTED]);   /* ascending ids */
unsigned list_cis(Handle gi, CiRow rows[MAX_LISTED]);

int exit_code(int rc);   /* an NVML error as an exit status */
int print_table(void);
int query_gpu(const char *fields, const char *format);
int query_apps(const char *fields, const char *format);
int mig_command(int argc, char **argv);
/* Leaves in `gpus` those that the comma-separated list names by index, UUID or PCI address; NULL: all. */
int select_gpus(const char *list);
#endif
