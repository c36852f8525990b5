//! `tapetum keyspace`: makes, lists, describes, drops and renames the keyspaces of a store that no server has open.

use std::error::Error;

use tapetum::{BlockDevice, Keyspace, KeyspaceError, KeyspaceKind, KeyspaceState, Store};

use super::commands::{Outcome, creating_options, offline_options, read_store, with_store};
use super::keyspace_arguments::{DEFAULT_NAME, IndexArgument, KeyspaceCommand};
use super::queries;
use crate::cli::arguments::StoreArguments;
use crate::size;
use crate::store::store_open::OpenError;
use crate::tools::{format_check, query_rows};

pub fn run(command: KeyspaceCommand) -> Outcome {
    let done = match command {
        KeyspaceCommand::Create { index: IndexArgument::Ordered, block_device: Some(_), .. } => {
            return Err("a block device is a hashed keyspace: leave --index ordered out".into());
        }
        KeyspaceCommand::Create { name, index, block_device, group_blocks, store, creation } => {
            if name == DEFAULT_NAME {
                // Checked before anything is made.
                return Err(KeyspaceError::NameTaken { name }.to_string().into());
            }
            let block_device = block_device.map(|device| device.in_groups_of(group_blocks)).transpose()?;
            let created = with_store(&store, creating_options(&store, &creation), |store| {
                Ok(match block_device {
                    Some(device) => store.create_block_device(&name, device)?,
                    None => store.create_keyspace_of(&name, kind_of(index))?,
                })
            });
            created.and_then(|_| say(&format!("keyspace {name} was created")))
        }
        KeyspaceCommand::List { json, store } => {
            read_store(&store, |store| list(store, json)).and_then(|text| print(&text))
        }
        KeyspaceCommand::Show { name, store } => {
            read_store(&store, |store| show(store, &name)).and_then(|text| print(&text))
        }
        KeyspaceCommand::Format { name, fields: Some(fields), check, store, .. } => {
            set_format(&name, Some((&fields, check)), &store)
        }
        KeyspaceCommand::Format { name, remove: true, store, .. } => set_format(&name, None, &store),
        KeyspaceCommand::Format { name, check, store, .. } => print_format(&name, check, &store),
        KeyspaceCommand::Drop { name, yes: false, store } => {
            Err(read_store(&store, |store| why_not_dropped(store, &name))?.into())
        }
        KeyspaceCommand::Drop { name, yes: true, store } => {
            let dropped = with_store(&store, offline_options(&store), |store| Ok(store.drop_keyspace(&name)?));
            dropped.and_then(|()| {
                say(&format!(
                    "keyspace {name} was dropped, with all that was in it; its room comes back while a server serves the store"
                ))
            })
        }
        KeyspaceCommand::Resize { name, size, store } => {
            let options = offline_options(&store);
            let resized = with_store(&store, options, |store| Ok(store.resize_block_device(&name, size)?));
            resized.and_then(|()| say(&format!("{name} has {} now", size::shown(size.size_bytes()))))
        }
        KeyspaceCommand::Rename { from, to, store } => {
            let options = offline_options(&store);
            let renamed = with_store(&store, options, |store| Ok(store.rename_keyspace(&from, &to)?));
            renamed.and_then(|()| say(&format!("keyspace {from} is called {to} now")))
        }
    };
    done.map_err(of_served)
}

/// The store's keyspaces, by name.
fn list(store: &Store, json: bool) -> Result<String, Box<dyn Error>> {
    let mut keyspaces = store.count_items()?;
    keyspaces.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    if json {
        let described = keyspaces.iter().map(|(keyspace, items)| {
            serde_json::json!({
                "id": keyspace.id.0,
                "name": keyspace.name,
                "kind": keyspace.kind.to_string(),
                "state": match keyspace.state { KeyspaceState::Live => "live", KeyspaceState::Dropping => "dropping" },
                "items": items,
                "format": format_text(keyspace),
                "block_device_bytes": device_of(keyspace).map(BlockDevice::size_bytes),
                "group_blocks": device_of(keyspace).map(BlockDevice::group_blocks),
            })
        });
        return Ok(format!("{:#}\n", serde_json::Value::from_iter(described)));
    }
    let live = keyspaces.iter().filter(|(keyspace, _)| keyspace.state == KeyspaceState::Live);
    let line = |(keyspace, items): &(Keyspace, u64)| {
        let format = format_text(keyspace).map_or(String::new(), |format| format!("\t{format}"));
        let device = device_of(keyspace).map_or(String::new(), |device| format!("\t{}", device_text(device)));
        format!("{}\t{}\t{items}{device}{format}\n", keyspace.name, keyspace.kind)
    };
    Ok(live.map(line).collect())
}

