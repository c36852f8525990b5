/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Calls of SNIA's Computational Storage API 1.0 over a Tapetum drive. Names, numbers and the order of arguments are the standard's as
 * far as they could be checked; docs/STANDARDS.md says what could not, and which calls are left out. Names that begin with tapetum
 * are not of the standard.
 *
 * Units: lengths and offsets are in bytes, where nothing else is said. An LBA is a sector of the device: tapetumQueryNamespace.
 *
 * Handles look like pointers and are numbers. A handle of something that was closed or freed is refused, and so is any other value.
 *
 * Pointers: each may be null where the call says so. Otherwise it points at as many bytes as the call uses; nobody else writes them
 * during the call. Of a request that is queued, host memory and CompValue are used until it has ended; the request itself is copied.
 *
 * Errors: a call that fails has done nothing, except a batch or a storage request of several ranges that fails at the device on its way.
 *
 * Threads: any call, on any thread. Requests of one device run one at a time. After fork(2), only the parent may use its handles.
 */
#ifndef TAPETUM_CS_H
#define TAPETUM_CS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;

typedef struct TapetumDevice *CS_DEV_HANDLE;
typedef struct TapetumMemory *CS_MEM_HANDLE;
typedef struct TapetumEvent *CS_EVT_HANDLE;
typedef struct TapetumBatch *CS_BATCH_HANDLE;
typedef struct TapetumRequest *CS_REQ_HANDLE;
typedef struct TapetumStream *CS_STREAM_HANDLE;
typedef void *CS_MEM_PTR;
typedef u32 CS_CSF_ID;
typedef u32 CS_BATCH_INDEX;

typedef enum {
    CS_SUCCESS = 0,
    CS_COULD_NOT_MAP_MEMORY = 1, /* device memory is never mapped */
    CS_DEVICE_ERROR = 2,         /* the flash or the device failed; CompValue is the errno */
    CS_DEVICE_NOT_AVAILABLE = 3, /* the drive's process is gone, or another host has the partition: close, and open again */
    CS_DEVICE_NOT_READY = 4,
    CS_DEVICE_NOT_PRESENT = 5,
    CS_ENODEV = 6,
    CS_ENTITY_NOT_ON_DEVICE = 7, /* the path is no device's */
    CS_ENXIO = 8,
    CS_ERROR_IN_EXECUTION = 9, /* the function failed; CompValue is its own status */
    CS_FATAL_ERROR = 10,       /* a defect of this library */
    CS_HANDLE_IN_USE = 11,     /* another process has the device; or a device that is closed in its own callback */
    CS_INVALID_HANDLE = 12,
    CS_INVALID_ARG = 13, /* a null pointer, a count out of bounds, an offset that is no multiple of a sector, operands that overlap */
    CS_INVALID_EVENT = 14,
    CS_INVALID_ID = 15,
    CS_INVALID_LENGTH = 16, /* a range beyond its memory or beyond flash; a buffer, or an output, that is too short */
    CS_INVALID_OPTION = 17,
    CS_INVALID_FUNCTION = 18,
    CS_INVALID_FUNCTION_NAME = 19,
    CS_IO_TIMEOUT = 20,
    CS_LOAD_ERROR = 21,
    CS_MEMORY_IN_USE = 22,
    CS_NO_PERMISSIONS = 23, /* the operating system refuses, or a store lies there and its flash is only read */
    CS_NOT_DONE = 24,
    CS_NOT_ENOUGH_MEMORY = 25,
    CS_NO_SUCH_ENTITY_EXISTS = 26,
    CS_OUT_OF_RESOURCES = 27, /* too many handles or queued requests, or a full disk */
    CS_QUEUED = 28,
    CS_UNKNOWN_MEMORY = 29,
    CS_UNKNOWN_COMPUTE_FUNCTION = 30,
    CS_UNSUPPORTED = 31
} CS_STATUS;

/* Hears of the end of a queued request, on a thread of the library. It may make any call but close its device. */
typedef void (*csQueueCallbackFn)(void *QueueContext, CS_STATUS Status, u64 CompValue);

/* ---- Devices ---- */

/* Whether a path is a device's, and the device's name: the path of a file or a block device, or of a partition of a drive in another
 * process, "drive.sock/PARTITION". Length: of the buffer DevName, then of the name with its zero. DevName may be null: Length alone. */
CS_STATUS csGetCSxFromPath(const char *Path, unsigned int *Length, char *DevName);

/* One process at a time has a device. DevContext is not used; it may be null. The handle is the caller's, to close. */
CS_STATUS csOpenCSx(const char *DevName, void *DevContext, CS_DEV_HANDLE *DevHandle);

