//! Whether all items of a keyspace fit a format, to their last byte.

use std::error::Error;

use tapetum::{Item, KeyspaceHandle, KeyspaceKind};
use tapetum_kernels::scan::format::{Field, Part};
use tapetum_kernels::scan::{FieldReader, Format, Misfit};

use super::{item_lines, scan};

/// Looks at every item.
///
/// # Errors
/// How many do not fit, and why the first does not.
pub fn check(keyspace: &KeyspaceHandle, format: &Format) -> Result<(), Box<dyn Error>> {
    let mut checked = FormatCheck { fields: FieldReader::new(format), items: 0, misfits: 0, first: None };
    if keyspace.keyspace().kind() == KeyspaceKind::Ordered {
        for item in keyspace.scan(scan::of_prefix(b""))? {
            checked.look(item?);
        }
    } else {
        for item in keyspace.items() {
            checked.look(item?);
        }
    }
    let Some((key, field, misfit)) = checked.first else { return Ok(()) };
    let (misfits, items) = (checked.misfits, checked.items);
    let (key, field) = (item_lines::escaped(&key), &format.fields()[field].name);
    let why = misfit.explain();
    Err(format!("{misfits} of {items} items do not fit, such as that of the key \"{key}\", at {field}: {why}").into())
}

/// An error if an item does not fit the format of its keyspace, with what that wants.
///
/// # Errors
/// As it says.
pub fn check_item(format: &Format, name: &str, (key, value): (&[u8], &[u8])) -> Result<(), String> {
    let Err((place, misfit)) = FieldReader::new(format).check(key, value) else { return Ok(()) };
    let Field { part, name: field, kind, .. } = &format.fields()[place];
    let part = if *part == Part::Key { "key" } else { "value" };
    let why = misfit.explain();
    Err(format!(
        "the {part} does not fit the format of {name}, at {field} {kind}: {why}; nothing was stored. Items there are {format}; \
         give such a one, or another format with `tapetum keyspace format {name} FIELDS`; `tapetum load` stores any bytes"
    ))
}

struct FormatCheck {
    fields: FieldReader,
    items: u64,
    misfits: u64,
    /// The first item that does not fit: its key, and the field at which it does not.
    first: Option<(Vec<u8>, usize, Misfit)>,
}

impl FormatCheck {
    fn look(&mut self, (key, item): (Vec<u8>, Item)) {
        self.items += 1;
        if let Err((field, misfit)) = self.fields.check(&key, &item.value) {
            self.misfits += 1;
            self.first.get_or_insert((key, field, misfit));
        }
    }
}
