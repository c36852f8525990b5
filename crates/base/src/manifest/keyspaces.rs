//! The catalogue of keyspaces as a client of the manifest.
//!
//! ```text
//!  keyspace:  id u16 · state u8 · kind u8 · name length u8 · options length u8 · name · options
//!  item: edits, one behind the other, up to its end; a piece of a snapshot creates what there is
//!   1 create: keyspace · 2 rename: id u16, name length u8, name · 3 drop: id u16 · 4 forget: id u16
//!   5 set format: id u16, length u16, format (`kernels/scan/format.rs`), or nothing · 6 set options: id u16, length u8, options
//! ```
//! The default keyspace always exists: a snapshot has only its format.

use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::{
    Catalogue, FORMATS_BYTES_MAX, Keyspace, KeyspaceEdit, KeyspaceState, NAME_BYTES_MAX, OPTIONS_BYTES_MAX,
    checked_name,
};
use crate::keyspace_kind::KeyspaceKind;
use crate::manifest::client::{ManifestClient, Misfit, pieces};
use crate::manifest::items::{ClientId, FrameItems};
use crate::media::wire::{Reader, Short, Writer};

/// Bytes of the edit that creates a keyspace, without name and options.
const CREATE_HEAD_BYTES: usize = 1 + 6;
const _: () = assert!(NAME_BYTES_MAX <= u8::MAX as usize && OPTIONS_BYTES_MAX <= u8::MAX as usize);

const CREATE: u8 = 1;
const RENAME: u8 = 2;
const DROP: u8 = 3;
const FORGET: u8 = 4;
const SET_FORMAT: u8 = 5;
const SET_OPTIONS: u8 = 6;
/// Bytes of the edit that sets a format, without the format.
const FORMAT_HEAD_BYTES: usize = 1 + 4;
const _: () = assert!(FORMATS_BYTES_MAX <= u16::MAX as usize);

fn in_snapshot(catalogue: &Catalogue) -> impl Iterator<Item = &Keyspace> + Send {
    catalogue.iter().filter(|keyspace| keyspace.id != KeyspaceId::DEFAULT || !keyspace.format.is_empty())
}

