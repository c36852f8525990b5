//! The keyspaces of a store.
//!
//! 1. The default keyspace has id 0, always exists and is live, and keeps its name.
//! 2. Formats are kept as they were encoded, also those of an unknown version, which [`Keyspace::format`] refuses. A dropped keyspace has none.
//! 3. A name belongs to at most one live keyspace. The name of a dropped keyspace is free at once. Its id is free when it is forgotten: by then
//!    nothing of it is left.
//!
//! Plain data: the store holds it behind a lock.

use crate::error::KeyspaceError;
use crate::keyspace::KeyspaceId;
use crate::keyspace::block_device::BlockDevice;
use crate::keyspace_kind::KeyspaceKind;
use std::collections::BTreeMap;
use tapetum_kernels::scan::Format;
use tapetum_kernels::scan::wire::{ScanReader, WireError};

/// The most keyspaces, including dropped ones that are not forgotten. Their names fit a small part of the manifest.
pub const KEYSPACES_MAX: usize = 4096;
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a keyspace's options, which depend on its kind.
pub const OPTIONS_BYTES_MAX: usize = 255;
/// Bytes of the formats of all keyspaces together: half of the manifest's room for the catalogue.
pub const FORMATS_BYTES_MAX: usize = 32 << 10;
pub const DEFAULT_NAME: &str = "default";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum KeyspaceState {
    Live = 1,
    /// None of its items is found, and its data is being freed.
    Dropping = 2,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keyspace {
    pub id: KeyspaceId,
    pub name: String,
    pub kind: KeyspaceKind,
    /// The options, which its engine interprets.
    pub options: Vec<u8>,
    pub state: KeyspaceState,
    /// The format of its keys and values, encoded; empty if none was set.
    pub format: Vec<u8>,
}

impl Keyspace {
    /// The format of its keys and values, if one was set.
    ///
    /// # Errors
    /// [`KeyspaceError::Format`] if another version set it.
    pub fn format(&self) -> Result<Option<Format>, KeyspaceError> {
        if self.format.is_empty() {
            return Ok(None);
        }
        let mut reader = ScanReader::new(&self.format);
        let decoded = Format::decode(&mut reader);
        let whole = decoded.and_then(|format| if reader.is_empty() { Ok(format) } else { Err(WireError::Malformed) });
        let version = self.format.first().copied().unwrap_or_default();
        whole.map(Some).map_err(|_| KeyspaceError::Format { name: self.name.clone(), version })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyspaceEdit {
    /// The keyspace must be live.
    Create(Keyspace),
    Rename {
        id: KeyspaceId,
        name: String,
    },
    Drop(KeyspaceId),
    /// Sets the format of a live keyspace. An empty one removes it.
    SetFormat {
        id: KeyspaceId,
        format: Vec<u8>,
    },
    /// Sets the options of a live keyspace.
    SetOptions {
        id: KeyspaceId,
        options: Vec<u8>,
    },
    /// Removes a dropped keyspace, of which nothing is left.
    Forget(KeyspaceId),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Catalogue {
    keyspaces: BTreeMap<KeyspaceId, Keyspace>,
    /// The ids of live keyspaces, by name.
    names: BTreeMap<String, KeyspaceId>,
}

impl Default for Catalogue {
    fn default() -> Catalogue {
        let default = Keyspace {
            id: KeyspaceId::DEFAULT,
            name: DEFAULT_NAME.into(),
            kind: KeyspaceKind::Hashed,
            options: Vec::new(),
            state: KeyspaceState::Live,
            format: Vec::new(),
        };
        Catalogue {
            names: BTreeMap::from([(default.name.clone(), default.id)]),
            keyspaces: BTreeMap::from([(default.id, default)]),
        }
    }
}

impl Catalogue {
    /// All keyspaces by id, dropped ones included.
    pub fn iter(&self) -> impl Iterator<Item = &Keyspace> {
        self.keyspaces.values()
    }

    /// The number of keyspaces, dropped ones included.
    pub fn count(&self) -> usize {
        self.keyspaces.len()
    }

    pub fn get(&self, id: KeyspaceId) -> Option<&Keyspace> {
        self.keyspaces.get(&id)
    }

    /// Whether a keyspace exists and was not dropped.
    pub fn is_live(&self, id: KeyspaceId) -> bool {
        self.get(id).is_some_and(|keyspace| keyspace.state == KeyspaceState::Live)
    }

    /// An error if a keyspace, dropped or not, is of a kind that is not among `kinds`.
    pub fn refuse_other_kinds(&self, kinds: &[KeyspaceKind]) -> Result<(), KeyspaceError> {
        let other = self.iter().find(|keyspace| !kinds.contains(&keyspace.kind));
        other.map_or(Ok(()), |keyspace| {
            Err(KeyspaceError::NoEngine { name: keyspace.name.clone(), kind: keyspace.kind })
        })
    }

    pub fn live_ids(&self) -> impl Iterator<Item = KeyspaceId> + '_ {
        self.names.values().copied()
    }

    /// The live keyspace of a name.
    pub fn find(&self, name: &str) -> Result<&Keyspace, KeyspaceError> {
        let found = self.names.get(name).and_then(|id| self.keyspaces.get(id));
        found.ok_or_else(|| KeyspaceError::Unknown { name: name.into() })
    }

    /// The edit that makes a keyspace.
    pub fn create(&self, name: &[u8], kind: KeyspaceKind, options: Vec<u8>) -> Result<KeyspaceEdit, KeyspaceError> {
        let name = self.free_name(name)?;
        if options.len() > OPTIONS_BYTES_MAX {
            return Err(KeyspaceError::OptionsTooLong { limit_bytes: OPTIONS_BYTES_MAX });
        }
        let limit = KEYSPACES_MAX;
        let is_free = |id: &KeyspaceId| !self.keyspaces.contains_key(id);
        let id = (0..limit as u16).map(KeyspaceId).find(is_free).ok_or(KeyspaceError::TooMany { limit })?;
        Ok(KeyspaceEdit::Create(Keyspace { id, name, kind, options, state: KeyspaceState::Live, format: Vec::new() }))
    }

    /// The edit that gives a live keyspace another name.
    pub fn rename(&self, from: &str, to: &[u8]) -> Result<KeyspaceEdit, KeyspaceError> {
        let id = self.changeable(from)?;
        Ok(KeyspaceEdit::Rename { id, name: self.free_name(to)? })
    }

    /// The edit that drops a live keyspace.
    pub fn drop(&self, name: &str) -> Result<KeyspaceEdit, KeyspaceError> {
        Ok(KeyspaceEdit::Drop(self.changeable(name)?))
    }

    /// The edit that sets or removes the format of a live keyspace.
    pub fn set_format(&self, name: &str, format: Option<&Format>) -> Result<KeyspaceEdit, KeyspaceError> {
        let id = self.find(name)?.id;
        let mut encoded = Vec::new();
        format.into_iter().for_each(|format| format.encode(&mut encoded));
        let others = self.iter().filter(|keyspace| keyspace.id != id).map(|keyspace| keyspace.format.len());
        if others.sum::<usize>() + encoded.len() > FORMATS_BYTES_MAX {
            return Err(KeyspaceError::FormatsTooLong { limit_bytes: FORMATS_BYTES_MAX });
        }
        Ok(KeyspaceEdit::SetFormat { id, format: encoded })
    }

    /// The edit that makes a block device larger.
    pub fn resize_device(&self, name: &str, device: BlockDevice) -> Result<KeyspaceEdit, KeyspaceError> {
        let keyspace = self.find(name)?;
        let now = keyspace.block_device()?.ok_or_else(|| KeyspaceError::NoDevice { name: name.into() })?;
        if device.size_bytes() < now.size_bytes() {
            return Err(KeyspaceError::DeviceShrinks { size_bytes: now.size_bytes() });
        }
        Ok(KeyspaceEdit::SetOptions { id: keyspace.id, options: now.resized(device.size_bytes()).options() })
    }

    fn changeable(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        match self.find(name) {
            Ok(keyspace) if keyspace.id == KeyspaceId::DEFAULT => Err(KeyspaceError::IsDefault),
            Ok(keyspace) => Ok(keyspace.id),
            Err(_) if self.iter().any(|keyspace| keyspace.name == name) => {
                Err(KeyspaceError::IsDropped { name: name.into() })
            }
            Err(unknown) => Err(unknown),
        }
    }

    fn free_name(&self, name: &[u8]) -> Result<String, KeyspaceError> {
        let name = checked_name(name)?;
        match self.names.contains_key(name) {
            true => Err(KeyspaceError::NameTaken { name: name.into() }),
            false => Ok(name.into()),
        }
    }

    /// Applies an edit. An error says why the edit does not fit; in that case nothing is changed.
    pub fn apply(&mut self, edit: &KeyspaceEdit) -> Result<(), String> {
        match edit {
            KeyspaceEdit::Create(keyspace) => self.add(keyspace.clone()),
            KeyspaceEdit::Rename { id, name } => {
                if self.names.contains_key(name) {
                    return Err(format!("has two keyspaces {name:?}"));
                }
                let keyspace = self.live(*id)?;
                let old = std::mem::replace(&mut keyspace.name, name.clone());
                self.names.remove(&old);
                self.names.insert(name.clone(), *id);
                Ok(())
            }
            KeyspaceEdit::Drop(id) => {
                let keyspace = self.live(*id)?;
                keyspace.state = KeyspaceState::Dropping;
                keyspace.format = Vec::new();
                let name = keyspace.name.clone();
                self.names.remove(&name);
                Ok(())
            }
            KeyspaceEdit::SetFormat { id, format } => {
                let keyspace = self.keyspaces.get_mut(id).filter(|keyspace| keyspace.state == KeyspaceState::Live);
                let keyspace =
                    keyspace.ok_or_else(|| format!("says the format of keyspace {}, which is not there", id.0))?;
                keyspace.format.clone_from(format);
                Ok(())
            }
            KeyspaceEdit::SetOptions { id, options } => {
                self.live(*id)?.options.clone_from(options);
                Ok(())
            }
            KeyspaceEdit::Forget(id) if self.get(*id).is_some_and(|found| found.state == KeyspaceState::Dropping) => {
                self.keyspaces.remove(id);
                Ok(())
            }
            KeyspaceEdit::Forget(id) => Err(format!("forgets keyspace {}, which was not dropped", id.0)),
        }
    }

    /// Adds a keyspace, live or dropped.
    pub fn add(&mut self, keyspace: Keyspace) -> Result<(), String> {
        let Keyspace { id, name, state, .. } = &keyspace;
        if self.keyspaces.contains_key(id) {
            return Err(format!("has keyspace {} twice", id.0));
        }
        if *state == KeyspaceState::Live {
            if self.names.contains_key(name) {
                return Err(format!("has two keyspaces {name:?}"));
            }
            self.names.insert(name.clone(), *id);
        }
        self.keyspaces.insert(*id, keyspace);
        Ok(())
    }

    fn live(&mut self, id: KeyspaceId) -> Result<&mut Keyspace, String> {
        let found = self.keyspaces.get_mut(&id).filter(|keyspace| keyspace.state == KeyspaceState::Live);
        let found = found.filter(|keyspace| keyspace.id != KeyspaceId::DEFAULT);
        found.ok_or_else(|| format!("changes keyspace {}, which is not there", id.0))
    }
}

/// Checks that a name is valid for a keyspace.
pub fn checked_name(name: &[u8]) -> Result<&str, KeyspaceError> {
    if name.is_empty() {
        return Err(KeyspaceError::NameEmpty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(KeyspaceError::NameTooLong { bytes: name.len(), limit_bytes: NAME_BYTES_MAX });
    }
    let name = std::str::from_utf8(name).map_err(|_| KeyspaceError::NameNotUtf8)?;
    if name.contains(char::is_control) { Err(KeyspaceError::NameHasControl) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(catalogue: &mut Catalogue, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        let edit = catalogue.create(name.as_bytes(), KeyspaceKind::Hashed, Vec::new())?;
        catalogue.apply(&edit).unwrap();
        Ok(catalogue.find(name).unwrap().id)
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        let refused = |name: &[u8]| Catalogue::default().create(name, KeyspaceKind::Hashed, Vec::new()).unwrap_err();
        assert_eq!(refused(b""), KeyspaceError::NameEmpty);
        assert_eq!(refused(&[b'a'; 300]), KeyspaceError::NameTooLong { bytes: 300, limit_bytes: 255 });
        assert_eq!(refused(b"\xff"), KeyspaceError::NameNotUtf8);
        assert_eq!(refused(b"a\nb"), KeyspaceError::NameHasControl);
        assert_eq!(refused(b"default"), KeyspaceError::NameTaken { name: "default".into() });
        assert!(Catalogue::default().create(&[b'a'; 255], KeyspaceKind::Hashed, vec![0; 255]).is_ok());
        let long = Catalogue::default().create(b"a", KeyspaceKind::Hashed, vec![0; 256]);
        assert_eq!(long, Err(KeyspaceError::OptionsTooLong { limit_bytes: 255 }));
    }

    #[test]
    fn a_dropped_name_is_free_at_once_and_its_id_when_it_is_forgotten() {
        let mut catalogue = Catalogue::default();
        let first = create(&mut catalogue, "orders").unwrap();
        assert_eq!(first, KeyspaceId(1));
        catalogue.apply(&catalogue.drop("orders").unwrap()).unwrap();
        assert_eq!(catalogue.drop("orders"), Err(KeyspaceError::IsDropped { name: "orders".into() }));
        assert!(!catalogue.is_live(first) && catalogue.find("orders").is_err());
        assert_eq!(create(&mut catalogue, "orders"), Ok(KeyspaceId(2)));
        catalogue.apply(&KeyspaceEdit::Forget(first)).unwrap();
        assert!(catalogue.apply(&KeyspaceEdit::Forget(first)).is_err());
        assert!(catalogue.apply(&KeyspaceEdit::Forget(KeyspaceId(2))).is_err(), "it is live");
        assert_eq!(create(&mut catalogue, "others"), Ok(first));
    }

    #[test]
    fn a_renamed_keyspace_keeps_its_id() {
        let mut catalogue = Catalogue::default();
        let id = create(&mut catalogue, "a").unwrap();
        catalogue.apply(&catalogue.rename("a", b"b").unwrap()).unwrap();
        assert_eq!(catalogue.find("b").unwrap().id, id);
        assert_eq!(catalogue.find("a"), Err(KeyspaceError::Unknown { name: "a".into() }));
        assert_eq!(catalogue.rename("b", b"default"), Err(KeyspaceError::NameTaken { name: "default".into() }));
        assert_eq!(catalogue.rename("default", b"c"), Err(KeyspaceError::IsDefault));
        assert_eq!(catalogue.drop("default"), Err(KeyspaceError::IsDefault));
        assert_eq!(catalogue.drop("a"), Err(KeyspaceError::Unknown { name: "a".into() }));
        assert!(catalogue.apply(&KeyspaceEdit::Drop(KeyspaceId::DEFAULT)).is_err());
        let before = catalogue.clone();
        let taken = KeyspaceEdit::Rename { id, name: DEFAULT_NAME.into() };
        assert!(catalogue.apply(&taken).unwrap_err().contains("two keyspaces"));
        assert_eq!(catalogue, before);
    }

    #[test]
    fn a_live_keyspace_has_the_format_that_it_was_given_last() {
        let format = |text: &str| Format::parse(text).unwrap();
        let mut catalogue = Catalogue::default();
        let id = create(&mut catalogue, "a").unwrap();
        let mut set = |name: &str, format: Option<&Format>| {
            let edit = catalogue.set_format(name, format)?;
            catalogue.apply(&edit).unwrap();
            catalogue.find(name)?.format()
        };
        let (one, other) = (format("value: year u16"), format("key: id u32be; value: name string"));
        assert_eq!(set("a", Some(&one)), Ok(Some(one)));
        assert_eq!(set("a", Some(&other)), Ok(Some(other.clone())));
        assert_eq!(set("default", Some(&other)), Ok(Some(other)));
        assert_eq!(set("default", None), Ok(None));
        assert_eq!(set("b", None), Err(KeyspaceError::Unknown { name: "b".into() }));
        let fields: Vec<String> = (0..127).map(|number| format!("field_{number:0>58} u8")).collect();
        let long = format(&format!("value: {}", fields.join(", ")));
        assert!(set("default", Some(&long)).is_ok() && set("a", Some(&long)).is_ok());
        create(&mut catalogue, "c").unwrap();
        create(&mut catalogue, "d").unwrap();
        let edit = catalogue.set_format("c", Some(&long)).unwrap();
        catalogue.apply(&edit).unwrap();
        let refused = catalogue.set_format("d", Some(&long));
        assert_eq!(refused, Err(KeyspaceError::FormatsTooLong { limit_bytes: FORMATS_BYTES_MAX }));
        catalogue.apply(&catalogue.drop("a").unwrap()).unwrap();
        assert!(catalogue.get(id).unwrap().format.is_empty());
        assert!(catalogue.apply(&KeyspaceEdit::SetFormat { id, format: Vec::new() }).is_err());
        let newer = KeyspaceEdit::SetFormat { id: KeyspaceId::DEFAULT, format: vec![9, 0, 1, 0] };
        catalogue.apply(&newer).unwrap();
        let refused = catalogue.find("default").unwrap().format();
        assert_eq!(refused, Err(KeyspaceError::Format { name: "default".into(), version: 9 }));
    }

    #[test]
    fn a_block_device_grows_and_nothing_else_has_a_size() {
        let device = |blocks: u64| BlockDevice::new(blocks << 12).unwrap();
        let mut catalogue = Catalogue::default();
        create(&mut catalogue, "plain").unwrap();
        let edit = catalogue.create(b"disk", KeyspaceKind::Hashed, device(5).options()).unwrap();
        catalogue.apply(&edit).unwrap();
        catalogue.apply(&catalogue.resize_device("disk", device(7)).unwrap()).unwrap();
        assert_eq!(catalogue.find("disk").unwrap().block_device(), Ok(Some(device(7))));
        assert_eq!(
            catalogue.resize_device("disk", device(6)),
            Err(KeyspaceError::DeviceShrinks { size_bytes: 7 << 12 })
        );
        for name in ["plain", "default"] {
            assert_eq!(catalogue.resize_device(name, device(9)), Err(KeyspaceError::NoDevice { name: name.into() }));
        }
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let mut catalogue = Catalogue::default();
        (1..KEYSPACES_MAX).for_each(|number| assert!(create(&mut catalogue, &format!("{number}")).is_ok()));
        assert_eq!(create(&mut catalogue, "more"), Err(KeyspaceError::TooMany { limit: KEYSPACES_MAX }));
        assert_eq!(catalogue.count(), KEYSPACES_MAX);
    }
}
