//! `tapetum keyspace`: makes, lists, describes, drops and renames the keyspaces of a store.

use std::error::Error;

use tapetum::{KeyspaceError, KeyspaceKind, Options};
use tapetum_service::reply::{BlockDeviceSize, KeyspaceRow};
use tapetum_service::request::{CreateKeyspace, Request};
use tapetum_service::service::Access;
use tapetum_service::size;

use super::commands::{Outcome, creating_options, offline_options};
use super::keyspace_arguments::{DEFAULT_NAME, IndexArgument, KeyspaceCommand};
use super::reach::Reached;
use crate::cli::arguments::StoreArguments;
use crate::tools::query_rows;

pub fn run(command: KeyspaceCommand) -> Outcome {
    match command {
        KeyspaceCommand::Create { index: IndexArgument::Ordered, block_device: Some(_), .. } => {
            Err("a block device is a hashed keyspace: leave --index ordered out".into())
        }
        KeyspaceCommand::Create { name, index, block_device, group_blocks, store, creation } => {
            if name == DEFAULT_NAME {
                // Checked before anything is made.
                return Err(KeyspaceError::NameTaken { name }.to_string().into());
            }
            let device = block_device.map(|device| device.in_groups_of(group_blocks)).transpose()?;
            let request = Request::CreateKeyspace(CreateKeyspace {
                name: name.clone(),
                is_ordered: kind_of(index) == KeyspaceKind::Ordered,
                block_device: device.map(|device| BlockDeviceSize {
                    size_bytes: device.size_bytes(),
                    group_blocks: device.group_blocks(),
                }),
                may_exist: false,
            });
            let created = change(&store, &creating_options(&store, &creation), request);
            created.and_then(|()| say(&format!("keyspace {name} was created")))
        }
        KeyspaceCommand::List { json, freeze, store } => {
            let keyspaces = Reached::for_reading(&store)?.at(freeze.freeze).keyspaces(None)?;
            print(&list(keyspaces, json))
        }
        KeyspaceCommand::Show { name, store } => print(&show(&found(&store, &name)?)),
        KeyspaceCommand::Format { name, fields: Some(fields), check, store, .. } => {
            set_format(&name, Some((&fields, check)), &store)
        }
        KeyspaceCommand::Format { name, remove: true, store, .. } => set_format(&name, None, &store),
        KeyspaceCommand::Format { name, check, store, .. } => print_format(&name, check, &store),
        KeyspaceCommand::Drop { name, yes: false, store } => Err(why_not_dropped(&found(&store, &name)?).into()),
        KeyspaceCommand::Drop { name, yes: true, store } => {
            change(&store, &offline_options(&store), Request::DropKeyspace { name: name.clone() })?;
            say(&format!(
                "keyspace {name} was dropped, with all that was in it; its room comes back while a server serves the store"
            ))
        }
        KeyspaceCommand::Resize { name, size, store } => {
            let size_bytes = size.size_bytes();
            change(&store, &offline_options(&store), Request::GrowBlockDevice { name: name.clone(), size_bytes })?;
            say(&format!("{name} has {} now", size::shown(size_bytes)))
        }
        KeyspaceCommand::Rename { from, to, store } => {
            let request = Request::RenameKeyspace { from: from.clone(), to: to.clone() };
            change(&store, &offline_options(&store), request)?;
            say(&format!("keyspace {from} is called {to} now"))
        }
    }
}

/// Asks for a change, and makes it durable.
fn change(store: &StoreArguments, options: &Options, request: Request) -> Outcome {
    let mut reached = Reached::new(store, options, Access::Write)?;
    let done = reached.gather(request).map(|_| ());
    reached.close(done)
}

/// The keyspaces, by name.
fn list(mut keyspaces: Vec<KeyspaceRow>, json: bool) -> String {
    keyspaces.sort_by(|one, other| one.name.cmp(&other.name));
    if json {
        let described = keyspaces.iter().map(|keyspace| {
            serde_json::json!({
                "id": keyspace.id,
                "name": keyspace.name,
                "kind": keyspace.kind,
                "state": if keyspace.is_dropping { "dropping" } else { "live" },
                "items": keyspace.items,
                "format": keyspace.format,
                "block_device_bytes": keyspace.block_device.map(|device| device.size_bytes),
                "group_blocks": keyspace.block_device.map(|device| device.group_blocks),
            })
        });
        return format!("{:#}\n", serde_json::Value::from_iter(described));
    }
    let line = |keyspace: &KeyspaceRow| {
        let format = keyspace.format.as_ref().map_or(String::new(), |format| format!("\t{format}"));
        let device = keyspace.block_device.map_or(String::new(), |device| format!("\t{}", device_text(device)));
        let items = keyspace.items.map_or("-".into(), |items| items.to_string());
        format!("{}\t{}\t{items}{device}{format}\n", keyspace.name, keyspace.kind)
    };
    keyspaces.iter().filter(|keyspace| !keyspace.is_dropping).map(line).collect()
}