impl ManifestClient for Catalogue {
    fn id(&self) -> ClientId {
        ClientId::KEYSPACES
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_> {
        pieces(in_snapshot(self), describe)
    }

    fn snapshot_bytes_max(&self) -> u64 {
        let bytes = |keyspace: &Keyspace| {
            let Keyspace { id, name, options, format, .. } = keyspace;
            let created = CREATE_HEAD_BYTES + name.len() + options.len();
            let created = if *id == KeyspaceId::DEFAULT { 0 } else { created };
            let format = if format.is_empty() { 0 } else { FORMAT_HEAD_BYTES + format.len() };
            (created + format) as u64
        };
        in_snapshot(self).map(bytes).sum()
    }

    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit> {
        let mut reader = Reader::new(edit);
        while !reader.is_empty() {
            Catalogue::apply(self, &KeyspaceEdit::parse(&mut reader)?).map_err(Misfit)?;
        }
        Ok(())
    }
}

/// The edits that create a keyspace in its present state.
fn describe(keyspace: &Keyspace, writer: &mut Writer) {
    if keyspace.id != KeyspaceId::DEFAULT {
        create(keyspace, writer);
    }
    if !keyspace.format.is_empty() {
        set_format(keyspace.id, &keyspace.format, writer);
    }
}

fn set_format(id: KeyspaceId, format: &[u8], writer: &mut Writer) {
    writer.u8(SET_FORMAT);
    writer.u16(id.0);
    writer.u16(format.len() as u16);
    writer.raw(format);
}

fn create(keyspace: &Keyspace, writer: &mut Writer) {
    writer.u8(CREATE);
    encode_keyspace(keyspace, writer);
}

fn encode_keyspace(keyspace: &Keyspace, writer: &mut Writer) {
    let Keyspace { id, name, kind, options, state, .. } = keyspace;
    writer.u16(id.0);
    writer.raw(&[*state as u8, kind.code(), name.len() as u8, options.len() as u8]);
    writer.raw(name.as_bytes());
    writer.raw(options);
}

fn parse_keyspace(reader: &mut Reader<'_>) -> Result<Keyspace, Short> {
    let id = KeyspaceId(reader.u16()?);
    let [state, kind, name_bytes, options_bytes] = reader.array()?;
    let state = [KeyspaceState::Live, KeyspaceState::Dropping].into_iter().find(|known| *known as u8 == state);
    let (Some(state), true) = (state, kind != 0) else { return Err(Short) };
    let (name, options) = (parse_name(reader, name_bytes)?, reader.take(options_bytes.into())?.to_vec());
    Ok(Keyspace { id, name, kind: KeyspaceKind::of_code(kind), options, state, format: Vec::new() })
}

fn parse_name(reader: &mut Reader<'_>, bytes: u8) -> Result<String, Short> {
    checked_name(reader.take(bytes.into())?).map(String::from).map_err(|_| Short)
}

impl KeyspaceEdit {
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            KeyspaceEdit::Create(keyspace) => create(keyspace, writer),
            KeyspaceEdit::Rename { id, name } => {
                writer.u8(RENAME);
                writer.u16(id.0);
                writer.u8(name.len() as u8);
                writer.raw(name.as_bytes());
            }
            KeyspaceEdit::SetFormat { id, format } => set_format(*id, format, writer),
            KeyspaceEdit::SetOptions { id, options } => {
                writer.u8(SET_OPTIONS);
                writer.u16(id.0);
                writer.u8(options.len() as u8);
                writer.raw(options);
            }
            KeyspaceEdit::Drop(id) | KeyspaceEdit::Forget(id) => {
                writer.u8(if matches!(self, KeyspaceEdit::Drop(_)) { DROP } else { FORGET });
                writer.u16(id.0);
            }
        }
    }

    /// Adds the edit to a frame as an item.
    pub fn put(&self, items: &mut FrameItems) {
        items.put(ClientId::KEYSPACES, |writer| self.encode(writer));
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<KeyspaceEdit, Short> {
        let [edit] = reader.array()?;
        match edit {
            CREATE => parse_keyspace(reader).map(KeyspaceEdit::Create),
            RENAME => {
                let (id, [bytes]) = (KeyspaceId(reader.u16()?), reader.array()?);
                Ok(KeyspaceEdit::Rename { id, name: parse_name(reader, bytes)? })
            }
            DROP => Ok(KeyspaceEdit::Drop(KeyspaceId(reader.u16()?))),
            FORGET => Ok(KeyspaceEdit::Forget(KeyspaceId(reader.u16()?))),
            SET_FORMAT => {
                let (id, bytes) = (KeyspaceId(reader.u16()?), reader.u16()?);
                Ok(KeyspaceEdit::SetFormat { id, format: reader.take(bytes.into())?.to_vec() })
            }
            SET_OPTIONS => {
                let (id, [bytes]) = (KeyspaceId(reader.u16()?), reader.array()?);
                Ok(KeyspaceEdit::SetOptions { id, options: reader.take(bytes.into())?.to_vec() })
            }
            _ => Err(Short),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalogue_is_what_its_snapshot_says_and_as_long_as_is_counted_with() {
        let mut catalogue = Catalogue::default();
        for (id, state) in (1..400).zip([KeyspaceState::Live, KeyspaceState::Dropping].into_iter().cycle()) {
            let name = "n".repeat(usize::from(id) % 200) + &id.to_string();
            let (kind, options, format) = (KeyspaceKind::Hashed, vec![7; usize::from(id) % 9], Vec::new());
            catalogue.add(Keyspace { id: KeyspaceId(id), name, kind, options, state, format }).unwrap();
        }
        // Formats of live keyspaces.
        for id in [0, 1, 399] {
            catalogue.apply(&KeyspaceEdit::SetFormat { id: KeyspaceId(id), format: vec![id as u8; 70] }).unwrap();
        }
        let pieces: Vec<_> = catalogue.snapshot().collect();
        assert!(pieces.len() > 1);
        assert_eq!(pieces.iter().map(|piece| piece.len() as u64).sum::<u64>(), catalogue.snapshot_bytes_max());
        let mut loaded = Catalogue::default();
        pieces.iter().for_each(|piece| loaded.load(piece).unwrap());
        assert_eq!(loaded, catalogue);
        assert!(loaded.load(&pieces[0]).unwrap_err().0.contains("twice"));
    }

    #[test]
    fn edits_read_back_and_what_is_none_is_refused() {
        let keyspace = Keyspace {
            id: KeyspaceId(300),
            name: "ordërs".into(),
            kind: KeyspaceKind::Hashed,
            options: vec![1, 2],
            state: KeyspaceState::Dropping,
            format: Vec::new(),
        };
        let id = keyspace.id;
        let of_other_kind = Keyspace { kind: KeyspaceKind::of_code(9), ..keyspace.clone() };
        for edit in [
            KeyspaceEdit::Create(keyspace),
            KeyspaceEdit::Create(of_other_kind),
            KeyspaceEdit::Rename { id, name: "n".repeat(255) },
            KeyspaceEdit::Drop(id),
            KeyspaceEdit::Forget(id),
            KeyspaceEdit::SetFormat { id, format: vec![1; 300] },
            KeyspaceEdit::SetFormat { id, format: Vec::new() },
            KeyspaceEdit::SetOptions { id, options: vec![1; 255] },
        ] {
            let mut writer = Writer::default();
            edit.encode(&mut writer);
            assert_eq!(KeyspaceEdit::parse(&mut Reader::new(&writer)), Ok(edit));
            let cut = &writer[..writer.len() - 1];
            assert_eq!(KeyspaceEdit::parse(&mut Reader::new(cut)), Err(Short));
        }
        for none in [&[0, 1, 0][..], &[7, 1, 0], &[CREATE, 1, 0, 3, 1, 1, 0, b'a'], &[CREATE, 1, 0, 1, 0, 1, 0, b'a']] {
            assert_eq!(KeyspaceEdit::parse(&mut Reader::new(none)), Err(Short), "{none:?}");
        }
    }
}
