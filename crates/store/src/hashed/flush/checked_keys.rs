//! The keys of a flush as they were checked, packed: a buffer may have eleven million of them, and all are kept until the install.
//!
//! ```text
//!  +------+- - - - - +- - - - - - - - - - - - - - - - - - - - - - - +
//!  | tag  | keyspace | near: hash key, segment                      |
//!  | u8   |          | older: segment, entry, bytes of its record   |
//!  +------+- - - - - +- - - - - - - - - - - - - - - - - - - - - - - +
//!  tag: bit 0 live · bits 1-2 new 0, near 1, older 2, unclear 3 · bit 3 a keyspace follows: it is not the default
//!  a hash key is a u128, all else a varint
//! ```
//! So a new key takes one byte, one that is on flash about eight, and one that the index takes for another about eighteen.

use crate::hashed::flush::key_check::Checked;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_kernels::hash::HashKey;

const LIVE: u8 = 1;
const NEW: u8 = 0;
const NEAR: u8 = 1 << 1;
const OLDER: u8 = 2 << 1;
const UNCLEAR: u8 = 3 << 1;
const NAMED: u8 = 1 << 3;

/// A key of a write buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckedKey {
    /// It is in the new segment.
    pub live: bool,
    pub keyspace: KeyspaceId,
    pub checked: Checked,
}

/// Keys in order.
#[derive(Default)]
pub struct CheckedKeys {
    packed: Writer,
}

impl CheckedKeys {
    pub fn push(&mut self, CheckedKey { live, keyspace, checked }: CheckedKey) {
        let packed = &mut self.packed;
        let is_named = keyspace != KeyspaceId::DEFAULT;
        let mut tag = |kind: u8| {
            packed.u8(kind | if live { LIVE } else { 0 } | if is_named { NAMED } else { 0 });
            if is_named {
                packed.varint(keyspace.0.into());
            }
        };
        match checked {
            Checked::New => tag(NEW),
            Checked::Near { hash, segment } => {
                tag(NEAR);
                packed.raw(&hash.0.to_le_bytes());
                packed.varint(segment);
            }
            Checked::Older { segment, entry, size_bytes } => {
                tag(OLDER);
                [segment, entry, size_bytes].into_iter().for_each(|number| packed.varint(number));
            }
            Checked::Unclear => tag(UNCLEAR),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = CheckedKey> + use<'_> {
        let mut reader = Reader::new(&self.packed);
        std::iter::from_fn(move || {
            (!reader.is_empty()).then(|| unpack(&mut reader).expect("it was packed by this module"))
        })
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.packed.capacity()
    }

    /// No key comes any more.
    pub fn shrink(&mut self) {
        self.packed.shrink();
    }
}

impl FromIterator<CheckedKey> for CheckedKeys {
    fn from_iter<I: IntoIterator<Item = CheckedKey>>(keys: I) -> CheckedKeys {
        let mut packed = CheckedKeys::default();
        keys.into_iter().for_each(|key| packed.push(key));
        packed.shrink();
        packed
    }
}

fn unpack(reader: &mut Reader<'_>) -> Result<CheckedKey, Short> {
    let [tag] = reader.array()?;
    let keyspace = match tag & NAMED {
        0 => KeyspaceId::DEFAULT,
        _ => KeyspaceId(reader.varint()?.try_into().map_err(|_| Short)?),
    };
    let checked = match tag & !(LIVE | NAMED) {
        NEW => Checked::New,
        NEAR => {
            let hash = HashKey(u128::from_le_bytes(reader.array()?));
            Checked::Near { hash, segment: reader.varint()? }
        }
        OLDER => {
            let (segment, entry, size_bytes) = (reader.varint()?, reader.varint()?, reader.varint()?);
            Checked::Older { segment, entry, size_bytes }
        }
        _ => Checked::Unclear,
    };
    Ok(CheckedKey { live: tag & LIVE != 0, keyspace, checked })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_key() -> impl Strategy<Value = CheckedKey> {
        let checked = prop_oneof![
            Just(Checked::New),
            (any::<u128>(), any::<u32>()).prop_map(|(hash, segment)| Checked::Near { hash: HashKey(hash), segment }),
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(segment, entry, size_bytes)| Checked::Older {
                segment,
                entry,
                size_bytes
            }),
            Just(Checked::Unclear),
        ];
        let keyspace = prop_oneof![Just(0), any::<u16>()].prop_map(KeyspaceId);
        (any::<bool>(), keyspace, checked).prop_map(|(live, keyspace, checked)| CheckedKey { live, keyspace, checked })
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_out(keys in proptest::collection::vec(any_key(), 0..50)) {
            let packed: CheckedKeys = keys.iter().copied().collect();
            prop_assert!(packed.iter().eq(keys));
        }
    }

    #[test]
    fn a_full_buffer_of_a_gibibyte_takes_a_sixth_of_what_it_took() {
        const KEYS: u32 = (1 << 30) / 96;
        let bytes_each = |checked: fn(u32) -> Checked| {
            let keyspace = KeyspaceId::DEFAULT;
            let key = |number| CheckedKey { live: true, keyspace, checked: checked(number) };
            let packed: CheckedKeys = (0..KEYS).step_by(100).map(key).collect();
            packed.bytes() as f64 / f64::from(KEYS.div_ceil(100))
        };
        assert!(bytes_each(|_| Checked::New) <= 1.0);
        // In one of a thousand segments as large as the buffer.
        let older = |number| Checked::Older { segment: number % 1000, entry: number, size_bytes: 96 + number % 200 };
        let bytes = bytes_each(older);
        assert!(bytes <= 8.5, "{bytes}");
    }
}
