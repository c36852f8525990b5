//! Whether all items of a keyspace fit a format, to their last byte.

use tapetum::Item;
use tapetum_kernels::scan::format::{ByteOrder, Field, FieldKind, Part};
use tapetum_kernels::scan::{FieldReader, Format, Misfit};

use crate::escapes;

/// An error if an item does not fit the format of its keyspace, with what that wants.
///
/// # Errors
/// As it says.
pub fn check_item(format: &Format, name: &str, key: &[u8], value: &[u8]) -> Result<(), String> {
    let Err((place, misfit)) = FieldReader::new(format).check(key, value) else { return Ok(()) };
    let Field { part, name: field, kind, .. } = &format.fields()[place];
    let (part, how) = match part {
        Part::Key => ("key", String::new()),
        Part::Value => ("value", how_to_write(kind).unwrap_or_default()),
    };
    let why = misfit.explain();
    Err(format!(
        "the {part} does not fit the format of {name}, at {field} {kind}: {why}; nothing was stored. {how}Items there are {format}; \
         give such a one, or another format with `tapetum keyspace format {name} FIELDS`; `tapetum load` stores any bytes"
    ))
}

/// A sentence for who gave a text alone where the field's bytes are more than that: a value is put as its bytes, unlike a key.
fn how_to_write(kind: &FieldKind) -> Option<String> {
    match *kind {
        FieldKind::PrefixedBytes { prefix, order } | FieldKind::PrefixedText { prefix, order } => {
            let mut length = vec!["\\000"; usize::from(prefix)];
            *(if order == ByteOrder::Big { length.last_mut() } else { length.first_mut() })? = "\\005";
            let (length, unit) = (length.concat(), if prefix == 1 { "byte" } else { "bytes" });
            Some(format!(
                "A {kind} begins with its length in {prefix} {unit}, also when it is empty, as `printf '{length}hello' | tapetum put KEY -` \
                 writes one. "
            ))
        }
        FieldKind::FixedBytes(bytes) | FieldKind::FixedText(bytes) => {
            Some(format!("A {kind} takes {bytes} bytes, and zeros fill up a shorter one. "))
        }
        _ => None,
    }
}

/// Looks at items, one after the other.
pub struct FormatCheck {
    fields: FieldReader,
    items: u64,
    misfits: u64,
    /// The first item that does not fit: its key, and the field at which it does not.
    first: Option<(Vec<u8>, usize, Misfit)>,
}

impl FormatCheck {
    pub fn new(format: &Format) -> FormatCheck {
        FormatCheck { fields: FieldReader::new(format), items: 0, misfits: 0, first: None }
    }

    pub fn look(&mut self, key: Vec<u8>, item: &Item) {
        self.items += 1;
        if let Err((field, misfit)) = self.fields.check(&key, &item.value) {
            self.misfits += 1;
            self.first.get_or_insert((key, field, misfit));
        }
    }

    pub fn items(&self) -> u64 {
        self.items
    }

    /// # Errors
    /// How many do not fit, and why the first does not.
    pub fn finish(self, format: &Format) -> Result<(), String> {
        let Some((key, field, misfit)) = self.first else { return Ok(()) };
        let (misfits, items) = (self.misfits, self.items);
        let (key, field) = (escapes::escaped(&key), &format.fields()[field].name);
        let why = misfit.explain();
        Err(format!("{misfits} of {items} items do not fit, such as that of the key \"{key}\", at {field}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_its_length_is_told_how_to_be_written() {
        let refused = |fields: &str, value: &[u8]| {
            let format = Format::parse(&format!("key: k string; value: {fields}")).unwrap();
            check_item(&format, "t", b"k", value).err()
        };
        let told = refused("s string8", b"").unwrap();
        assert!(
            told.contains("A string8 begins with its length in 1 byte") && told.contains("printf '\\005hello' |"),
            "{told}"
        );
        assert_eq!(refused("s string8", b"\0"), None);
        assert_eq!(refused("s string8", b"\x05hello"), None);
        assert!(refused("s string16", b"").unwrap().contains("printf '\\005\\000hello'"));
        assert!(refused("s bytes16be", b"").unwrap().contains("printf '\\000\\005hello'"));
        assert!(refused("s string[4]", b"").unwrap().contains("A string[4] takes 4 bytes"));
        assert!(refused("n u8", b"").unwrap().contains("nothing was stored. Items there are"));
    }
}