/// The error for a drop without --yes: it says what would be dropped.
fn why_not_dropped(store: &Store, name: &str) -> Result<String, Box<dyn Error>> {
    let (keyspace, items) = found(store, name)?;
    let what = match device_of(&keyspace) {
        Some(device) => format!("a {}", device_text(device)),
        None if keyspace.kind == KeyspaceKind::Ordered => "an ordered keyspace".into(),
        None => format!("a {} keyspace", keyspace.kind),
    };
    let items = size::grouped(items);
    Ok(format!(
        "{name} is {what} with {items} items, which would be gone for good: give --yes to drop it; nothing was changed"
    ))
}

/// A keyspace by name, and its number of items.
fn found(store: &Store, name: &str) -> Result<(Keyspace, u64), Box<dyn Error>> {
    let id = store.keyspace(name)?.id();
    let found = store.count_items()?.into_iter().find(|(keyspace, _)| keyspace.id == id);
    Ok(found.ok_or(tapetum::Error::Keyspace(KeyspaceError::Gone))?)
}

/// The block device of a keyspace, if it is one and this version knows it.
fn device_of(keyspace: &Keyspace) -> Option<BlockDevice> {
    keyspace.block_device().ok().flatten()
}

fn device_text(device: BlockDevice) -> String {
    let size = size::shown(device.size_bytes());
    match device.group_blocks() {
        1 => format!("block device of {size}"),
        blocks => format!("block device of {size} in groups of {blocks} blocks"),
    }
}

/// The text of a format. For a format of another version, the text says that.
fn format_text(keyspace: &Keyspace) -> Option<String> {
    match keyspace.format() {
        Ok(format) => format.map(|format| format.to_string()),
        Err(refused) => Some(refused.to_string()),
    }
}

fn show(store: &Store, name: &str) -> Result<String, Box<dyn Error>> {
    let (keyspace, items) = found(store, name)?;
    let format = format_text(&keyspace).unwrap_or_else(|| "none: set one with `tapetum keyspace format`".into());
    let device = keyspace.block_device()?.map_or(String::new(), |device| {
        format!("size    {}\ngroups  {}\n", size::shown(device.size_bytes()), device.group_blocks())
    });
    // Nobody looks at the expiry of each.
    let expired = if keyspace.kind == KeyspaceKind::Ordered { ", expired ones included" } else { "" };
    Ok(format!("name    {name}\nkind    {}\n{device}items   {items}{expired}\nformat  {format}\n", keyspace.kind))
}

/// Sets a format, if `check` is set only if all items fit; or removes it.
fn set_format(name: &str, format: Option<(&str, bool)>, store: &StoreArguments) -> Outcome {
    let Some((fields, is_checked)) = format else {
        with_store(store, offline_options(store), |store| Ok(store.set_keyspace_format(name, None)?))?;
        return say(&format!("keyspace {name} has no format now"));
    };
    // Report errors in the format before the store is opened.
    let format = query_rows::format_of("FIELDS", fields).map_err(|why| match fields.trim().is_empty() {
        true => format!("{why}; --remove forgets the format"),
        false => why,
    })?;
    with_store(store, offline_options(store), |store| {
        if is_checked {
            format_check::check(&store.keyspace(name)?, &format)?;
        }
        Ok(store.set_keyspace_format(name, Some(&format))?)
    })?;
    say(&format!("records of {name} are {format}"))
}

fn print_format(name: &str, is_checked: bool, store: &StoreArguments) -> Outcome {
    let text = read_store(store, |store| {
        let keyspace = store.keyspace(name)?;
        let format = queries::kept_format(&keyspace, name)?;
        if is_checked {
            format_check::check(&keyspace, &format)?;
        }
        Ok(format!("{format}\n"))
    })?;
    print(&text)
}

pub(super) fn kind_of(index: IndexArgument) -> KeyspaceKind {
    match index {
        IndexArgument::Hashed => KeyspaceKind::Hashed,
        IndexArgument::Ordered => KeyspaceKind::Ordered,
    }
}

/// Adds to the error for a store that a server has open that keyspaces can only be changed without a server.
fn of_served(error: Box<dyn Error>) -> Box<dyn Error> {
    match error.downcast_ref() {
        Some(OpenError::Store(tapetum::OpenError::InUse { .. })) => {
            format!("{error}; keyspaces are created, listed, described, dropped and renamed while no server runs")
                .into()
        }
        _ => error,
    }
}

fn say(what: &str) -> Outcome {
    print(&format!("{what}\n"))
}

fn print(text: &str) -> Outcome {
    super::commands::print(text.as_bytes())
}
