//! `tapetum generate`: a table as lines, or all tables as keyspaces of a store.

use std::io::Write;

use tapetum::Store;
use tapetum_kernels::scan::Format as RecordFormat;

use super::commands::{Outcome, filling_options, tell, with_store};
use super::keyspaces::kind_of;
use crate::cli::arguments::StoreArguments;
use crate::cli::generate_arguments::{GenerateCommand, IntoArguments};
use crate::output;
use crate::tools::item_lines::{self, Format, ItemLine};
use crate::tools::load::{Existing, Loader, StoreSink};
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
        item_lines::write(Format::Tsv, &ItemLine { key, value, ..ItemLine::default() }, &mut text);
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
    // Closing the store makes all items durable, once.
    with_store(arguments, filling_options(arguments, &into.creation()), |store| {
        tables.iter().try_for_each(|table| fill_keyspace(table, store, into))?;
        for (keyspace, items) in store.count_items()? {
            if tables.iter().any(|table| table.name == keyspace.name) {
                tell(&format!("{}: {items} items", keyspace.name));
            }
        }
        Ok(())
    })
}

fn fill_keyspace(table: &GeneratedTable<'_>, store: &Store, into: &IntoArguments) -> Outcome {
    let keyspace = store.keyspace_or_create_of(table.name, kind_of(into.index))?;
    store.set_keyspace_format(table.name, Some(&RecordFormat::parse(table.format_text)?))?;
    let mut sink = StoreSink::new(&keyspace, Existing::Replace)?;
    let mut loader = Loader::new(&mut sink);
    (table.each_item)(&mut |key, value| Ok(loader.put(&ItemLine { key, value, ..ItemLine::default() })?))?;
    loader.finish()?;
    Ok(())
}
