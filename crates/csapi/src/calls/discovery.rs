//! Devices, functions and what they are.

use super::{give, guarded};
use crate::device::Device;
use crate::handles::Handle;
use crate::library::{LAST_ERROR, LIBRARY};
use crate::opening::{OpenFailure, create, find};
use crate::pointers::{Context, Out, Text};
use crate::request::ARGUMENTS_MAX;
use crate::steps::function_id;
use crate::types::{
    CsStatus, CseProperties, CsfIdInfo, CsfUniqueId, CsxProperties, FdmAccess, NAME_BYTES, TapetumNamespace,
};
use tapetum_drive::locks::whole;
use tapetum_drive::{Env, Identity, ProgramIdentity};

const BATCHES_SUPPORTED: u64 = 1 << 2;
const FDM_CLEARS: u64 = 1 << 2;
/// The local memory of a device, as each of its functions has it.
static FDM: FdmAccess =
    FdmAccess { fdm_id: Identity::LOCAL_NAMESPACE, relative_performance: 0, relative_power: 0, flags: FDM_CLEARS };

/// Keeps the reason for `tapetumLastError`.
fn failed(failure: OpenFailure) -> CsStatus {
    LAST_ERROR.set(failure.why);
    failure.status
}

fn fixed_name(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let length = name.len().min(NAME_BYTES);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

#[unsafe(no_mangle)]
pub extern "C" fn csGetCSxFromPath(path: Text, length: Out<u32>, name: Out<u8>) -> CsStatus {
    guarded(|| {
        let mut path = path.read().ok_or(CsStatus::InvalidArg)?;
        find(&path).map_err(failed)?;
        path.push(0);
        give(&path, length, name)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csOpenCSx(name: Text, _context: Context, device: Out<Handle>) -> CsStatus {
    guarded(|| {
        let name = name.read().filter(|_| !device.is_null()).ok_or(CsStatus::InvalidArg)?;
        find(&name).map_err(failed)?;
        let opened = Device::open(&name, &Env::system()).map_err(failed)?;
        device.write(LIBRARY.add_device(opened)?).ok_or(CsStatus::InvalidArg)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csCloseCSx(device: Handle) -> CsStatus {
    guarded(|| LIBRARY.close_device(device, std::thread::current().id()))
}

/// Makes a partition, or a file. Not of the standard.
#[unsafe(no_mangle)]
pub extern "C" fn tapetumCreateCSx(name: Text, bytes: u64) -> CsStatus {
    guarded(|| {
        let name = name.read().filter(|_| bytes > 0).ok_or(CsStatus::InvalidArg)?;
        create(&name, bytes, &Env::system()).map_err(failed)
    })
}

/// Why the last device was not opened or made by this thread. Not of the standard.
#[unsafe(no_mangle)]
pub extern "C" fn tapetumLastError(length: Out<u32>, text: Out<u8>) -> CsStatus {
    guarded(|| {
        let why = LAST_ERROR.with_borrow(|why| why.bytes().chain([0]).collect::<Vec<u8>>());
        give(&why, length, text)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csQueryDeviceProperties(device: Handle, length: Out<i32>, buffer: Out<CsxProperties>) -> CsStatus {
    guarded(|| {
        let open = LIBRARY.device(device)?;
        let [_, memory, programs] = open.device.identity.namespaces();
        let mib = |bytes: u64| u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let software = software_version();
        let engine = CseProperties {
            hardware_version: 0,
            software_version: software,
            unique_name: fixed_name("tapetum"),
            built_in_functions: u16::try_from(programs.size).unwrap_or(u16::MAX),
            requests_per_batch_max: super::batches::REQUESTS_MAX as u32,
            function_parameters_max: ARGUMENTS_MAX as u32,
            concurrent_instances_max: 1,
        };
        let properties = CsxProperties {
            hardware_version: 0,
            software_version: software,
            vendor: 0,
            device: 0,
            friendly_name: fixed_name("tapetum drive"),
            cfm_mib: 0,
            // A drive in another process has more than this host's part.
            fdm_mib: mib(memory.size.min(open.device.memory_bytes())),
            flags: BATCHES_SUPPORTED,
            engine_count: 1,
            engines: [engine],
        };
        give(&[properties], length, buffer)
    })
}

/// The package's version: the major number in the upper byte, the minor one in the lower.
fn software_version() -> u16 {
    let number = |text: &str| text.parse::<u8>().map_or(0, u16::from);
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 8 | number(env!("CARGO_PKG_VERSION_MINOR"))
}

/// A namespace, by NVMe's number. Not of the standard.
#[unsafe(no_mangle)]
pub extern "C" fn tapetumQueryNamespace(device: Handle, number: u32, buffer: Out<TapetumNamespace>) -> CsStatus {
    guarded(|| {
        let open = LIBRARY.device(device)?;
        let namespaces = open.device.identity.namespaces();
        let found = namespaces.iter().find(|namespace| namespace.number == number).ok_or(CsStatus::InvalidArg)?;
        let namespace = TapetumNamespace {
            number,
            command_set: found.command_set as u32,
            size: found.size,
            unit: found.unit,
            reserved: 0,
        };
        buffer.write(namespace).ok_or(CsStatus::InvalidArg)
    })
}

fn unique_id(program: &ProgramIdentity) -> CsfUniqueId {
    CsfUniqueId { name: fixed_name(&program.name), global_id: program.unique_number() }
}

#[unsafe(no_mangle)]
pub extern "C" fn csQueryCSFList(path: Text, length: Out<i32>, count: Out<i32>, buffer: Out<CsfUniqueId>) -> CsStatus {
    guarded(|| {
        let name = path.read().filter(|_| !count.is_null()).ok_or(CsStatus::InvalidArg)?;
        let open = whole(LIBRARY.devices.lock())
            .iter()
            .find(|(_, open)| open.device.name == name)
            .map(|(_, open)| open.clone());
        let programs: Vec<_> = match open {
            Some(open) => open.device.identity.programs.iter().map(unique_id).collect(),
            None => {
                find(&name).map_err(failed)?;
                let device = Device::open(&name, &Env::system()).map_err(failed)?;
                device.identity.programs.iter().map(unique_id).collect()
            }
        };
        count.write(programs.len() as i32).ok_or(CsStatus::InvalidArg)?;
        give(&programs, length, buffer)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csGetCSFId(
    device: Handle,
    name: Text,
    global_id: u64,
    length: Out<i32>,
    count: Out<i32>,
    buffer: Out<CsfIdInfo>,
) -> CsStatus {
    guarded(|| {
        let open = LIBRARY.device(device)?;
        let name = name.read();
        if (name.is_none() && global_id == 0) || count.is_null() {
            return Err(CsStatus::InvalidArg);
        }
        let is_asked_for = |program: &&ProgramIdentity| match &name {
            Some(name) => program.name.as_bytes() == name,
            None => program.unique_number() == global_id,
        };
        let tag = open.device.limits().tag;
        let info = |program: &ProgramIdentity| CsfIdInfo {
            function: function_id(tag, program.id),
            relative_performance: 0,
            count: 1,
            fdm_count: 1,
            fdms: &FDM,
        };
        let found: Vec<_> = open.device.identity.programs.iter().filter(is_asked_for).map(info).collect();
        if found.is_empty() {
            return Err(CsStatus::InvalidFunctionName);
        }
        count.write(found.len() as i32).ok_or(CsStatus::InvalidArg)?;
        give(&found, length, buffer)
    })
}
