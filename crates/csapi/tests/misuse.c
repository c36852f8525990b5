/* Wrong calls, each of which is refused by name: misuse.c DEVICE BYTES. The device is there. */
#include "common.h"
#include <stdatomic.h>

/* types.rs has the same numbers. */
_Static_assert(sizeof(CsDevAFDM) == 16 && sizeof(CsMemFlags) == 12 && sizeof(CsCopyMemRequest) == 40, "sizes");
_Static_assert(sizeof(CsBlockRange) == 24 && sizeof(CsBlockIo) == 56 && sizeof(CsStorageRequest) == 72, "sizes");
_Static_assert(sizeof(CsComputeArg) == 24 && sizeof(CsComputeRequest) == 32 && sizeof(CsBatchRequest) == 80, "sizes");
_Static_assert(sizeof(CSFUniqueId) == 40 && sizeof(FDMAccess) == 16 && sizeof(CSFIdInfo) == 16, "sizes");
_Static_assert(sizeof(CSEProperties) == 52 && sizeof(CSxProperties) == 112 && sizeof(TapetumNamespace) == 24, "sizes");
_Static_assert(offsetof(CsStorageRequest, u.BlockIo.Range) == 48 && offsetof(CsBatchRequest, u) == 8, "offsets");
_Static_assert(offsetof(CsComputeRequest, Args) == 8 && offsetof(CSxProperties, Flags) == 48, "offsets");

static void without_a_device(char *there)
{
    CS_DEV_HANDLE device = NULL;
    unsigned int length = 1;
    char short_name[1], long_path[5000];
    EXPECT(CS_INVALID_ARG, csGetCSxFromPath(NULL, &length, short_name));
    EXPECT(CS_INVALID_ARG, csGetCSxFromPath(there, NULL, short_name));
    EXPECT(CS_INVALID_LENGTH, csGetCSxFromPath(there, &length, short_name));
    CHECK(length == strlen(there) + 1);
    EXPECT(CS_SUCCESS, csGetCSxFromPath(there, &length, NULL));
    EXPECT(CS_NO_SUCH_ENTITY_EXISTS, csGetCSxFromPath("/nothing/is/here", &length, NULL));
    EXPECT(CS_ENTITY_NOT_ON_DEVICE, csOpenCSx("/tmp", NULL, &device));
    EXPECT(CS_NO_SUCH_ENTITY_EXISTS, csOpenCSx("/nothing/is/here", NULL, &device));
    length = 0;
    EXPECT(CS_SUCCESS, tapetumLastError(&length, NULL));
    CHECK(length > 1);
    EXPECT(CS_INVALID_ARG, csOpenCSx("", NULL, &device));
    EXPECT(CS_INVALID_ARG, csOpenCSx(NULL, NULL, &device));
    EXPECT(CS_INVALID_ARG, csOpenCSx(there, NULL, NULL));
    memset(long_path, 'x', sizeof long_path);
    long_path[sizeof long_path - 1] = 0;
    EXPECT(CS_INVALID_ARG, csOpenCSx(long_path, NULL, &device));
    EXPECT(CS_INVALID_ARG, tapetumCreateCSx(there, 0));
    EXPECT(CS_INVALID_ARG, tapetumCreateCSx(NULL, 4096));
    CHECK(device == NULL);
    EXPECT(CS_INVALID_HANDLE, csCloseCSx(NULL));
    EXPECT(CS_INVALID_HANDLE, csCloseCSx((CS_DEV_HANDLE)(uintptr_t)0x1234));
    EXPECT(CS_INVALID_HANDLE, csCloseCSx((CS_DEV_HANDLE)UINTPTR_MAX));
}

