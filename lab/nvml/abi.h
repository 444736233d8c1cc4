/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * NVML's binary interface, as far as it is simulated: error numbers, constants and structure layouts
 * (facts: NVML API reference; sizes checked against nvidia-ml-py in tests/conformance). */
#ifndef ABI_H
#define ABI_H

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, CORRUPTED_INFOROM = 14, GPU_IS_LOST = 15, RESET_REQUIRED = 16, OPERATING_SYSTEM = 17,
    LIB_RM_VERSION_MISMATCH = 18, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define VERSION_WORD(type, version) ((unsigned)(sizeof(type) | (unsigned)(version) << 24))

typedef void *Handle;   /* nvmlDevice_t, nvmlGpuInstance_t, nvmlComputeInstance_t */

typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } PciInfo;
typedef struct { char busId[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4]; } PciInfoOld;
typedef struct { unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass; char busId[32]; } PciInfoExt;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned start, size; } Placement;
typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount, jpegCount,
        ofaCount;
    unsigned long long memorySizeMB;
} GiProfileInfo;
typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount,
        jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} GiProfileInfoV2;
typedef struct {
    unsigned version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
    unsigned capabilities;
} GiProfileInfoV3;
typedef struct { Handle device; unsigned id, profileId; Placement placement; } GiInfo;
typedef struct {
    unsigned id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount,
        sharedJpegCount, sharedOfaCount;
} CiProfileInfo;
typedef struct { unsigned version; CiProfileInfo info; char name[96]; } CiProfileInfoV2;
typedef struct { unsigned version; CiProfileInfo info; char name[96]; unsigned capabilities; } CiProfileInfoV3;
typedef struct { Handle device, gpuInstance; unsigned id, profileId; } CiInfoOld;
typedef struct { Handle device, gpuInstance; unsigned id, profileId; Placement placement; } CiInfo;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount,
        gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} Attributes;
typedef struct { unsigned char clusterUuid[16]; unsigned status, cliqueId; unsigned char state; } FabricInfo;
typedef struct { unsigned version; unsigned char clusterUuid[16]; unsigned status, cliqueId; unsigned char state; unsigned healthMask; } FabricInfoV2;
typedef struct {
    unsigned version; unsigned char clusterUuid[16]; unsigned status, cliqueId; unsigned char state; unsigned healthMask;
    unsigned char healthSummary;
} FabricInfoV3;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; } ProcessInfoV1;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } ProcessInfo;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, sensorType; int temperature; } Temperature;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType, nvmlReturn;
    union { double d; unsigned ui; unsigned long long ull; } value;
} FieldValue;
#endif
