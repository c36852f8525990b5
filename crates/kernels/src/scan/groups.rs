//! Groups: aggregates for each combination of values of some columns.
//!
//! ```text
//! partial:  groups u32 · group, one behind the other, in the order of their keys' bytes
//! group:    key: a row ([`super::rows`]) · a state for each aggregate ([`super::aggregate`])
//! ```
//! 1. Neither the number of groups nor their bytes exceed the limits. A value that would exceed them is an error, and
//!    not half a result.
//! 2. Without columns there is one group, even without records.

use super::aggregate::{AggregateKind, AggregateState};
use super::rows::read_row;
use super::value::ScalarType;
use super::wire::{ScanReader, WireError};
use std::collections::BTreeMap;

/// The most groups of a query.
pub const GROUPS_MAX: usize = 1 << 16;
/// The most bytes of the groups' keys, and of the strings and distinct values that they keep.
pub const GROUP_BYTES_MAX: usize = 16 << 20;

/// There are more groups than the limits allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyGroups;

/// Bytes of a state in a partial, about, without its bytes and strings.
const STATE_BYTES: usize = 24;

pub type TypedAggregate = (AggregateKind, ScalarType);

pub struct Groups {
    keys: Box<[ScalarType]>,
    aggregates: Box<[TypedAggregate]>,
    groups: BTreeMap<Box<[u8]>, Box<[AggregateState]>>,
    bytes: usize,
}

/// The reason that a partial was not merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MergeError {
    Wire(WireError),
    TooMany,
}

impl From<WireError> for MergeError {
    fn from(error: WireError) -> MergeError {
        MergeError::Wire(error)
    }
}

impl Groups {
    pub fn new(keys: &[ScalarType], aggregates: &[TypedAggregate]) -> Groups {
        let mut groups = Groups { keys: keys.into(), aggregates: aggregates.into(), groups: BTreeMap::new(), bytes: 0 };
        if keys.is_empty() {
            groups.groups.insert(Box::default(), groups.states());
        }
        groups
    }

    fn states(&self) -> Box<[AggregateState]> {
        self.aggregates.iter().map(|(kind, of)| AggregateState::new(*kind, *of)).collect()
    }

