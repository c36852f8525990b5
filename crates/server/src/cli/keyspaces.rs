//! `tapetum keyspace`: makes, lists, drops and renames the keyspaces of a store that no server has open.

use std::error::Error;
use std::io::Write;

use tapetum::{KeyspaceError, KeyspaceKind, KeyspaceState, Store};

use super::commands::{Outcome, offline_options, read_store, with_store};
use super::keyspace_arguments::{DEFAULT_NAME, IndexArgument, KeyspaceCommand};
use crate::store::store_open::OpenError;

pub fn run(command: KeyspaceCommand) -> Outcome {
    let done = match command {
        KeyspaceCommand::Create { name, index, store } => {
            if name == DEFAULT_NAME {
                // Found out in time, nothing is made.
                return Err(KeyspaceError::NameTaken { name }.to_string().into());
            }
            let created = with_store(&store, offline_options(&store, true), |store| {
                Ok(store.create_keyspace_of(&name, kind_of(index))?)
            });
            created.and_then(|_| say(&format!("keyspace {name} was created")))
        }
        KeyspaceCommand::List { json, store } => {
            read_store(&store, |store| Ok(list(store, json))).and_then(|text| print(&text))
        }
        KeyspaceCommand::Drop { name, store } => {
            let dropped = with_store(&store, offline_options(&store, false), |store| Ok(store.drop_keyspace(&name)?));
            dropped.and_then(|()| {
                say(&format!(
                    "keyspace {name} was dropped, with all that was in it; its room comes back while a server serves the store"
                ))
            })
        }
        KeyspaceCommand::Rename { from, to, store } => {
            let options = offline_options(&store, false);
            let renamed = with_store(&store, options, |store| Ok(store.rename_keyspace(&from, &to)?));
            renamed.and_then(|()| say(&format!("keyspace {from} is called {to} now")))
        }
    };
    done.map_err(of_served)
}

/// Those that there are, by name.
fn list(store: &Store, json: bool) -> String {
    let mut keyspaces = store.keyspace_items();
    keyspaces.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    if json {
        let described = keyspaces.iter().map(|(keyspace, items)| {
            serde_json::json!({
                "id": keyspace.id.0,
                "name": keyspace.name,
                "kind": keyspace.kind.to_string(),
                "state": match keyspace.state { KeyspaceState::Live => "live", KeyspaceState::Dropping => "dropping" },
                "items": items,
            })
        });
        return format!("{:#}\n", serde_json::Value::from_iter(described));
    }
    let live = keyspaces.iter().filter(|(keyspace, _)| keyspace.state == KeyspaceState::Live);
    live.map(|(keyspace, items)| format!("{}\t{}\t{items}\n", keyspace.name, keyspace.kind)).collect()
}

fn kind_of(index: IndexArgument) -> KeyspaceKind {
    match index {
        IndexArgument::Hashed => KeyspaceKind::Hashed,
        IndexArgument::Ordered => KeyspaceKind::Ordered,
    }
}

/// Of a store that a server has open, also what to do for its keyspaces.
fn of_served(error: Box<dyn Error>) -> Box<dyn Error> {
    match error.downcast_ref() {
        Some(OpenError::Store(tapetum::OpenError::InUse { .. })) => {
            format!("{error}; keyspaces are created, listed, dropped and renamed while no server runs").into()
        }
        _ => error,
    }
}

fn say(what: &str) -> Outcome {
    print(&format!("{what}\n"))
}

fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