/* Ends what is queued, and the handles of its memory. */
CS_STATUS csCloseCSx(CS_DEV_HANDLE DevHandle);

/* Makes a file, or a partition of a drive behind its socket, of so many bytes. A partition that is there stays as it is. */
CS_STATUS tapetumCreateCSx(const char *DevName, u64 Bytes);

/* Says why the last csOpenCSx, csGetCSxFromPath, csQueryCSFList or tapetumCreateCSx of this thread failed, for people. Length as above. */
CS_STATUS tapetumLastError(unsigned int *Length, char *Text);

/* What the device is in NVMe's words. */
#define TAPETUM_NAMESPACE_FLASH 1u    /* command set 0, NVM: Size in bytes, Unit the bytes of a sector */
#define TAPETUM_NAMESPACE_MEMORY 2u   /* command set 3, SLM: Size in bytes, Unit the bytes of its unit of allocation */
#define TAPETUM_NAMESPACE_PROGRAMS 3u /* command set 4, computational programs: Size is how many, Unit is 1 */

typedef struct {
    u32 Number;
    u32 CommandSet;
    u64 Size;
    u32 Unit;
    u32 Reserved;
} TapetumNamespace;

CS_STATUS tapetumQueryNamespace(CS_DEV_HANDLE DevHandle, u32 Number, TapetumNamespace *Buffer);

typedef struct {
    u16 HwVersion; /* 0 */
    u16 SwVersion; /* of the library: major number in the upper byte, minor in the lower */
    char UniqueName[32];
    u16 NumBuiltinFunctions;
    u32 MaxRequestsPerBatch;
    u32 MaxFunctionParametersAllowed;
    u32 MaxConcurrentFunctionInstances;
} CSEProperties;

typedef struct {
    u16 HwVersion; /* 0 */
    u16 SwVersion;
    u16 VendorId; /* 0: none */
    u16 DeviceId; /* 0: none */
    char FriendlyName[32];
    u32 CFMinMB; /* 0 */
    u32 FDMinMB; /* MiB that csAllocMem can give */
    struct {
        u64 FDMIsDeviceManaged : 1;
        u64 FDMIsHostVisible : 1;
        u64 BatchRequestsSupported : 1;
        u64 StreamsSupported : 1;
        u64 Reserved : 60;
    } Flags;
    u16 NumCSEs; /* 1 */
    CSEProperties CSE[1];
} CSxProperties;

/* Length: of the buffer, then of the properties. Buffer may be null: Length alone. */
CS_STATUS csQueryDeviceProperties(CS_DEV_HANDLE DevHandle, int *Length, CSxProperties *Buffer);

/* ---- Functions ---- */

typedef struct {
    char UniqueName[32]; /* zeros behind it; a name of 32 bytes has none */
    u64 GlobalId;        /* the same for this name and version on every drive */
} CSFUniqueId;

/* Functions of a device that is open in this process, or can be opened. Length and Buffer as csQueryDeviceProperties. */
CS_STATUS csQueryCSFList(const char *Path, int *Length, int *Count, CSFUniqueId *Buffer);

typedef struct {
    u64 DeviceManaged : 1;
    u64 HostVisible : 1;
    u64 ClearContentsSupported : 1;
    u64 InvalidateContentSupported : 1;
    u64 Reserved : 60;
} FDMFlags;

typedef struct {
    u32 FDMId;
    u8 RelativePerformance; /* 0: not said */
    u8 RelativePower;       /* 0: not said */
    FDMFlags Flags;
} FDMAccess;

typedef struct {
    CS_CSF_ID CSFId; /* of this handle of the device alone */
    u8 RelativePerformance; /* 0: not said */
    u8 Count;
    u8 NumFDMs;               /* 1 */
    const FDMAccess *FDMList; /* the library's, for ever */
} CSFIdInfo;

/* Functions of a name; of a null name, the one with this GlobalId. Length and Buffer as csQueryDeviceProperties. */
CS_STATUS csGetCSFId(CS_DEV_HANDLE DevHandle, const char *CSFName, u64 GlobalId, int *Length, int *Count, CSFIdInfo *Buffer);

/* ---- Device memory ---- */

typedef enum {
    CS_FDM_CLEAR = 1,
    CS_FDM_FILL = 2 /* not supported */
} CS_FDM_FLAG_TYPE;

typedef struct {
    u32 FDMId; /* 0, or that of a function's FDMList */
    u32 Flags; /* 0, or CS_FDM_CLEAR */
    u32 FillValue;
} CsMemFlags;

