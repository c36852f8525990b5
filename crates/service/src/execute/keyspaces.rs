//! Keyspaces: which there are, and changes of them.

use tapetum::{BlockDevice, FrozenKeyspace, Keyspace, KeyspaceKind, KeyspaceState};
use tapetum_kernels::scan::Format;

use super::read_keyspace::KeyspaceToRead;
use super::{OpenStore, freezes};
use crate::caller::{Caller, CallerLeft};
use crate::failure::Failure;
use crate::format_check;
use crate::reply::{BlockDeviceSize, FormatRow, KeyspaceRow, Reply};
use crate::request::CreateKeyspace;

pub fn list(
    open: OpenStore<'_>,
    name: Option<&str>,
    freeze: Option<u64>,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    if let Some(id) = freeze {
        let keyspaces = freezes::find(open, id)?.keyspaces();
        let wanted =
            keyspaces.iter().map(FrozenKeyspace::entry).filter(|entry| name.is_none_or(|name| entry.name == name));
        return Ok(caller.take(Reply::Keyspaces(wanted.map(|entry| row(entry.clone(), None)).collect()))?);
    }
    let id = name.map(|name| Ok::<_, Failure>(open.keyspace(name)?.id())).transpose()?;
    let all = open.store.count_items().map_err(|error| open.failure(error))?;
    let wanted = all.into_iter().filter(|(keyspace, _)| id.is_none_or(|id| keyspace.id == id));
    Ok(caller.take(Reply::Keyspaces(wanted.map(|(keyspace, items)| row(keyspace, Some(items))).collect()))?)
}

fn row(keyspace: Keyspace, items: Option<u64>) -> KeyspaceRow {
    let format = match keyspace.format() {
        Ok(format) => format.map(|format| format.to_string()),
        // Of another version.
        Err(refused) => Some(refused.to_string()),
    };
    let device = keyspace.block_device().ok().flatten();
    KeyspaceRow {
        id: keyspace.id.0.into(),
        kind: keyspace.kind.to_string(),
        is_ordered: keyspace.kind == KeyspaceKind::Ordered,
        is_dropping: keyspace.state == KeyspaceState::Dropping,
        items,
        format,
        block_device: device
            .map(|device| BlockDeviceSize { size_bytes: device.size_bytes(), group_blocks: device.group_blocks() }),
        name: keyspace.name,
    }
}

pub fn format(
    open: OpenStore<'_>,
    keyspace: &str,
    freeze: Option<u64>,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let keyspace = KeyspaceToRead::find(open, keyspace, freeze)?;
    let (format, is_ordered) = (keyspace.format()?, keyspace.kind() == KeyspaceKind::Ordered);
    Ok(caller.take(Reply::Format(FormatRow { fields: format.map(|format| format.to_string()), is_ordered }))?)
}

pub fn create(open: OpenStore<'_>, wanted: &CreateKeyspace) -> Result<(), Failure> {
    let CreateKeyspace { name, is_ordered, block_device, may_exist } = wanted;
    let kind = if *is_ordered { KeyspaceKind::Ordered } else { KeyspaceKind::Hashed };
    let created = match block_device {
        Some(_) if *is_ordered => {
            return Err(Failure::bad("a block device is a hashed keyspace: leave --index ordered out"));
        }
        Some(BlockDeviceSize { size_bytes, group_blocks }) => {
            let device = BlockDevice::new(*size_bytes).and_then(|device| device.in_groups_of(*group_blocks));
            let device = device.map_err(|error| Failure::bad(error.to_string()))?;
            open.store.create_block_device(name, device)
        }
        None if *may_exist => open.store.keyspace_or_create_of(name, kind),
        None => open.store.create_keyspace_of(name, kind),
    };
    created.map(|_| ()).map_err(|error| open.failure(error))
}

fn parsed(fields: &str) -> Result<Format, Failure> {
    Format::parse(fields).map_err(|error| Failure::bad(format!("the format of the records: {error}")))
}

pub fn set_format(open: OpenStore<'_>, keyspace: &str, fields: Option<&str>) -> Result<(), Failure> {
    let format = fields.map(parsed).transpose()?;
    open.store.set_keyspace_format(keyspace, format.as_ref()).map_err(|error| open.failure(error))
}

pub fn check_format(open: OpenStore<'_>, keyspace: &str, fields: &str, caller: &mut dyn Caller) -> Result<(), Failure> {
    let (keyspace, format) = (KeyspaceToRead::find(open, keyspace, None)?, parsed(fields)?);
    let mut check = format_check::FormatCheck::new(&format);
    for item in keyspace.items(b"")? {
        let (key, item) = item.map_err(|error| keyspace.failure(error))?;
        check.look(key, &item);
        if check.items().is_multiple_of(4096) && caller.has_left() {
            return Err(CallerLeft.into());
        }
    }
    check.finish(&format).map_err(Failure::bad)
}

pub fn grow(open: OpenStore<'_>, name: &str, size_bytes: u64) -> Result<(), Failure> {
    let device = BlockDevice::new(size_bytes).map_err(|error| Failure::bad(error.to_string()))?;
    open.store.resize_block_device(name, device).map_err(|error| open.failure(error))
}