    /// Passes the states of a group to `change`, and creates the group if there is none. `change` returns how many
    /// bytes more they hold.
    pub fn update(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut [AggregateState]) -> isize,
    ) -> Result<(), TooManyGroups> {
        let grown = match self.groups.get_mut(key) {
            Some(states) => change(states),
            None => {
                if self.groups.len() == GROUPS_MAX {
                    return Err(TooManyGroups);
                }
                let mut states = self.states();
                let grown = change(&mut states);
                self.groups.insert(key.into(), states);
                grown + key.len() as isize
            }
        };
        self.bytes = self.bytes.saturating_add_signed(grown);
        if self.bytes > GROUP_BYTES_MAX { Err(TooManyGroups) } else { Ok(()) }
    }

    /// Bytes that [`Groups::encode`] appends, about.
    pub fn bytes(&self) -> usize {
        self.bytes + self.groups.len() * self.aggregates.len() * STATE_BYTES
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.groups.len() as u32).to_le_bytes());
        for (key, states) in &self.groups {
            out.extend_from_slice(key);
            states.iter().for_each(|state| state.encode(out));
        }
    }

    /// Merges the groups of other records.
    pub fn merge(&mut self, partial: &[u8]) -> Result<(), MergeError> {
        let mut reader = ScanReader::new(partial);
        for _ in 0..reader.u32()? {
            let before = reader.rest();
            read_row(&self.keys, &mut reader, |_| ())?;
            let key = &before[..before.len() - reader.rest().len()];
            let aggregates = self.aggregates.clone();
            let decode = |(kind, of): &TypedAggregate| AggregateState::decode(*kind, *of, &mut reader);
            let others = aggregates.iter().map(decode).collect::<Result<Vec<_>, WireError>>()?;
            let merge = |states: &mut [AggregateState]| {
                let merged = states.iter_mut().zip(&aggregates).zip(&others);
                merged.map(|((state, (kind, _)), other)| state.merge(*kind, other)).sum()
            };
            self.update(key, merge).map_err(|TooManyGroups| MergeError::TooMany)?;
        }
        if reader.is_empty() { Ok(()) } else { Err(WireError::Malformed.into()) }
    }

    /// Each group's key as a row's bytes, and its states.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[AggregateState])> {
        self.groups.iter().map(|(key, states)| (&key[..], &states[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::rows::write_row;
    use crate::scan::{OwnedScalar, Scalar};

    const AGGREGATES: [TypedAggregate; 2] =
        [(AggregateKind::Count, ScalarType::Text), (AggregateKind::Max, ScalarType::Text)];

    fn add(groups: &mut Groups, key: i64, value: &str) -> Result<(), TooManyGroups> {
        let mut row = Vec::new();
        write_row(1, [Some(Scalar::Int(key))].into_iter(), &mut row);
        groups.update(&row, |states| {
            let added = states.iter_mut().zip(&AGGREGATES);
            added.map(|(state, (kind, _))| state.add(*kind, Scalar::Text(value))).sum()
        })
    }

    #[test]
    fn groups_of_parts_merge() {
        let groups = || Groups::new(&[ScalarType::Int], &AGGREGATES);
        let (mut left, mut right, mut whole) = (groups(), groups(), groups());
        for (number, value) in ["a", "long", "b", "c", "", "x"].iter().enumerate() {
            let part = if number % 2 == 0 { &mut left } else { &mut right };
            add(part, number as i64 % 3, value).unwrap();
            add(&mut whole, number as i64 % 3, value).unwrap();
        }
        let bytes = |groups: &Groups| {
            let mut bytes = Vec::new();
            groups.encode(&mut bytes);
            bytes
        };
        left.merge(&bytes(&right)).unwrap();
        assert_eq!((bytes(&left), left.bytes), (bytes(&whole), whole.bytes));
        let results: Vec<_> = left.iter().map(|(_, states)| states[1].result(AggregateKind::Max)).collect();
        assert_eq!(results, ["c", "long", "x"].map(|text| Some(OwnedScalar::Text(text.into()))));
        let partial = bytes(&right);
        for length in 0..partial.len() {
            assert_eq!(groups().merge(&partial[..length]), Err(MergeError::Wire(WireError::Short)), "{length} bytes");
        }
        assert!(groups().merge(&[&partial[..], &[0]].concat()).is_err());
    }

    #[test]
    fn limits_hold() {
        let mut groups = Groups::new(&[ScalarType::Int], &AGGREGATES);
        (0..GROUPS_MAX as i64).for_each(|key| add(&mut groups, key, "").unwrap());
        assert_eq!(add(&mut groups, -1, ""), Err(TooManyGroups));
        assert_eq!(add(&mut groups, 0, ""), Ok(()));
        let long = "x".repeat(GROUP_BYTES_MAX);
        assert_eq!(add(&mut groups, 0, &long), Err(TooManyGroups));
    }

    #[test]
    fn distinct_values_count_towards_the_bytes() {
        let mut groups = Groups::new(&[], &[(AggregateKind::CountDistinct, ScalarType::Int)]);
        let mut add =
            |value| groups.update(&[], |states| states[0].add(AggregateKind::CountDistinct, Scalar::Int(value)));
        let added = (0..).take_while(|value| add(*value) == Ok(())).count();
        assert!((400_000..500_000).contains(&added), "{added}");
        let mut partial = Vec::new();
        groups.encode(&mut partial);
        assert!(partial.len() <= groups.bytes(), "{} bytes", partial.len());
    }

    #[test]
    fn without_columns_there_is_one_group() {
        let groups = Groups::new(&[], &AGGREGATES);
        let results: Vec<_> = groups.iter().map(|(_, states)| states[0].result(AggregateKind::Count)).collect();
        assert_eq!(results, [Some(OwnedScalar::Int(0))]);
    }
}