/* MemFlags may be null: the contents are undefined. VAddressPtr must be null. The handle is the caller's, to free. */
CS_STATUS csAllocMem(CS_DEV_HANDLE DevHandle, int Bytes, const CsMemFlags *MemFlags, CS_MEM_HANDLE *MemHandle,
                     CS_MEM_PTR *VAddressPtr);

/* MemFlags is not used. Queued requests that name the memory fail. */
CS_STATUS csFreeMem(CS_MEM_HANDLE MemHandle, const CsMemFlags *MemFlags);

typedef struct {
    CS_MEM_HANDLE MemHandle;
    u64 ByteOffset;
} CsDevAFDM;

/* ---- Requests ----
 *
 * CallbackFn and EventHandle null: the call returns when the request has ended, with its status. One of them given: the call returns
 * CS_QUEUED, and the callback or the event hears of the end; a status other than CS_QUEUED says that nothing was queued. Both given:
 * CS_INVALID_OPTION. ReqHandle may be null; it is set to null, as no request can be aborted. CompValue may be null. It is bytes moved, or
 * bytes of a function's output; of a failure see CS_STATUS. */

typedef enum { CS_COPY_TO_DEVICE = 1, CS_COPY_FROM_DEVICE = 2 } CS_MEM_COPY_TYPE;

typedef struct {
    CS_MEM_COPY_TYPE Type;
    void *HostVAddress;
    CsDevAFDM DevMem;
    unsigned int Bytes;
} CsCopyMemRequest;

CS_STATUS csQueueCopyMemRequest(const CsCopyMemRequest *CopyReq, void *Context, csQueueCallbackFn CallbackFn,
                                CS_EVT_HANDLE EventHandle, CS_REQ_HANDLE *ReqHandle, u64 *CompValue);

typedef enum { CS_STORAGE_BLOCK_IO = 1, CS_STORAGE_FILE_IO = 2 /* not supported */ } CS_STORAGE_REQ_MODE;
typedef enum { CS_STORAGE_LOAD_TYPE = 1, CS_STORAGE_STORE_TYPE = 2 } CS_STORAGE_IO_TYPE;

typedef struct {
    u32 NamespaceId; /* TAPETUM_NAMESPACE_FLASH */
    u64 StartLba;    /* sectors */
    u32 NumBlocks;   /* sectors */
} CsBlockRange;

/* Ranges of flash, which lie in device memory one behind the other, from a multiple of a sector on. */
typedef struct {
    CS_STORAGE_IO_TYPE Type;
    u32 StorageIndex; /* 0 */
    CsDevAFDM DevMem;
    int NumRanges; /* 1 to 128; room for more than one is behind the request */
    CsBlockRange Range[1];
} CsBlockIo;

typedef struct {
    CS_STORAGE_IO_TYPE Type;
    void *FileHandle;
    u64 Offset;
    u32 Bytes;
    CsDevAFDM DevMem;
} CsFileIo;

typedef struct {
    CS_STORAGE_REQ_MODE Mode;
    CS_DEV_HANDLE DevHandle;
    union {
        CsBlockIo BlockIo;
        CsFileIo FileIo;
    } u;
} CsStorageRequest;

/* A load reads flash into device memory. A store that has ended with success is durable. */
CS_STATUS csQueueStorageRequest(const CsStorageRequest *Req, void *Context, csQueueCallbackFn CallbackFn,
                                CS_EVT_HANDLE EventHandle, CS_REQ_HANDLE *ReqHandle, u64 *CompValue);

typedef enum {
    CS_AFDM_TYPE = 1,
    CS_32BIT_VALUE_TYPE = 2,
    CS_64BIT_VALUE_TYPE = 3,
    CS_STREAM_TYPE = 4,    /* not supported */
    CS_DESCRIPTOR_TYPE = 5 /* not supported */
} CS_COMPUTE_ARG_TYPE;

typedef struct {
    u32 Type; /* CS_COMPUTE_ARG_TYPE */
    union {
        CsDevAFDM DevMem;
        u64 Value64;
        u32 Value32;
        CS_STREAM_HANDLE StreamHandle;
    } u;
} CsComputeArg;

/* Arguments by place. The last memory is the output, up to three before it are inputs; all together they are of at most three memories,
 * and the output overlaps no input. A value right behind a memory is its length; without one it goes to the memory's end. All other
 * values are the function's parameters, little endian. */
typedef struct {
    CS_CSF_ID CSFId;
    int NumArgs; /* 1 to 32; room for more than one is behind the request */
    CsComputeArg Args[1];
} CsComputeRequest;