static void of_memory(CS_DEV_HANDLE device, CS_MEM_HANDLE memory)
{
    CS_MEM_HANDLE none = NULL;
    CS_MEM_PTR mapped = NULL;
    CsMemFlags flags = {9, 0, 0};
    EXPECT(CS_INVALID_ARG, csAllocMem(device, 0, NULL, &none, NULL));
    EXPECT(CS_INVALID_ARG, csAllocMem(device, -1, NULL, &none, NULL));
    EXPECT(CS_INVALID_ARG, csAllocMem(device, 4096, NULL, NULL, NULL));
    EXPECT(CS_NOT_ENOUGH_MEMORY, csAllocMem(device, INT32_MAX, NULL, &none, NULL));
    EXPECT(CS_COULD_NOT_MAP_MEMORY, csAllocMem(device, 4096, NULL, &none, &mapped));
    EXPECT(CS_INVALID_OPTION, csAllocMem(device, 4096, &flags, &none, NULL));
    flags.FDMId = 0;
    flags.Flags = CS_FDM_FILL;
    EXPECT(CS_UNSUPPORTED, csAllocMem(device, 4096, &flags, &none, NULL));
    EXPECT(CS_INVALID_HANDLE, csAllocMem((CS_DEV_HANDLE)memory, 4096, NULL, &none, NULL));
    EXPECT(CS_UNKNOWN_MEMORY, csFreeMem(none, NULL));
    EXPECT(CS_UNKNOWN_MEMORY, csFreeMem((CS_MEM_HANDLE)device, NULL));

    char host[16] = "";
    CsCopyMemRequest request = copy(CS_COPY_TO_DEVICE, host, memory, 8190, 2);
    EXPECT(CS_SUCCESS, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    EXPECT(CS_INVALID_ARG, csQueueCopyMemRequest(NULL, NULL, NULL, NULL, NULL, NULL));
    request = copy(CS_COPY_TO_DEVICE, host, memory, 8190, 3);
    EXPECT(CS_INVALID_LENGTH, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    request = copy(CS_COPY_FROM_DEVICE, host, memory, UINT64_MAX, 2);
    EXPECT(CS_INVALID_LENGTH, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    request = copy(CS_COPY_FROM_DEVICE, host, memory, 0, 0);
    EXPECT(CS_INVALID_LENGTH, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    request = copy(CS_COPY_FROM_DEVICE, NULL, memory, 0, 2);
    EXPECT(CS_INVALID_ARG, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    request = copy((CS_MEM_COPY_TYPE)7, host, memory, 0, 2);
    EXPECT(CS_INVALID_OPTION, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    request = copy(CS_COPY_FROM_DEVICE, host, NULL, 0, 2);
    EXPECT(CS_UNKNOWN_MEMORY, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
}

static CS_STATUS run_storage(CsStorageRequest request)
{
    return csQueueStorageRequest(&request, NULL, NULL, NULL, NULL, NULL);
}

static void of_storage(CS_DEV_HANDLE device, CS_MEM_HANDLE memory, u64 flash_bytes)
{
    const CS_STORAGE_IO_TYPE load = CS_STORAGE_LOAD_TYPE;
    const u64 sectors = flash_bytes / 512;
    EXPECT(CS_SUCCESS, run_storage(storage(device, load, memory, sectors - 16, 16)));
    EXPECT(CS_INVALID_LENGTH, run_storage(storage(device, load, memory, sectors - 15, 16)));
    EXPECT(CS_INVALID_LENGTH, run_storage(storage(device, load, memory, UINT64_MAX, 1)));
    EXPECT(CS_INVALID_LENGTH, run_storage(storage(device, load, memory, 0, 17)));
    EXPECT(CS_INVALID_LENGTH, run_storage(storage(device, load, memory, 0, UINT32_MAX)));
    EXPECT(CS_INVALID_LENGTH, run_storage(storage(device, load, memory, 0, 0)));
    EXPECT(CS_INVALID_OPTION, run_storage(storage(device, (CS_STORAGE_IO_TYPE)3, memory, 0, 1)));
    EXPECT(CS_INVALID_HANDLE, run_storage(storage(NULL, load, memory, 0, 1)));
    EXPECT(CS_UNKNOWN_MEMORY, run_storage(storage(device, load, NULL, 0, 1)));
    EXPECT(CS_INVALID_ARG, csQueueStorageRequest(NULL, NULL, NULL, NULL, NULL, NULL));
    CsStorageRequest request = storage(device, load, memory, 0, 1);
    request.u.BlockIo.Range[0].NamespaceId = TAPETUM_NAMESPACE_MEMORY;
    EXPECT(CS_INVALID_OPTION, run_storage(request));
    request = storage(device, load, memory, 0, 1);
    request.u.BlockIo.DevMem.ByteOffset = 100;
    EXPECT(CS_INVALID_ARG, run_storage(request));
    request.u.BlockIo.NumRanges = 0;
    EXPECT(CS_INVALID_ARG, run_storage(request));
    request.u.BlockIo.NumRanges = INT32_MAX;
    EXPECT(CS_INVALID_ARG, run_storage(request));
    request.Mode = CS_STORAGE_FILE_IO;
    EXPECT(CS_UNSUPPORTED, run_storage(request));
}

static void of_functions(CS_DEV_HANDLE device, CS_MEM_HANDLE memory)
{
    CSFIdInfo info;
    int length = sizeof info, count = 0;
    EXPECT(CS_INVALID_FUNCTION_NAME, csGetCSFId(device, "no such function", 0, &length, &count, &info));
    EXPECT(CS_INVALID_FUNCTION_NAME, csGetCSFId(device, NULL, 1, &length, &count, &info));
    EXPECT(CS_INVALID_ARG, csGetCSFId(device, NULL, 0, &length, &count, &info));
    EXPECT(CS_INVALID_ARG, csGetCSFId(device, "crc32c", 0, &length, NULL, &info));
    EXPECT(CS_INVALID_ARG, csGetCSFId(device, "crc32c", 0, NULL, &count, &info));
    length = 3;
    EXPECT(CS_INVALID_LENGTH, csGetCSFId(device, "crc32c", 0, &length, &count, &info));
    length = -1;
    EXPECT(CS_INVALID_LENGTH, csGetCSFId(device, "crc32c", 0, &length, &count, &info));
    CHECK(length == sizeof info);
    CSxProperties properties;
    length = 8;
    EXPECT(CS_INVALID_LENGTH, csQueryDeviceProperties(device, &length, &properties));
    EXPECT(CS_INVALID_ARG, csQueryDeviceProperties(device, NULL, &properties));
    TapetumNamespace namespace;
    EXPECT(CS_INVALID_ARG, tapetumQueryNamespace(device, 0, &namespace));
    EXPECT(CS_INVALID_ARG, tapetumQueryNamespace(device, 1, NULL));

    CsComputeRequest *request = compute(function(device, "crc32c"), 3);
    csHelperSetComputeArg(&request->Args[0], CS_AFDM_TYPE, memory, 0);
    csHelperSetComputeArg(&request->Args[1], CS_32BIT_VALUE_TYPE, 4096);
    csHelperSetComputeArg(&request->Args[2], CS_AFDM_TYPE, memory, 4096);
    u64 value = 0;
    EXPECT(CS_SUCCESS, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    EXPECT(CS_INVALID_ARG, csQueueComputeRequest(NULL, NULL, NULL, NULL, NULL, &value));
    request->Args[1].u.Value32 = 4097;
    EXPECT(CS_INVALID_ARG, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value)); /* they overlap */
    request->Args[1].u.Value32 = 8193;
    EXPECT(CS_INVALID_LENGTH, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    request->Args[1].u.Value32 = 4096;
    request->Args[2].u.DevMem.ByteOffset = 8190; /* no room for the digest */
    EXPECT(CS_INVALID_LENGTH, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    CHECK(value == 4);
    request->Args[2].u.DevMem.ByteOffset = 8193;
    EXPECT(CS_INVALID_LENGTH, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    request->Args[2].u.DevMem.ByteOffset = 4096;
    request->Args[1].Type = CS_STREAM_TYPE;
    EXPECT(CS_UNSUPPORTED, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    request->Args[1].Type = 77;
    EXPECT(CS_INVALID_OPTION, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    request->Args[1].Type = CS_32BIT_VALUE_TYPE;
    request->NumArgs = -1;
    EXPECT(CS_INVALID_ARG, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    request->NumArgs = 33;
    EXPECT(CS_INVALID_ARG, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    request->NumArgs = 3;
    CS_CSF_ID ids[] = {0, UINT32_MAX, request->CSFId + 1000, request->CSFId + (1u << 16)};
    for (size_t at = 0; at < sizeof ids / sizeof *ids; at++) {
        request->CSFId = ids[at];
        EXPECT(CS_UNKNOWN_COMPUTE_FUNCTION, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    }
    /* Bytes that no frame has. */
    request->CSFId = function(device, "zstd-decompress");
    EXPECT(CS_ERROR_IN_EXECUTION, csQueueComputeRequest(request, NULL, NULL, NULL, NULL, &value));
    CHECK(value == 2);
    free(request);
}

static void of_batches_and_events(CS_DEV_HANDLE device, CS_MEM_HANDLE memory)
{
    CS_BATCH_HANDLE batch = NULL;
    CS_BATCH_INDEX index = 0;
    EXPECT(CS_UNSUPPORTED, csAllocBatchRequest(CS_BATCH_PARALLEL, 2, &batch));
    EXPECT(CS_INVALID_OPTION, csAllocBatchRequest((CS_BATCH_MODE)9, 2, &batch));
    EXPECT(CS_INVALID_ARG, csAllocBatchRequest(CS_BATCH_SERIAL, 0, &batch));
    EXPECT(CS_INVALID_ARG, csAllocBatchRequest(CS_BATCH_SERIAL, 257, &batch));
    EXPECT(CS_INVALID_ARG, csAllocBatchRequest(CS_BATCH_SERIAL, 2, NULL));
    EXPECT(CS_SUCCESS, csAllocBatchRequest(CS_BATCH_SERIAL, 2, &batch));
    EXPECT(CS_INVALID_ARG, csQueueBatchRequest(batch, NULL, NULL, NULL, NULL, NULL)); /* it is empty */
    CsBatchRequest entry;
    memset(&entry, 0, sizeof entry);
    EXPECT(CS_INVALID_ARG, csAddBatchEntry(batch, NULL, 0, 0, &index));
    EXPECT(CS_INVALID_LENGTH, csAddBatchEntry(batch, &entry, 0, 0, &index));
    entry.reqLength = sizeof entry;
    EXPECT(CS_INVALID_OPTION, csAddBatchEntry(batch, &entry, 0, 0, &index));
    entry.ReqType = CS_STORAGE_IO;
    entry.u.StorageIo = storage(device, CS_STORAGE_LOAD_TYPE, memory, 0, 1);
    entry.u.StorageIo.u.BlockIo.NumRanges = 2; /* more than the length has room for */
    EXPECT(CS_INVALID_LENGTH, csAddBatchEntry(batch, &entry, 0, 0, &index));
    entry.u.StorageIo.u.BlockIo.NumRanges = 1;
    EXPECT(CS_INVALID_OPTION, csAddBatchEntry(batch, &entry, 1, 0, &index));
    EXPECT(CS_SUCCESS, csAddBatchEntry(batch, &entry, 0, 0, &index));
    entry.u.StorageIo.u.BlockIo.Range[0].NumBlocks = 99;
    EXPECT(CS_SUCCESS, csAddBatchEntry(batch, &entry, 0, 1, NULL));
    EXPECT(CS_OUT_OF_RESOURCES, csAddBatchEntry(batch, &entry, 0, 2, NULL));
    EXPECT(CS_INVALID_LENGTH, csQueueBatchRequest(batch, NULL, NULL, NULL, NULL, NULL));
    EXPECT(CS_INVALID_ARG, csHelperReconfigureBatchEntry(batch, 0, &entry));
    EXPECT(CS_INVALID_ARG, csHelperReconfigureBatchEntry(batch, 3, &entry));
    EXPECT(CS_INVALID_ARG, csHelperResizeBatchRequest(batch, 1));
    EXPECT(CS_SUCCESS, csHelperResizeBatchRequest(batch, 9));
    entry.u.StorageIo.u.BlockIo.Range[0].NumBlocks = 1;
    EXPECT(CS_SUCCESS, csHelperReconfigureBatchEntry(batch, 2, &entry));
    EXPECT(CS_SUCCESS, csQueueBatchRequest(batch, NULL, NULL, NULL, NULL, NULL));

    CS_EVT_HANDLE event = NULL;
    EXPECT(CS_INVALID_ARG, csCreateEvent(NULL));
    EXPECT(CS_SUCCESS, csCreateEvent(&event));
    EXPECT(CS_INVALID_EVENT, csPollEvent(event, NULL));
    EXPECT(CS_SUCCESS, csDeleteEvent(event));
    EXPECT(CS_INVALID_EVENT, csDeleteEvent(event));
    EXPECT(CS_INVALID_EVENT, csPollEvent(event, NULL));
    EXPECT(CS_INVALID_EVENT, csQueueBatchRequest(batch, NULL, NULL, event, NULL, NULL));
    EXPECT(CS_SUCCESS, csFreeBatchRequest(batch));
    EXPECT(CS_INVALID_HANDLE, csFreeBatchRequest(batch));
    EXPECT(CS_INVALID_HANDLE, csQueueBatchRequest(batch, NULL, NULL, NULL, NULL, NULL));
    EXPECT(CS_UNSUPPORTED, csAbortRequest(NULL));
}

struct Closing {
    CS_DEV_HANDLE device;
    CS_STATUS in_callback;
};

static void close_within(void *context, CS_STATUS status, u64 value)
{
    struct Closing *closing = context;
    CHECK(status == CS_SUCCESS && value == 2);
    closing->in_callback = csCloseCSx(closing->device);
}

static atomic_int held, released, heard;

static void hold(void *context, CS_STATUS status, u64 value)
{
    (void)context, (void)value;
    CHECK(status == CS_SUCCESS || status == CS_DEVICE_NOT_AVAILABLE);
    atomic_fetch_add(&heard, 1);
    atomic_store(&held, 1);
    while (!atomic_load(&released))
        ;
}

/* A queue has an end, and all that is in it is told of when its device is closed. */
static void of_a_full_queue(CS_DEV_HANDLE device)
{
    char host[2] = "";
    CS_MEM_HANDLE memory = allocate(device, 4096);
    CsCopyMemRequest request = copy(CS_COPY_TO_DEVICE, host, memory, 0, 2);
    EXPECT(CS_QUEUED, csQueueCopyMemRequest(&request, NULL, hold, NULL, NULL, NULL));
    while (!atomic_load(&held))
        ;
    for (int at = 0; at < 256; at++)
        EXPECT(CS_QUEUED, csQueueCopyMemRequest(&request, NULL, hold, NULL, NULL, NULL));
    EXPECT(CS_OUT_OF_RESOURCES, csQueueCopyMemRequest(&request, NULL, hold, NULL, NULL, NULL));
    atomic_store(&released, 1);
    EXPECT(CS_SUCCESS, csCloseCSx(device));
    CHECK(atomic_load(&heard) == 257);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    without_a_device(argv[1]);
    CS_DEV_HANDLE device = NULL, second = NULL;
    EXPECT(CS_SUCCESS, csOpenCSx(argv[1], NULL, &device));
    EXPECT(CS_HANDLE_IN_USE, csOpenCSx(argv[1], NULL, &second));
    CS_MEM_HANDLE memory = allocate(device, 8192), freed = allocate(device, 4096);
    of_memory(device, memory);
    of_storage(device, memory, strtoull(argv[2], NULL, 10));
    of_functions(device, memory);
    of_batches_and_events(device, memory);

    /* What was freed or closed is known no more, also where its place was taken again. */
    EXPECT(CS_SUCCESS, csFreeMem(freed, NULL));
    CS_MEM_HANDLE next = allocate(device, 4096);
    CHECK(next != freed);
    EXPECT(CS_UNKNOWN_MEMORY, csFreeMem(freed, NULL));
    char host[2] = "";
    CsCopyMemRequest request = copy(CS_COPY_TO_DEVICE, host, freed, 0, 2);
    EXPECT(CS_UNKNOWN_MEMORY, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    struct Closing closing = {device, CS_SUCCESS};
    request = copy(CS_COPY_TO_DEVICE, host, memory, 0, 2);
    CS_EVT_HANDLE event = NULL;
    EXPECT(CS_SUCCESS, csCreateEvent(&event));
    EXPECT(CS_INVALID_OPTION, csQueueCopyMemRequest(&request, &closing, close_within, event, NULL, NULL));
    EXPECT(CS_QUEUED, csQueueCopyMemRequest(&request, &closing, close_within, NULL, NULL, NULL));
    EXPECT(CS_QUEUED, csQueueCopyMemRequest(&request, NULL, NULL, event, NULL, NULL));
    while (csPollEvent(event, NULL) == CS_NOT_DONE)
        ;
    EXPECT(CS_HANDLE_IN_USE, closing.in_callback);
    CS_CSF_ID of_closed = function(device, "crc32c");
    EXPECT(CS_SUCCESS, csCloseCSx(device));
    EXPECT(CS_INVALID_HANDLE, csCloseCSx(device));
    EXPECT(CS_INVALID_HANDLE, csAllocMem(device, 4096, NULL, &next, NULL));
    EXPECT(CS_UNKNOWN_MEMORY, csFreeMem(memory, NULL));
    EXPECT(CS_UNKNOWN_MEMORY, csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL));
    EXPECT(CS_INVALID_HANDLE, run_storage(storage(device, CS_STORAGE_LOAD_TYPE, memory, 0, 1)));

    /* An id of a function belongs to the device that gave it. */
    EXPECT(CS_SUCCESS, csOpenCSx(argv[1], NULL, &second));
    CHECK(second != device);
    memory = allocate(second, 8192);
    CsComputeRequest *digest = compute(of_closed, 3);
    csHelperSetComputeArg(&digest->Args[0], CS_AFDM_TYPE, memory, 0);
    csHelperSetComputeArg(&digest->Args[1], CS_32BIT_VALUE_TYPE, 4096);
    csHelperSetComputeArg(&digest->Args[2], CS_AFDM_TYPE, memory, 4096);
    EXPECT(CS_UNKNOWN_COMPUTE_FUNCTION, csQueueComputeRequest(digest, NULL, NULL, NULL, NULL, NULL));
    digest->CSFId = function(second, "crc32c");
    EXPECT(CS_SUCCESS, csQueueComputeRequest(digest, NULL, NULL, NULL, NULL, NULL));
    free(digest);
    of_a_full_queue(second);
    puts("all refused as they should be");
    return 0;
}
