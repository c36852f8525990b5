/* What the C programs of this folder share. */
#ifndef COMMON_H
#define COMMON_H

#include "tapetum_cs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if a call ends with another status. */
#define EXPECT(Wanted, Call) expect((Wanted), (Call), #Call, __FILE__, __LINE__)
#define CHECK(Condition) \
    do { \
        if (!(Condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #Condition); \
            exit(1); \
        } \
    } while (0)

static inline void expect(CS_STATUS wanted, CS_STATUS given, const char *call, const char *file, int line)
{
    if (given == wanted)
        return;
    char why[512] = "";
    unsigned int length = sizeof why;
    tapetumLastError(&length, why);
    fprintf(stderr, "%s:%d: %s is %d instead of %d (%s)\n", file, line, call, (int)given, (int)wanted, why);
    exit(1);
}

static inline CS_MEM_HANDLE allocate(CS_DEV_HANDLE device, int bytes)
{
    CS_MEM_HANDLE memory = NULL;
    CsMemFlags flags = {0, CS_FDM_CLEAR, 0};
    EXPECT(CS_SUCCESS, csAllocMem(device, bytes, &flags, &memory, NULL));
    return memory;
}

static inline CS_CSF_ID function(CS_DEV_HANDLE device, const char *name)
{
    CSFIdInfo info;
    int length = sizeof info, count = 0;
    EXPECT(CS_SUCCESS, csGetCSFId(device, name, 0, &length, &count, &info));
    CHECK(count == 1 && length == sizeof info && info.NumFDMs == 1 && info.FDMList->FDMId == TAPETUM_NAMESPACE_MEMORY);
    return info.CSFId;
}

static inline CsCopyMemRequest copy(CS_MEM_COPY_TYPE type, void *host, CS_MEM_HANDLE memory, u64 offset, unsigned int bytes)
{
    CsCopyMemRequest request = {type, host, {memory, offset}, bytes};
    return request;
}

static inline CsStorageRequest storage(CS_DEV_HANDLE device, CS_STORAGE_IO_TYPE type, CS_MEM_HANDLE memory, u64 lba, u32 blocks)
{
    CsStorageRequest request;
    memset(&request, 0, sizeof request);
    request.Mode = CS_STORAGE_BLOCK_IO;
    request.DevHandle = device;
    request.u.BlockIo.Type = type;
    request.u.BlockIo.DevMem.MemHandle = memory;
    request.u.BlockIo.NumRanges = 1;
    request.u.BlockIo.Range[0].NamespaceId = TAPETUM_NAMESPACE_FLASH;
    request.u.BlockIo.Range[0].StartLba = lba;
    request.u.BlockIo.Range[0].NumBlocks = blocks;
    return request;
}

/* Room for a compute request with so many arguments, to be freed. */
static inline CsComputeRequest *compute(CS_CSF_ID function, int arguments)
{
    CsComputeRequest *request = calloc(1, sizeof *request + sizeof(CsComputeArg) * (size_t)arguments);
    CHECK(request != NULL);
    request->CSFId = function;
    request->NumArgs = arguments;
    return request;
}

#endif