CS_STATUS csQueueComputeRequest(const CsComputeRequest *Req, void *Context, csQueueCallbackFn CallbackFn,
                                CS_EVT_HANDLE EventHandle, CS_REQ_HANDLE *ReqHandle, u64 *CompValue);

/* Sets an argument. csHelperSetComputeArg(&req->Args[0], CS_AFDM_TYPE, memory, byte_offset);
 * csHelperSetComputeArg(&req->Args[1], CS_32BIT_VALUE_TYPE, value). A macro, so that a number of any width may be given. */
#define csHelperSetComputeArg(ArgPtr, Type, ...) TAPETUM_SET_ARG_(ArgPtr, Type, __VA_ARGS__, 0, 0)
#define TAPETUM_SET_ARG_(ArgPtr, Type, First, Second, ...) \
    tapetumSetComputeArg((ArgPtr), (Type), (u64)(First), (u64)(Second))

static inline void tapetumSetComputeArg(CsComputeArg *Arg, CS_COMPUTE_ARG_TYPE Type, u64 First, u64 Second)
{
    Arg->Type = (u32)Type;
    Arg->u.DevMem.MemHandle = NULL;
    Arg->u.DevMem.ByteOffset = 0;
    switch (Type) {
    case CS_AFDM_TYPE:
        Arg->u.DevMem.MemHandle = (CS_MEM_HANDLE)(uintptr_t)First;
        Arg->u.DevMem.ByteOffset = Second;
        break;
    case CS_32BIT_VALUE_TYPE:
        Arg->u.Value32 = (u32)First;
        break;
    default:
        Arg->u.Value64 = First;
        break;
    }
}

/* CS_UNSUPPORTED. */
CS_STATUS csAbortRequest(CS_REQ_HANDLE ReqHandle);

/* ---- Batches: requests of one device that run in their order ---- */

typedef enum {
    CS_BATCH_SERIAL = 1,
    CS_BATCH_PARALLEL = 2, /* not supported */
    CS_BATCH_HYBRID = 3    /* not supported */
} CS_BATCH_MODE;

typedef enum { CS_COPY_AFDM = 1, CS_STORAGE_IO = 2, CS_QUEUE_COMPUTE = 3 } CS_BATCH_REQ_TYPE;

typedef struct {
    u32 ReqType;   /* CS_BATCH_REQ_TYPE */
    u32 reqLength; /* bytes of the whole request, with ranges or arguments behind it */
    union {
        CsCopyMemRequest CopyMem;
        CsStorageRequest StorageIo;
        CsComputeRequest Compute;
    } u;
} CsBatchRequest;

/* MaxReqs: 1 to 256. The handle is the caller's, to free. */
CS_STATUS csAllocBatchRequest(CS_BATCH_MODE Mode, int MaxReqs, CS_BATCH_HANDLE *BatchHandle);

/* May be freed at once after it was queued. */
CS_STATUS csFreeBatchRequest(CS_BATCH_HANDLE BatchHandle);

/* Copies a request to the end of the batch. Before is 0; After is 0, or the index of the last entry. Curr is set to its index, from 1; it may be null. */
CS_STATUS csAddBatchEntry(CS_BATCH_HANDLE BatchHandle, const CsBatchRequest *Req, CS_BATCH_INDEX Before,
                          CS_BATCH_INDEX After, CS_BATCH_INDEX *Curr);

CS_STATUS csHelperReconfigureBatchEntry(CS_BATCH_HANDLE BatchHandle, CS_BATCH_INDEX Entry, const CsBatchRequest *Req);

CS_STATUS csHelperResizeBatchRequest(CS_BATCH_HANDLE BatchHandle, int MaxReqs);

/* All requests are checked before the first runs; the first that fails ends the batch. CompValue is the last request's. Loads, and the
 * computes behind them, go to the drive as one command. The batch may be queued again. */
CS_STATUS csQueueBatchRequest(CS_BATCH_HANDLE BatchHandle, void *Context, csQueueCallbackFn CallbackFn,
                              CS_EVT_HANDLE EventHandle, CS_REQ_HANDLE *ReqHandle, u64 *CompValue);

/* ---- Events ---- */

CS_STATUS csCreateEvent(CS_EVT_HANDLE *EventHandle);

/* Requests that it was to tell of go on. */
CS_STATUS csDeleteEvent(CS_EVT_HANDLE EventHandle);

/* How the first request ended that has, of those queued with this event and this Context; of a null Context, of all of them. It is told
 * once. CS_NOT_DONE: none has ended yet. CS_INVALID_EVENT: no such event, or nothing is queued. */
CS_STATUS csPollEvent(CS_EVT_HANDLE EventHandle, void *Context);

#ifdef __cplusplus
}
#endif

#endif