/// The error for a drop without --yes: it says what would be dropped.
fn why_not_dropped(keyspace: &KeyspaceRow) -> String {
    let what = match keyspace.block_device {
        Some(device) => format!("a {}", device_text(device)),
        None if keyspace.is_ordered => "an ordered keyspace".into(),
        None => format!("a {} keyspace", keyspace.kind),
    };
    let (name, items) = (&keyspace.name, size::grouped(keyspace.items.unwrap_or(0)));
    format!(
        "{name} is {what} with {items} items, which would be gone for good: give --yes to drop it; nothing was changed"
    )
}

fn found(store: &StoreArguments, name: &str) -> Result<KeyspaceRow, Box<dyn Error>> {
    let found = Reached::for_reading(store)?.keyspaces(Some(name))?.pop();
    Ok(found.ok_or(KeyspaceError::Gone)?)
}

fn device_text(device: BlockDeviceSize) -> String {
    let size = size::shown(device.size_bytes);
    match device.group_blocks {
        1 => format!("block device of {size}"),
        blocks => format!("block device of {size} in groups of {blocks} blocks"),
    }
}

fn show(keyspace: &KeyspaceRow) -> String {
    let KeyspaceRow { name, kind, .. } = keyspace;
    let items = keyspace.items.unwrap_or(0);
    let format = keyspace.format.as_deref().unwrap_or("none: set one with `tapetum keyspace format`");
    let device = keyspace.block_device.map_or(String::new(), |device| {
        format!("size    {}\ngroups  {}\n", size::shown(device.size_bytes), device.group_blocks)
    });
    // Nobody looks at the expiry of each.
    let expired = if keyspace.is_ordered { ", expired ones included" } else { "" };
    format!("name    {name}\nkind    {kind}\n{device}items   {items}{expired}\nformat  {format}\n")
}

/// Sets a format, if `check` is set only if all items fit; or removes it.
fn set_format(name: &str, format: Option<(&str, bool)>, store: &StoreArguments) -> Outcome {
    let set = |fields| Request::SetFormat { keyspace: name.to_owned(), fields };
    let Some((fields, is_checked)) = format else {
        change(store, &offline_options(store), set(None))?;
        return say(&format!("keyspace {name} has no format now"));
    };
    // Report errors in the format before a store is reached.
    let format = query_rows::format_of("FIELDS", fields).map_err(|why| match fields.trim().is_empty() {
        true => format!("{why}; --remove forgets the format"),
        false => why,
    })?;
    let mut reached = Reached::new(store, &offline_options(store), Access::Write)?;
    let mut done = Ok(Vec::new());
    if is_checked {
        done = reached.gather(Request::CheckFormat { keyspace: name.into(), fields: format.to_string() });
    }
    let done = done.and_then(|_| reached.gather(set(Some(format.to_string()))));
    reached.close(done)?;
    say(&format!("records of {name} are {format}"))
}

fn print_format(name: &str, is_checked: bool, store: &StoreArguments) -> Outcome {
    let mut reached = Reached::for_reading(store)?;
    let format = reached.kept_format(name)?;
    if is_checked {
        reached.gather(Request::CheckFormat { keyspace: name.into(), fields: format.to_string() })?;
    }
    print(&format!("{format}\n"))
}

pub(super) fn kind_of(index: IndexArgument) -> KeyspaceKind {
    match index {
        IndexArgument::Hashed => KeyspaceKind::Hashed,
        IndexArgument::Ordered => KeyspaceKind::Ordered,
    }
}

fn say(what: &str) -> Outcome {
    print(&format!("{what}\n"))
}

fn print(text: &str) -> Outcome {
    super::commands::print(text.as_bytes())
}
