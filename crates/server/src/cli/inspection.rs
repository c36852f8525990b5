//! `inspect`: shows where a key lives, or all of a store, offline or from a server.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use super::commands::{KeyspaceTarget, Outcome, check_memory, offline_options, print, print_stats};
use super::reach::{Reached, server_of};
use crate::cli::arguments::StoreArguments;
use crate::net::listen::Address;
use crate::tools::inspect;
use crate::tools::key_text::KeyText;
use crate::tools::remote::Remote;
use tapetum_service::inspect_lines;
use tapetum_service::opening::OpenError;
use tapetum_service::reply::Reply;
use tapetum_service::request::Request;

pub fn inspect_key(key: &str, json: bool, memcached: Option<&Address>, target: KeyspaceTarget<'_>) -> Outcome {
    let lines = match memcached {
        Some(address) => {
            let key = KeyText::of_bytes().key(key)?;
            // A space would end the word in the protocol, and a line end the command.
            if key.iter().any(|byte| *byte <= b' ') {
                return Err(
                    "a server is asked for keys without spaces and control characters only: inspect others with \
                            --data"
                        .into(),
                );
            }
            Remote::memcached(address).stats(&[b"inspect ", &key[..]].concat())?
        }
        None => {
            let KeyspaceTarget { store, keyspace } = target;
            let mut reached = Reached::for_reading(store)?;
            let request = Request::Locate { keyspace: keyspace.into(), key: reached.key(keyspace, key)? };
            reached.gather(request)?.into_iter().find_map(Reply::into_figures).unwrap_or_default()
        }
    };
    print_stats(&lines, json)
}

/// Adds facts about ordered keyspaces that only an open store knows.
fn inspect_trees(inspection: &mut tapetum::Inspection, arguments: &StoreArguments) {
    let opened = check_memory(arguments.memory).and_then(|()| {
        let opened = offline_options(arguments).open_read_only(arguments.place());
        opened.map_err(|error| OpenError::from(error).to_string())
    });
    let seen = opened.and_then(|store| tapetum::inspect(&store).map_err(|error| error.to_string()));
    match seen {
        Ok(seen) => (inspection.groups, inspection.trees) = (seen.groups, seen.trees),
        // The manifest is shown without them.
        Err(error) => {
            // An error of standard error is ignored: the result on standard output matters.
            let _ = writeln!(std::io::stderr(), "trees and slots in use are not shown: {error}");
        }
    }
}

pub fn inspect_all(
    map: bool,
    every: Option<Duration>,
    json: bool,
    memcached: Option<&Address>,
    arguments: &StoreArguments,
) -> Outcome {
    let ask = || -> Result<tapetum::Inspection, Box<dyn Error>> {
        match memcached {
            Some(address) => Ok(inspect_lines::from_lines(&Remote::memcached(address).stats(b"inspect")?)?),
            None => match server_of(&arguments.place)? {
                Some(mut server) => {
                    let told = server.gather(Request::Inspect)?.into_iter().find_map(Reply::into_figures);
                    Ok(inspect_lines::from_lines(&told.unwrap_or_default())?)
                }
                None => Ok(tapetum::inspect_at(&arguments.place()).map_err(OpenError::from)?),
            },
        }
    };
    if map {
        return inspect::map(ask, every);
    }
    let mut inspection = ask()?;
    if memcached.is_none() && inspection.trees.is_empty() && !inspection.groups.is_empty() {
        inspect_trees(&mut inspection, arguments);
    }
    let text = match json {
        true => format!("{:#}\n", inspect::to_json(&inspection)),
        false => inspect::report(&inspection),
    };
    print(text.as_bytes())
}
