//! Device memory.

use super::guarded;
use crate::handles::Handle;
use crate::library::LIBRARY;
use crate::pointers::{In, Out};
use crate::types::{CsMemFlags, CsStatus, MEMORY_CLEAR, MEMORY_KEPT};
use tapetum_drive::Identity;
use tapetum_drive::locks::whole;

/// Whether memory is to be cleared. Null flags are those of zeros.
fn is_cleared(flags: In<CsMemFlags>) -> Result<bool, CsStatus> {
    let Some(flags) = flags.read() else { return Ok(false) };
    if ![0, Identity::LOCAL_NAMESPACE].contains(&flags.fdm_id) {
        return Err(CsStatus::InvalidOption);
    }
    match flags.flags {
        MEMORY_KEPT => Ok(false),
        MEMORY_CLEAR => Ok(true),
        _ => Err(CsStatus::Unsupported),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn csAllocMem(
    device: Handle,
    bytes: i32,
    flags: In<CsMemFlags>,
    memory: Out<Handle>,
    mapped: Out<u64>,
) -> CsStatus {
    guarded(|| {
        let open = LIBRARY.device(device)?;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0 && !memory.is_null());
        let (bytes, is_cleared) = (bytes.ok_or(CsStatus::InvalidArg)?, is_cleared(flags)?);
        if !mapped.is_null() {
            return Err(CsStatus::CouldNotMapMemory);
        }
        let buffer = open.device.allocate(bytes, is_cleared).ok_or(CsStatus::NotEnoughMemory)?;
        let handle = whole(LIBRARY.memories.lock()).insert(device).ok_or(CsStatus::OutOfResources)?;
        open.device.keep(handle, buffer);
        memory.write(handle).ok_or(CsStatus::InvalidArg)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csFreeMem(memory: Handle, _flags: In<CsMemFlags>) -> CsStatus {
    guarded(|| {
        let device = whole(LIBRARY.memories.lock()).remove(memory).ok_or(CsStatus::UnknownMemory)?;
        // If the device was closed meanwhile, the memory ended with it.
        if let Ok(open) = LIBRARY.device(device) {
            open.device.free(memory);
        }
        Ok(())
    })
}
