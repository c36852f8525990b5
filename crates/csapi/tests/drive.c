/* Writes to flash, computes on it beside it, and compares with what C computes: drive.c DEVICE BYTES */
#include "common.h"

enum { DATA = 100 << 10, ROOM = 128 << 10 };

/* CRC-32C, bit by bit. */
static u32 crc32c(const unsigned char *bytes, size_t count)
{
    u32 crc = ~0u;
    for (size_t at = 0; at < count; at++) {
        crc ^= bytes[at];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void ended(void *context, CS_STATUS status, u64 value)
{
    /* The event below orders this before the look at it. */
    u64 *told = context;
    told[0] = (u64)status;
    told[1] = value;
}

static void look_at_device(CS_DEV_HANDLE device, const char *name, u64 bytes)
{
    TapetumNamespace flash, memory, programs;
    EXPECT(CS_SUCCESS, tapetumQueryNamespace(device, TAPETUM_NAMESPACE_FLASH, &flash));
    EXPECT(CS_SUCCESS, tapetumQueryNamespace(device, TAPETUM_NAMESPACE_MEMORY, &memory));
    EXPECT(CS_SUCCESS, tapetumQueryNamespace(device, TAPETUM_NAMESPACE_PROGRAMS, &programs));
    CHECK(flash.CommandSet == 0 && memory.CommandSet == 3 && programs.CommandSet == 4);
    CHECK(flash.Size == bytes && flash.Unit == 512 && memory.Unit == 4096);

    int length = 0;
    EXPECT(CS_SUCCESS, csQueryDeviceProperties(device, &length, NULL));
    CHECK(length == sizeof(CSxProperties));
    CSxProperties properties;
    EXPECT(CS_SUCCESS, csQueryDeviceProperties(device, &length, &properties));
    CHECK(properties.NumCSEs == 1 && properties.CSE[0].NumBuiltinFunctions == programs.Size);
    CHECK(properties.FDMinMB > 0 && properties.Flags.BatchRequestsSupported && !properties.Flags.FDMIsHostVisible);

    int count = 0;
    length = 0;
    EXPECT(CS_SUCCESS, csQueryCSFList(name, &length, &count, NULL));
    CHECK(count == (int)programs.Size && length == count * (int)sizeof(CSFUniqueId));
    CSFUniqueId *functions = calloc((size_t)count, sizeof *functions);
    EXPECT(CS_SUCCESS, csQueryCSFList(name, &length, &count, functions));
    int place = 0;
    while (place < count && strcmp(functions[place].UniqueName, "crc32c") != 0)
        place++;
    CHECK(place < count);
    CSFIdInfo info;
    length = sizeof info;
    EXPECT(CS_SUCCESS, csGetCSFId(device, NULL, functions[place].GlobalId, &length, &count, &info));
    CHECK(count == 1 && info.CSFId == function(device, "crc32c"));
    free(functions);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    const u64 flash_bytes = strtoull(argv[2], NULL, 10);
    EXPECT(CS_SUCCESS, tapetumCreateCSx(argv[1], flash_bytes));
    char name[256];
    unsigned int name_length = sizeof name;
    EXPECT(CS_SUCCESS, csGetCSxFromPath(argv[1], &name_length, name));
    CHECK(name_length == strlen(name) + 1);
    CS_DEV_HANDLE device = NULL;
    EXPECT(CS_SUCCESS, csOpenCSx(name, NULL, &device));
    look_at_device(device, name, flash_bytes);

    /* Host, device memory, flash: the first half of the data at sector 16, the second at sector 1000. */
    static unsigned char data[DATA], back[ROOM];
    for (size_t at = 0; at < DATA; at++)
        data[at] = (unsigned char)(at * at >> 7 ^ at / 3);
    CS_MEM_HANDLE source = allocate(device, ROOM), input = allocate(device, ROOM), output = allocate(device, 4096);
    u64 value = 0;
    CsCopyMemRequest copying = copy(CS_COPY_TO_DEVICE, data, source, 0, DATA);
    EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&copying, NULL, NULL, NULL, NULL, &value));
    CHECK(value == DATA);
    CsStorageRequest *storing = calloc(1, sizeof *storing + sizeof(CsBlockRange));
    *storing = storage(device, CS_STORAGE_STORE_TYPE, source, 16, DATA / 1024);
    storing->u.BlockIo.NumRanges = 2;
    CsBlockRange *second = storing->u.BlockIo.Range + 1;
    *second = storing->u.BlockIo.Range[0];
    second->StartLba = 1000;
    EXPECT(CS_SUCCESS, csQueueStorageRequest(storing, NULL, NULL, NULL, NULL, &value));
    CHECK(value == DATA);

    /* Flash, device memory, host. */
    storing->u.BlockIo.Type = CS_STORAGE_LOAD_TYPE;
    storing->u.BlockIo.DevMem.MemHandle = input;
    CS_REQ_HANDLE request = (CS_REQ_HANDLE)device;
    EXPECT(CS_SUCCESS, csQueueStorageRequest(storing, NULL, NULL, NULL, &request, &value));
    CHECK(value == DATA && request == NULL);
    copying = copy(CS_COPY_FROM_DEVICE, back, input, 0, DATA);
    EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&copying, NULL, NULL, NULL, NULL, NULL));
    CHECK(memcmp(data, back, DATA) == 0);

    /* A digest of it, computed at the device. */
    CsComputeRequest *digest = compute(function(device, "crc32c"), 3);
    csHelperSetComputeArg(&digest->Args[0], CS_AFDM_TYPE, input, 0);
    csHelperSetComputeArg(&digest->Args[1], CS_32BIT_VALUE_TYPE, DATA);
    csHelperSetComputeArg(&digest->Args[2], CS_AFDM_TYPE, output, 0);
    EXPECT(CS_SUCCESS, csQueueComputeRequest(digest, NULL, NULL, NULL, NULL, &value));
    u32 crc = 0;
    copying = copy(CS_COPY_FROM_DEVICE, &crc, output, 0, sizeof crc);
    EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&copying, NULL, NULL, NULL, NULL, NULL));
    CHECK(value == sizeof crc && crc == crc32c(data, DATA));

    /* The same as a batch: load, compute, copy out. Its event tells of it. */
    CS_BATCH_HANDLE batch = NULL;
    CS_BATCH_INDEX last = 0;
    EXPECT(CS_SUCCESS, csAllocBatchRequest(CS_BATCH_SERIAL, 3, &batch));
    CsBatchRequest *entry = calloc(1, sizeof *entry + 3 * sizeof(CsComputeArg));
    entry->ReqType = CS_STORAGE_IO;
    entry->reqLength = sizeof *entry;
    entry->u.StorageIo = storage(device, CS_STORAGE_LOAD_TYPE, input, 16, DATA / 1024);
    EXPECT(CS_SUCCESS, csAddBatchEntry(batch, entry, 0, 0, &last));
    entry->ReqType = CS_QUEUE_COMPUTE;
    entry->reqLength = sizeof *entry + 3 * sizeof(CsComputeArg);
    digest->Args[1].u.Value32 = DATA / 2;
    memcpy(&entry->u.Compute, digest, sizeof *digest + 2 * sizeof(CsComputeArg));
    EXPECT(CS_SUCCESS, csAddBatchEntry(batch, entry, 0, last, &last));
    entry->ReqType = CS_COPY_AFDM;
    entry->reqLength = sizeof *entry;
    entry->u.CopyMem = copying;
    EXPECT(CS_SUCCESS, csAddBatchEntry(batch, entry, 0, last, &last));
    CHECK(last == 3);
    CS_EVT_HANDLE event = NULL;
    EXPECT(CS_SUCCESS, csCreateEvent(&event));
    for (int round = 0; round < 3; round++) {
        crc = 0;
        u64 told[2] = {99, 0};
        CsCopyMemRequest again = copy(CS_COPY_TO_DEVICE, data, source, 0, 512);
        EXPECT(CS_QUEUED, csQueueCopyMemRequest(&again, told, ended, NULL, NULL, NULL));
        EXPECT(CS_QUEUED, csQueueBatchRequest(batch, &crc, NULL, event, NULL, &value));
        CS_STATUS status;
        while ((status = csPollEvent(event, &crc)) == CS_NOT_DONE)
            ;
        EXPECT(CS_SUCCESS, status);
        EXPECT(CS_INVALID_EVENT, csPollEvent(event, NULL));
        CHECK(value == sizeof crc && crc == crc32c(data, DATA / 2));
        CHECK(told[0] == CS_SUCCESS && told[1] == 512);
    }
    EXPECT(CS_SUCCESS, csDeleteEvent(event));
    EXPECT(CS_SUCCESS, csFreeBatchRequest(batch));

    /* A function with a parameter, the level, and its reverse. */
    CsComputeRequest *compress = compute(function(device, "zstd-compress"), 4);
    csHelperSetComputeArg(&compress->Args[0], CS_32BIT_VALUE_TYPE, 1);
    csHelperSetComputeArg(&compress->Args[1], CS_AFDM_TYPE, source, 0);
    csHelperSetComputeArg(&compress->Args[2], CS_64BIT_VALUE_TYPE, DATA);
    csHelperSetComputeArg(&compress->Args[3], CS_AFDM_TYPE, input, 0);
    EXPECT(CS_SUCCESS, csQueueComputeRequest(compress, NULL, NULL, NULL, NULL, &value));
    CHECK(value > 0 && value < ROOM);
    CS_MEM_HANDLE inflated = allocate(device, ROOM);
    CsComputeRequest *inflate = compute(function(device, "zstd-decompress"), 3);
    csHelperSetComputeArg(&inflate->Args[0], CS_AFDM_TYPE, input, 0);
    csHelperSetComputeArg(&inflate->Args[1], CS_64BIT_VALUE_TYPE, value);
    csHelperSetComputeArg(&inflate->Args[2], CS_AFDM_TYPE, inflated, 0);
    EXPECT(CS_SUCCESS, csQueueComputeRequest(inflate, NULL, NULL, NULL, NULL, &value));
    CHECK(value == DATA);
    memset(back, 0, sizeof back);
    copying = copy(CS_COPY_FROM_DEVICE, back, inflated, 0, DATA);
    EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&copying, NULL, NULL, NULL, NULL, NULL));
    CHECK(memcmp(data, back, DATA) == 0);

    /* Many small copies, between which no command has the memory. */
    for (unsigned int at = 0; at < 3000; at += 3) {
        copying = copy(CS_COPY_TO_DEVICE, data + at, source, 4096 - at, 1);
        EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&copying, NULL, NULL, NULL, NULL, NULL));
    }
    copying = copy(CS_COPY_FROM_DEVICE, back, source, 0, 8192);
    EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&copying, NULL, NULL, NULL, NULL, NULL));
    for (unsigned int at = 0; at < 3000; at++)
        CHECK(back[4096 - at] == (at % 3 == 0 ? data[at] : data[4096 - at]));

    /* It is there when the device is opened again. */
    EXPECT(CS_SUCCESS, csCloseCSx(device));
    EXPECT(CS_SUCCESS, csOpenCSx(name, NULL, &device));
    input = allocate(device, ROOM);
    storing->DevHandle = device;
    storing->u.BlockIo.DevMem.MemHandle = input;
    EXPECT(CS_SUCCESS, csQueueStorageRequest(storing, NULL, NULL, NULL, NULL, NULL));
    copying = copy(CS_COPY_FROM_DEVICE, back, input, 0, DATA);
    EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&copying, NULL, NULL, NULL, NULL, NULL));
    CHECK(memcmp(data, back, DATA) == 0);
    EXPECT(CS_SUCCESS, csCloseCSx(device));
    free(storing);
    free(digest);
    free(entry);
    free(compress);
    free(inflate);
    puts("all as it should be");
    return 0;
}
