//! `tapetum generate`: a table as lines, or all tables as keyspaces of a store.

use std::io::Write;

use tapetum::KeyspaceKind;
use tapetum_service::reply::{ItemRow, KeyspaceRow};
use tapetum_service::request::{CreateKeyspace, Request};
use tapetum_service::service::Access;

use super::commands::{Outcome, filling_options, tell};
use super::keyspaces::kind_of;
use super::reach::Reached;
use crate::cli::arguments::StoreArguments;
use crate::cli::generate_arguments::{GenerateCommand, IntoArguments};
use crate::output;
use crate::tools::item_lines::{self, Format};
use crate::tools::load::{Existing, Loader, ServiceSink};
use crate::tools::packages::{PackageDatabase, PackageTable};
use crate::tools::papers::{PaperDatabase, PaperTable, ShowItem};

/// Bytes of lines that are gathered before they are written.
const BATCH_BYTES: usize = 1 << 16;

/// A table, as its database shows it.
struct GeneratedTable<'a> {
    name: &'static str,
    format_text: &'static str,
    each_item: &'a dyn Fn(ShowItem<'_>) -> Outcome,
}

pub fn run(command: &GenerateCommand) -> Outcome {
    match command {
        GenerateCommand::Papers { table, scale, seed, into } => {
            let database = PaperDatabase::new(*scale, *seed);
            let items = |table: PaperTable| move |show: ShowItem<'_>| database.each(table, show);
            let tables = PaperTable::ALL.into_iter().filter(|one| table.is_none_or(|table| table == *one));
            let tables: Vec<_> = tables.map(|table| (table.name(), table.format_text(), items(table))).collect();
            generate(tables.iter().map(|(name, format_text, each)| (*name, *format_text, each as _)), into)
        }
        GenerateCommand::Packages { table, from, into } => {
            let database = PackageDatabase::read(from)?;
            let items = |table: PackageTable| {
                let database = &database;
                move |show: ShowItem<'_>| database.each(table, show)
            };
            let tables = PackageTable::ALL.into_iter().filter(|one| table.is_none_or(|table| table == *one));
            let tables: Vec<_> = tables.map(|table| (table.name(), table.format_text(), items(table))).collect();
            generate(tables.iter().map(|(name, format_text, each)| (*name, *format_text, each as _)), into)
        }
    }
}

fn generate<'a>(
    tables: impl Iterator<Item = (&'static str, &'static str, &'a dyn Fn(ShowItem<'_>) -> Outcome)>,
    into: &IntoArguments,
) -> Outcome {
    let tables = tables.map(|(name, format_text, each_item)| GeneratedTable { name, format_text, each_item });
    match into.store() {
        Some(store) => fill(&tables.collect::<Vec<_>>(), &store, into),
        None => {
            let mut tables = tables;
            tables.try_for_each(|table| print(&table))
        }
    }
}

fn print(table: &GeneratedTable<'_>) -> Outcome {
    let (mut out, mut text) = (output::stdout(), Vec::new());
    (table.each_item)(&mut |key, value| {
        item_lines::write(Format::Tsv, &ItemRow { key, value, ..ItemRow::default() }, &mut text);
        if text.len() >= BATCH_BYTES {
            out.write_all(&text)?;
            text.clear();
        }
        Ok(())
    })?;
    out.write_all(&text)?;
    Ok(out.flush()?)
}

/// Makes a keyspace of each table.
fn fill(tables: &[GeneratedTable<'_>], arguments: &StoreArguments, into: &IntoArguments) -> Outcome {
    let mut reached = Reached::new(arguments, &filling_options(arguments, &into.creation()), Access::Write)?;
    let filled = tables.iter().try_for_each(|table| fill_keyspace(table, &mut reached, into));
    let filled = filled.and_then(|()| reached.keyspaces(None));
    // Closing the store makes all items durable, once.
    for KeyspaceRow { name, items, .. } in reached.close(filled)? {
        if tables.iter().any(|table| table.name == name) {
            tell(&format!("{name}: {} items", items.unwrap_or(0)));
        }
    }
    Ok(())
}

fn fill_keyspace(table: &GeneratedTable<'_>, reached: &mut Reached, into: &IntoArguments) -> Outcome {
    let (name, fields) = (table.name.to_owned(), Some(table.format_text.to_owned()));
    let is_ordered = kind_of(into.index) == KeyspaceKind::Ordered;
    let wanted = CreateKeyspace { name: name.clone(), is_ordered, block_device: None, may_exist: true };
    reached.gather(Request::CreateKeyspace(wanted))?;
    reached.gather(Request::SetFormat { keyspace: name, fields })?;
    let mut sink = ServiceSink::new(&mut reached.service, table.name, true, Existing::Replace);
    let mut loader = Loader::new(&mut sink);
    (table.each_item)(&mut |key, value| Ok(loader.put(ItemRow { key, value, ..ItemRow::default() })?))?;
    loader.finish()?;
    Ok(())
}
